"""How long kernels take that serve no bucket: casts, a layer's factors, mixings; each timed on what it would see."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from laconic.core.memory import State
from laconic.core.technique import Turn
from laconic.layers.taps import Rows
from laconic.messages.crossover import BLOCK, Coded, Modular
from laconic.numerics import topology
from laconic.plan.sampled_rates import best_seconds

if TYPE_CHECKING:
    from laconic.layers.catalog import Layer
    from laconic.techniques.dad_scheme import Sharing

SAMPLE = 1 << 20


@functools.cache
def cast(device: torch.device) -> float:
    """Seconds to fp16 and back, of one parameter."""
    grad = _random(1, SAMPLE, device, 0)
    return best_seconds(lambda: grad.copy_(grad.to(torch.float16)), device) / SAMPLE


@functools.cache
def power_sgd(rank: int, width: int, device: torch.device) -> float:
    """Seconds that PowerSGD computes for one square layer: both factors, their product, and what it leaves."""
    matrix, q = _random(width, width, device, 0), _random(width, rank, device, 1)

    def run() -> None:
        p, _ = torch.linalg.qr(matrix @ q)
        torch.sub(matrix, p @ (matrix.T @ p).T)

    return best_seconds(run, device)


@functools.cache
def mixed(device: torch.device) -> float:
    """Seconds to mix one parameter."""
    own, heard = (_random(1, SAMPLE, device, seed) for seed in (0, 1))
    return best_seconds(lambda: topology.mixed(own, heard, out=own), device) / SAMPLE


@functools.cache
def mixed_as_bytes(device: torch.device) -> float:
    """Seconds to code one parameter, and to mix it with another's code."""
    own = _random(SAMPLE // BLOCK, BLOCK, device, 0)
    codec = Modular.after(own, own + 1e-3 * _random(SAMPLE // BLOCK, BLOCK, device, 1))

    def run() -> None:
        coded, sent = codec.encode(own)
        codec.decode(slice(None), sent, Coded.parse(coded.message()))

    return best_seconds(run, device) / SAMPLE


def shared(sharing: Sharing, layer: Layer, rows: int, device: torch.device) -> float:
    """Seconds for one layer: to encode, to combine where it has an owner, and to multiply; owners take turns."""
    turn = _turn(sharing, layer, rows, device)
    piece, nothing = turn.piece, torch.empty(0, device=device)
    messages = sharing.encode(turn, nothing)
    heard = [max(messages, key=len)] * sharing.workers
    result = torch.empty(layer.outputs * layer.inputs, device=device)
    busy = best_seconds(lambda: sharing.encode(turn, nothing), device)
    if piece.gather is None:
        combine = functools.partial(sharing.combine, turn, heard)
        busy += best_seconds(combine, device) / sharing.workers
        reply = combine()
        heard = [reply] if piece.relay is not None else [reply] * sharing.workers
    return busy + best_seconds(lambda: sharing.decode(turn, heard, result), device)


def _turn(sharing: Sharing, layer: Layer, rows: int, device: torch.device) -> Turn:
    """Of the layer's owner, or of the first worker, with rows of normal numbers."""
    sharing.settle({layer.name: rows})
    piece = sharing.piece(layer, torch.float32)
    owner = piece.owner or 0
    state = State.of(sharing, owner, sharing.workers)
    memory = state.part(state.memory(piece.bucket, device), piece)
    forms = sharing.formed.get(layer.weight, False)
    drawn = min(rows, *layer.shape) if forms else rows  # more would be multiplied, and not looked at
    deltas = _random(drawn, layer.outputs, device, 0)
    inputs = _random(drawn, layer.inputs, device, 1)
    formed = deltas.T @ inputs if forms else None
    return Turn(piece, 0, owner, memory, rows=Rows(inputs, deltas, formed))


def _random(rows: int, columns: int, device: torch.device, seed: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(device)
