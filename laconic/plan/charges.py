"""What a technique charges for a step of a given model: bytes, seconds of kernels, pieces and hops.

buckets      the technique's own code on a sample (plan/sampled_rates.py), times the parameters
layers       a model of square layers: bytes as layers/catalog.py counts them, kernels timed on one layer
gossip       one model out and one in, or a byte a parameter
plain, fp16  a ring's all-reduce; its additions are not charged
PowerSGD     two all-reduces of rank · (h_in + h_out) numbers a layer; its products are timed
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from laconic.lab.contestants import Attached, Fp16, Plain, PowerSGD
from laconic.layers.catalog import Layer
from laconic.messages.crossover import BLOCK
from laconic.plan import kernel_times, sampled_rates
from laconic.plan.cost import BACKWARD, LANE, Computing, Exchange, all_reduced
from laconic.plan.pipeline import BUCKET, pieces, used
from laconic.techniques.crossover import Crossover
from laconic.techniques.dense import FORMATS, Dense
from laconic.techniques.edad import EDAD

if TYPE_CHECKING:
    import torch

    from laconic.lab.contestants import Contestant


@dataclass(frozen=True)
class Model:
    """Parameters in square layers of `width`, each with `rows` rows a worker: batch times positions."""

    parameters: int
    width: int = 1024
    rows: int = 2048

    @property
    def buckets(self) -> int:
        """Of DDP, in float32."""
        return max(1, round(4 * self.parameters / BUCKET))

    @property
    def layer(self) -> Layer:
        """One of them."""
        return Layer("layer", "layer.weight", None, self.width, self.width)

    @property
    def layers(self) -> float:
        """How many there are; it need not be whole."""
        return self.parameters / self.width**2


@dataclass(frozen=True)
class Tariff:
    """What a technique charges, and how its exchange goes beside computing."""

    exchange: Exchange
    buckets: float
    beside: float = BACKWARD

    def computing(self, seconds: float, cores: float) -> Computing:
        """Of so many seconds, with this technique."""
        return Computing(seconds, self.buckets, self.beside, cores)


def tariff(contestant: Contestant, model: Model, workers: int, device: torch.device) -> Tariff:
    """What `contestant` charges each of so many workers; ValueError where it cannot serve them."""
    if isinstance(contestant, Plain):
        exchange = _reduced(contestant, model, workers, 4 * model.parameters, 0.0)
    elif isinstance(contestant, Fp16):
        busy = model.parameters * kernel_times.cast(device)
        exchange = _reduced(contestant, model, workers, 2 * model.parameters, busy)
    elif isinstance(contestant, PowerSGD):
        exchange = _powered(contestant, model, workers, device)
    else:
        assert isinstance(contestant, Attached)
        return _attached(contestant, model, workers, device)
    return Tariff(exchange, model.buckets)


def _attached(contestant: Attached, model: Model, workers: int, device: torch.device) -> Tariff:
    if isinstance(contestant.technique, Crossover):
        if contestant.technique.nodes(workers) != workers:
            raise ValueError("what groups say to each other inside is not known here; use no groups")
        return _gossiped(contestant, contestant.technique, model, workers, device)
    if contestant.technique.reads == "layers":
        return Tariff(_shared(contestant.technique, model, workers, device), model.buckets)
    return Tariff(_sampled(contestant, model, workers, device), model.buckets)


def _reduced(contestant: Contestant, model: Model, workers: int, payload: float, busy: float) -> Exchange:
    moved = all_reduced(payload, workers)
    return Exchange(moved, moved, busy, _in_all(contestant, model, workers), 2 * (workers - 1))


def _sampled(contestant: Attached, model: Model, workers: int, device: torch.device) -> Exchange:
    rates = sampled_rates.measure(contestant.technique, workers, device)
    moved, busy = rates.sent * model.parameters, rates.seconds * model.parameters
    return Exchange(moved, moved, busy, _in_all(contestant, model, workers), rates.hops, LANE)


def _in_all(contestant: Contestant, model: Model, workers: int) -> int:
    """The pieces of all buckets."""
    return model.buckets * pieces(contestant, max(1, model.parameters // model.buckets), workers)


def _powered(contestant: PowerSGD, model: Model, workers: int, device: torch.device) -> Exchange:
    numbers = min(contestant.rank, model.width) * model.layer.width
    moved = all_reduced(4 * numbers * model.layers, workers)
    busy = kernel_times.power_sgd(contestant.rank, model.width, device) * model.layers
    return Exchange(moved, moved, busy, model.buckets, 4 * (workers - 1))


def _shared(technique: Any, model: Model, workers: int, device: torch.device) -> Exchange:
    if isinstance(technique, EDAD):
        raise ValueError("EDAD's bytes depend on how layers follow each other, which is not known here")
    dtype = getattr(technique, "dtype", "fp32")
    choice = technique.choose(model.layer, model.rows, workers)
    if choice.way == "dense":
        return _sampled(Attached(Dense(dtype)), model, workers, device)
    numbers = choice.numbers[choice.way] * (workers - 1) / workers
    moved = FORMATS[dtype].itemsize * numbers * model.layers
    busy = kernel_times.shared(technique, model.layer, model.rows, workers, device) * model.layers
    hops = 2 if choice.way == "two ways" else workers - 1
    return Exchange(moved, moved, busy, max(1, round(model.layers)), hops, LANE)


def _gossiped(
    contestant: Attached, technique: Crossover, model: Model, workers: int, device: torch.device
) -> Tariff:
    coded = technique.codec is not None
    each = (BLOCK + 4) / BLOCK if coded else 4.0
    numbers = model.parameters * (1 + (technique.momentum == "mixed")) / technique.every
    busy = numbers * (kernel_times.mixed_as_bytes(device) if coded else kernel_times.mixed(device))
    moved, count = each * numbers, pieces(contestant, model.parameters, 2)
    exchange = Exchange(moved, moved, busy, count, 1, used(contestant, workers))
    return Tariff(exchange, math.inf, 1.0) if technique.overlap else Tariff(exchange, 1, 0.0)
