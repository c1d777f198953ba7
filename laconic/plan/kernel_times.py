"""How long kernels take that serve no bucket: casts, a layer's factors, mixings; each timed on what it would see."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from laconic.engine.rehearsal import Rehearsal
from laconic.layers.loads import LayerSetting
from laconic.layers.taps import Rows
from laconic.messages.crossover import BLOCK, Coded, Modular
from laconic.numerics import topology
from laconic.plan.sampled_rates import best, best_seconds, timed
from laconic.techniques.dad_scheme import DADScheme

if TYPE_CHECKING:
    from laconic.layers.catalog import Layer
    from laconic.sources.explain import LayerTechnique

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


def shared(technique: LayerTechnique, layer: Layer, rows: int, workers: int, device: torch.device) -> float:
    """Seconds for one layer: to encode, to combine where it has an owner, and to multiply; owners take turns."""
    setting = LayerSetting(workers, layers=(layer,), rows={layer.name: rows})
    rehearsal = Rehearsal(technique, setting, device, present=1)
    scheme = rehearsal.scheme
    assert isinstance(scheme, DADScheme)
    piece, own = scheme.piece(layer, torch.float32), _rows(scheme, layer, rows, device)
    steps = timed(rehearsal, lambda: rehearsal.share(piece, [own]))
    result = torch.empty(layer.outputs * layer.inputs, device=device)
    (turn,) = rehearsal.share(piece, [own])
    multiply = best_seconds(lambda: turn.products[layer.weight].into(result), device)
    everywhere = sum(best(steps, phase) for phase in ("encode", "decode", "seal"))
    return everywhere + best(steps, "combine") / workers + multiply


def _rows(scheme: DADScheme, layer: Layer, rows: int, device: torch.device) -> Rows:
    """Rows of normal numbers."""
    forms = scheme.formed.get(layer.weight, False)
    drawn = min(rows, *layer.shape) if forms else rows  # more would be multiplied, and not looked at
    deltas = _random(drawn, layer.outputs, device, 0)
    inputs = _random(drawn, layer.inputs, device, 1)
    return Rows(inputs, deltas, deltas.T @ inputs if forms else None)


def _random(rows: int, columns: int, device: torch.device, seed: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(device)
