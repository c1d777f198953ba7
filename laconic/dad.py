"""DAD and RankDAD: share the factors of a layer's gradient instead of the gradient (Baker, Calhoun, Pearlmutter and
Plis, "Efficient distributed auto-differentiation", arXiv 2102.09631).

The gradient of a linear layer is ΔᵀA, of its inputs A and of what came back to its outputs Δ, a row a sample each
(taps.py). With S workers:

    DAD        everybody's rows to everybody; Σ_s Δ_sᵀ A_s / S, which is exactly the average
    RankDAD    every worker's best factors P Qᵀ ≈ ΔᵀA of rank r (lowrank.py); what they leave is kept for the next
               step. One way: everybody's factors to everybody, and their sum. Two ways: to the layer's owner, who
               factors their sum again, and keeps what that leaves; everybody has the reply

A bias is the sum of Δ's rows, and is always exact. A layer shares what takes fewer bytes, its gradient included
(layers.py); all else travels as `Dense`. A message has rows of Δ and of A in float32; or the bias in float32, and
P's and Q's columns, in 16 bits if so chosen.

Rows are the data, or nearly so: what the first layer is given travels unless `skip_inputs`, and factors are
combinations of it. Where data are private, use another technique.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

import torch

from laconic import checks, lowrank
from laconic.dense import FORMATS, Dense
from laconic.layers import Layer, choose, find, multiplied
from laconic.places import Peers, Place
from laconic.products import Product
from laconic.taps import Taps
from laconic.technique import Bucket, Capability, Gather, Memory, Messages, Piece, Reading, Relay, Turn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from laconic.layers import Choice, Found
    from laconic.lowrank import Factors
    from laconic.technique import Count

KEEP = 8
"""Columns of a residual where a layer has few rows; what is beyond them is forgotten."""
FEW = 8
"""Workers who may all hear all factors."""
TOP = 4
"""Singular values that are read, of each layer."""


@dataclass(frozen=True)
class DAD:
    """Rows of inputs and deltas where these are fewer numbers than a gradient; the result is the exact average.

    `private` are beginnings of names of parameters that are not exchanged at all. `skip_inputs` keeps layers that are
    given the data itself out of it.
    """

    private: tuple[str, ...] = ()
    skip_inputs: bool = False
    place: Place = Peers()

    needs: ClassVar[Capability] = Capability.COMBINE
    serves: ClassVar[str] = "linear layer"
    warning: ClassVar[str] = (
        "DAD is not private: rows of what layers are given travel to all other workers, and the first layer's are "
        "the data itself unless skip_inputs=True; where data must not leave a worker, use that or another technique."
    )

    def __post_init__(self) -> None:
        checks.names("private", self.private)
        checks.flag("skip_inputs", self.skip_inputs)

    def find(self, model: nn.Module, public: Mapping[str, nn.Parameter]) -> Found:
        """The linear layers."""
        return {layer: modules for layer, modules in find(model, public).items() if not layer.convolution}

    def tap(self, found: Found) -> Taps:
        """Hooks on the layers."""
        return Taps({layer.name: modules for layer, modules in found.items()})

    def choose(self, layer: Layer, rows: int, workers: int) -> Choice:
        """How a layer travels that has so many rows on a worker."""
        return choose(layer, ["rows"], rows, rows, workers)

    def bind(self, layers: Sequence[Layer], workers: int) -> Sharing:
        """The technique for these layers."""
        return Sharing(self.place, {layer.weight: layer for layer in layers}, workers)


@dataclass(frozen=True)
class RankDAD:
    """The best factors of a layer's gradient: r columns instead of a matrix.

    `energy` is the share of a gradient's energy to keep, by as few columns as that takes, up to `rank`. `method`
    "power" is the paper's iteration, with `sweeps` for each column. `two_way` lets a layer's owner factor the sum
    again, so that replies do not grow with the number of workers; None does so where there are more than `FEW`, since
    one way takes one transfer instead of two and cuts once. `error_feedback` keeps what factors leave. `dtype` is
    that of factors and of all else on the wire: "bf16" is half the bytes, and rounds off a thousandth.
    """

    rank: int = 4
    energy: float | None = None
    method: str = "qr"
    sweeps: int = 10
    two_way: bool | None = None
    private: tuple[str, ...] = ()
    skip_inputs: bool = False
    error_feedback: bool = True
    dtype: str = "fp32"
    place: Place = Peers()

    needs: ClassVar[Capability] = Capability.COMBINE
    serves: ClassVar[str] = "linear layer or convolution"
    warning: ClassVar[str] = (
        "RankDAD is not private: combinations of rows of what layers are given travel to other workers, and the "
        "first layer's rows are the data itself unless skip_inputs=True; where data must not leave a worker, use "
        "that or another technique."
    )

    def __post_init__(self) -> None:
        checks.count("rank", self.rank)
        checks.count("sweeps", self.sweeps)
        if self.energy is not None and not 0 < checks.number("energy", self.energy) <= 1:
            raise ValueError(f"energy is {self.energy}; use a share above 0, up to 1")
        checks.choice("method", self.method, "qr", "block", "power")
        checks.choice("dtype", self.dtype, *FORMATS)
        for name in ("skip_inputs", "error_feedback"):
            checks.flag(name, getattr(self, name))
        if self.two_way is not None:
            checks.flag("two_way", self.two_way)
        checks.names("private", self.private)

    def find(self, model: nn.Module, public: Mapping[str, nn.Parameter]) -> Found:
        """The linear layers and convolutions."""
        return find(model, public)

    def tap(self, found: Found) -> Taps:
        """Hooks on linear layers' rows; of convolutions only what they are fed is of interest."""
        linear = {layer.name: modules for layer, modules in found.items() if not layer.convolution}
        others = {layer.name: modules for layer, modules in found.items() if layer.convolution}
        return Taps(linear, others)

    def choose(self, layer: Layer, rows: int, workers: int) -> Choice:
        """How a layer travels that has so many rows on a worker."""
        way = "two ways" if self.goes_two_ways(workers) else "one way"
        return choose(layer, [way], rows, self.rank, workers)

    def bind(self, layers: Sequence[Layer], workers: int) -> Sharing:
        """The technique for these layers."""
        settled = replace(self, two_way=self.goes_two_ways(workers))
        by_weight = {layer.weight: layer for layer in layers}
        return Sharing(self.place, by_weight, workers, settled, Dense(self.dtype))

    def goes_two_ways(self, workers: int) -> bool:
        """Whether factors go to owners and back."""
        return workers > FEW if self.two_way is None else self.two_way


@dataclass(frozen=True)
class LayerPiece(Piece):
    """A layer's parameters; `owner` factors the sum, unless everybody's messages go to everybody.

    Where `columns` is given, all factors have so many, and sizes need not travel.
    """

    layer: Layer
    owner: int | None
    columns: int | None = None
    wire: torch.dtype = torch.float32

    @property
    def gather(self) -> Gather | None:
        """To everybody, where there is no owner."""
        return Gather(self._bytes) if self.owner is None else None

    @property
    def relay(self) -> Relay | None:
        """The owner, where sizes are known."""
        known = self._bytes
        return None if self.owner is None or known is None else Relay(self.owner, known, known)

    @property
    def _bytes(self) -> int | None:
        """Of every message, where they are known."""
        if self.columns is None:
            return None
        factors = -(-self.columns * self.layer.width * self.wire.itemsize // 4)
        return 4 * (factors + self.layer.outputs * (self.layer.bias is not None))


@dataclass(frozen=True)
class Sharing:
    """DAD, or with `factored` RankDAD, at work on known layers, and `Dense` on all else."""

    place: Place
    layers: Mapping[str, Layer]
    workers: int
    factored: RankDAD | None = None
    rest: Dense = field(default_factory=Dense)
    formed: dict[str, bool] = field(default_factory=dict)
    """Whether a weight's gradient is factored as backward has made it, of each, once that is known."""

    needs: ClassVar[Capability] = Capability.COMBINE
    varies: ClassVar[bool] = True
    remembers: ClassVar[tuple[str, ...]] = ()

    def keeps(self, worker: int, _workers: int) -> Mapping[str, Count]:
        """What factors leave, on workers and on owners."""
        if self.factored is None or not self.factored.error_feedback:
            return {}
        owners = self._owners

        def residual(name: str, numel: int) -> int:
            if name not in self.formed:
                return 0
            return numel if self.formed[name] else KEEP * self.layers[name].width

        def reply_residual(name: str, numel: int) -> int:
            return residual(name, numel) if owners.get(name) == worker else 0

        kept: dict[str, Count] = {"residual": residual}
        return kept | ({"reply residual": reply_residual} if self.factored.two_way else {})

    def settle(self, rows: Mapping[str, int]) -> None:
        """Layers have so many rows, by their names; without any, nothing is known yet."""
        self.formed.clear()
        if rows and self.factored is not None:
            thrifty = self.factored.method != "power"
            self.formed.update(
                (weight, layer.convolution or (thrifty and rows[layer.name] >= min(layer.shape)))
                for weight, layer in self.layers.items()
            )

    def cut(self, bucket: Bucket, workers: int) -> Sequence[Piece]:
        """Everything that is no layer's, as `Dense` cuts it."""
        return self.rest.cut(bucket, workers)

    def piece(self, layer: Layer, dtype: torch.dtype) -> LayerPiece:
        """The piece of a layer."""
        bucket = Bucket(layer.parameters, layer.sizes, dtype)
        span = (bucket, 0, bucket.numel, self.workers, bucket.numel)
        if self.factored is None:
            return LayerPiece(*span, layer, None)
        owner = self._owners[layer.weight] if self.factored.two_way else None
        columns = min(self.factored.rank, layer.outputs, layer.inputs)
        return LayerPiece(*span, layer, owner, columns if self.factored.energy is None else None, self.wire)

    def encode(self, turn: Turn, grad: torch.Tensor) -> Messages:
        """Rows or factors, to everybody or to the layer's owner."""
        piece = turn.piece
        if not isinstance(piece, LayerPiece):
            return self.rest.encode(turn, grad)
        assert turn.rows is not None
        deltas, inputs = turn.rows.deltas, turn.rows.inputs
        bias = deltas.sum(0) if piece.layer.bias is not None else deltas.new_empty(0)
        if self.factored is None:
            sent = _packed(deltas, inputs).view(torch.uint8)
        else:
            kept, layer = turn.memory.get("residual"), piece.layer
            found = (
                self._factor_matrix(turn.rows.gradient, kept)
                if turn.rows.gradient is not None
                else self._factor(deltas, inputs, kept, layer)
            )
            turn.readings |= _readings(piece.layer, found)
            sent = self._message(found, piece.columns, bias)
        nothing = sent.new_empty(0)
        if piece.owner is None or piece.relay is not None:
            return [sent]
        return [sent if worker == piece.owner else nothing for worker in range(piece.shards)]

    def combine(self, turn: Turn, messages: Messages) -> torch.Tensor:
        """The factors of the mean, if the layer is this worker's."""
        piece = turn.piece
        if not isinstance(piece, LayerPiece):
            return self.rest.combine(turn, messages)
        if turn.worker != piece.owner:
            return messages[0].new_empty(0)
        deltas, inputs, bias = self._stacked(piece.layer, messages)
        kept = turn.memory.get("reply residual")
        found = (
            self._factor_matrix(deltas.T @ inputs, kept)
            if self.formed[piece.layer.weight]
            else self._factor(deltas, inputs, kept, piece.layer)
        )
        return self._message(found, piece.columns, bias)

    def decode(self, turn: Turn, replies: Messages, grad: torch.Tensor) -> None:
        """A layer's turn has its products; `grad` is their flat gradients, unless it is empty."""
        piece = turn.piece
        if not isinstance(piece, LayerPiece):
            self.rest.decode(turn, replies, grad)
            return
        heard = replies if piece.owner is None or piece.relay is not None else [replies[piece.owner]]
        turn.products = self._products(piece, heard)
        if len(grad):
            grad.copy_(multiplied(piece.layer, turn.products))

    def _products(self, piece: LayerPiece, heard: Messages) -> dict[str, Product]:
        """The layer's gradients."""
        deltas, inputs, bias = self._stacked(piece.layer, heard)
        weight = {piece.layer.weight: Product(deltas, inputs)}
        return weight if piece.layer.bias is None else {**weight, piece.layer.bias: Product(bias[None])}

    def _factor(
        self, deltas: torch.Tensor, inputs: torch.Tensor, kept: Memory | None, layer: Layer
    ) -> Factors:
        """The factors to send; what they leave is kept."""
        settings = self.factored
        assert settings is not None
        method: lowrank.Method = settings.method  # type: ignore[assignment]
        if kept is None:
            return lowrank.factor(deltas, inputs, settings.rank, settings.energy, method, settings.sweeps)
        found, left = lowrank.factor_with_residual(
            deltas, inputs, _residual(kept.old, layer), 1.0, settings.rank, settings.energy, KEEP, method
        )
        _keep(left, kept, layer)
        return found

    def _factor_matrix(self, gradient: torch.Tensor, kept: Memory | None) -> Factors:
        """The same of a gradient that is there already; all that its factors leave is kept."""
        settings = self.factored
        assert settings is not None
        if kept is None:
            return lowrank.factor_matrix(gradient, settings.rank, settings.energy)
        left = kept.new.view_as(gradient)
        torch.add(gradient, kept.old.view_as(gradient), out=left)
        found = lowrank.factor_matrix(left, settings.rank, settings.energy)
        left.addmm_(*(side.to(self.wire).float() for side in (found.P, found.Q.T)), alpha=-1)
        return found

    @property
    def wire(self) -> torch.dtype:
        """Of rows and factors; biases are float32."""
        return torch.float32 if self.factored is None else FORMATS[self.factored.dtype]

    def _message(self, found: Factors, columns: int | None, bias: torch.Tensor) -> torch.Tensor:
        """The bias, and the columns, in whole groups of four bytes."""
        numbers = _factors(found, columns).to(self.wire)
        if numbers.nbytes % 4:
            numbers = torch.nn.functional.pad(numbers, (0, 1))
        return torch.cat([bias.view(torch.uint8), numbers.view(torch.uint8)])

    def _stacked(self, layer: Layer, messages: Messages) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The rows whose product is the mean of what messages say, and the mean bias."""
        bias_size = layer.outputs * (layer.bias is not None and self.factored is not None)
        deltas, inputs, biases = [], [], []
        for message in messages:
            values = _numbers(message[4 * bias_size :], self.wire)
            rows = len(values) // layer.width
            split = values[: rows * layer.width].split([rows * layer.outputs, rows * layer.inputs])
            deltas.append(split[0].view(rows, layer.outputs) / len(messages))
            inputs.append(split[1].view(rows, layer.inputs))
            biases.append(
                _numbers(message[: 4 * bias_size], torch.float32) if self.factored else deltas[-1].sum(0)
            )
        bias = torch.stack(biases).sum(0)
        return torch.cat(deltas), torch.cat(inputs), bias / len(messages) if self.factored else bias

    @functools.cached_property
    def _owners(self) -> dict[str, int]:
        """For every layer a worker, so that all have about as much to factor."""
        load, owners = [0] * self.workers, {}
        for layer in sorted(self.layers.values(), key=lambda layer: (-layer.width, layer.weight)):
            owners[layer.weight] = load.index(min(load))
            load[owners[layer.weight]] += layer.width
        return owners


def _numbers(message: torch.Tensor, wire: torch.dtype) -> torch.Tensor:
    # One without rows may begin at a byte where no float can.
    return message.view(wire).float() if len(message) else message.float()


def _factors(found: Factors, columns: int | None) -> torch.Tensor:
    """Both sides' columns, with zeros behind them if there are to be more."""
    more = max(0, (columns or 0) - found.rank)
    return _packed(*(torch.nn.functional.pad(side.T, (0, 0, 0, more)) for side in (found.P, found.Q)))


def _packed(deltas: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    return torch.cat([deltas.reshape(-1), inputs.reshape(-1)]).float()


def _keep(left: Factors, kept: Memory, layer: Layer) -> None:
    columns = kept.new.view(KEEP, layer.width)
    columns.zero_()
    columns[: left.rank, : layer.outputs] = left.P.T
    columns[: left.rank, layer.outputs :] = left.Q.T


def _residual(kept: torch.Tensor, layer: Layer) -> Factors | None:
    columns = kept.view(KEEP, layer.width)
    if not bool(columns.any()):
        return None
    p, q = columns[:, : layer.outputs].T, columns[:, layer.outputs :].T
    zero = torch.zeros((), dtype=torch.float64)
    return lowrank.Factors(p, q, zero.new_zeros(KEEP), zero)


def _readings(layer: Layer, found: Factors) -> dict[str, Reading]:
    """The layer's rank, by 95 % of its energy and by a tenth of the first σ; the share that was sent; the first σ."""
    sigma, energy = found.sigma.tolist(), found.energy.item()  # an op of torch takes longer than all of this
    sums = list(accumulate(value * value for value in sigma))
    read = {
        "rank": min(len(sums), 1 + bisect_left(sums, 0.95 * energy)) if any(sigma) else 0,
        "above": sum(value > 0.1 * sigma[0] for value in sigma),
        "kept": [0.0, *sums][found.rank] / energy if energy else 1.0,
        **{f"sigma {place}": value for place, value in enumerate(sigma[:TOP], 1)},
    }
    return {f"{name} {layer.name}": Reading(value, 1.0) for name, value in read.items()}
