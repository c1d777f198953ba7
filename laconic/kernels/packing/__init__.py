"""Ops on symbols, a byte each: out of packed bits, and counted in runs."""

from __future__ import annotations

import torch

from laconic.kernels import op
from laconic.numerics import bits as packing

SYMBOLS = 256


@op("symbols")
def unpack_symbols(packed: torch.Tensor, bits: int, symbols: torch.Tensor) -> None:
    """`symbols` are the first ones of `packed`, which has them in 1 to 8 bits each."""
    symbols.copy_(packing.unpack(packed[None], bits, len(symbols))[0])


@op("counts")
def count_runs(symbols: torch.Tensor, run: int, counts: torch.Tensor) -> None:
    """Row k of `counts` says how often each symbol occurs in run k, of `run` symbols; the last may have fewer."""
    for k, row in enumerate(counts):
        row.copy_(symbols[k * run : (k + 1) * run].bincount(minlength=SYMBOLS))
