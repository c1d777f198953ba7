"""Ternary replies close to their entropy, where that is shorter than what numerics/ternary.py makes of them.

Gaps are within 2 % of the entropy of places at random, where nothing is gained. But what moves in a layer lies close
together: rows differ in how much of them is not 0, and in which sign it has. So a reply may be of a fifth form,
CODED, in the first byte as ternary.py has forms; behind it are its bytes of five coordinates, as its form TRITS has
them, in runs (messages/coded_runs.py) with

    odds     of not being 0, 2^(3/8 · i - 12), from 2^-12 to 2^5.6
    signs    the odds of + against -, 2^-3, 2^-1.5, 1, 2^1.5 or 2^3

The weight of a byte is the product of its coordinates' shares, from IEEE 754's basic operations alone, as in
numerics/generalized_normal.py.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.kernels import sign_vote as kernels
from laconic.messages import coded_runs
from laconic.numerics import ans, generalized_normal, ternary

CODED = 4
ODDS, PER_OCTAVE = 48, 8
LEAST = -12 * PER_OCTAVE
SIGNS = range(-2, 3)
LENGTHS = (256, 1024, 8192)
"""Bytes with one model; short runs suit matrices, long ones little that moves."""


def coded(reply: torch.Tensor, numel: int) -> torch.Tensor:
    """The reply about `numel` coordinates in the form CODED if that is shorter, else as it is."""
    if ternary.is_lost(reply):
        return reply
    sealed = coded_runs.seal(_family(), _bytes(reply.cpu(), numel), reply.cpu())
    if 1 + len(sealed) >= len(reply):
        return reply
    return torch.cat([_first(CODED), sealed]).to(reply.device)


def opened(reply: torch.Tensor, numel: int) -> torch.Tensor:
    """A reply of which `numel` coordinates are the subject in a form of ternary.py; a damaged one is a ValueError."""
    if not len(reply) or int(reply[0]) != CODED * ternary.FORM:
        return reply
    found = coded_runs.unseal(_family(), reply[1:].cpu(), -(-numel // ternary.PER_BYTE))
    ans.require(found.symbols is not None, "is of no known form")
    assert found.symbols is not None
    empty = torch.zeros(ternary.HEADER - 1, dtype=torch.uint8)
    return torch.cat([_first(ternary.TRITS), empty, found.symbols]).to(reply.device)


def _first(form: int) -> torch.Tensor:
    return torch.tensor([form * ternary.FORM], dtype=torch.uint8)


def _bytes(reply: torch.Tensor, numel: int) -> torch.Tensor:
    """Five coordinates in a byte."""
    if int(reply[0]) == ternary.TRITS * ternary.FORM:
        return reply[ternary.HEADER :]
    direction = torch.zeros(-(-numel // ternary.PER_BYTE) * ternary.PER_BYTE, dtype=torch.float32)
    kernels.sign_decode([reply], numel, direction[:numel])
    trits = direction.ne(0).to(torch.uint8).add_(direction < 0).view(-1, ternary.PER_BYTE)
    packed = trits[:, 0].clone()
    for place, power in enumerate(ternary.POWERS[1:], 1):
        packed.add_(trits[:, place], alpha=power)
    return packed


@functools.cache
def _family() -> coded_runs.Family:
    """All odds for the first of the signs, then for the next."""
    rows = [_weights(_shares(odds, signs)) for signs in SIGNS for odds in range(ODDS)]
    return coded_runs.Family(np.stack(rows), LENGTHS)


def _shares(odds: int, signs: int) -> tuple[float, float, float]:
    """Of 0, + and -."""
    some = generalized_normal.power_of_two(LEAST + 3 * odds, PER_OCTAVE)
    plus = generalized_normal.power_of_two(3 * signs, 2)
    return 1 / (1 + some), some / (1 + some) * plus / (1 + plus), some / (1 + some) / (1 + plus)


def _weights(shares: tuple[float, float, float]) -> NDArray[np.int64]:
    """Of all 243 bytes, in order; the first coordinate is the lowest digit."""
    one = np.array(shares)
    products = np.ones(1)
    for _ in range(ternary.PER_BYTE):
        products = (one[:, None] * products).ravel()
    return 1 + np.floor(products * coded_runs.TOTAL).astype(np.int64)
