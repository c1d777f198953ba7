"""A layer's rows or factors as messages, and back: DAD and RankDAD (dad.py) at work on known layers.

    encode   rows of Δ and of A; or the bias, and the columns of P and Q; what they leave is kept
    combine  the owner of a layer, where it has one, factors everybody's sum again
    decode   a layer's gradients as products of what was heard (products.py)

Everything that is no layer's goes through `Dense`. Whether a layer's gradient is factored as backward has made it
depends on its rows, so the technique is bound once more when these are known.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import torch

from laconic.core.place import Everybody, Messages, Owner, Route
from laconic.core.technique import Bucket, Cell, Desk, Piece, Reading, Scheme, Side, Slot, Turn
from laconic.layers.catalog import Layer, multiplied
from laconic.layers.loads import LayerTurn
from laconic.layers.products import Product
from laconic.messages.seals import joined
from laconic.numerics import lowrank
from laconic.numerics.damage import DamagedMessage
from laconic.techniques.dense import FORMATS, DenseScheme

if TYPE_CHECKING:
    from laconic.numerics.lowrank import Factors
    from laconic.techniques.dad import DAD, RankDAD

Stacked: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor]"
"""Rows of deltas and of inputs, and a bias."""

KEEP = 8
"""Columns of a residual where a layer has few rows; what is beyond them is forgotten."""
MOST_ROWS, MOST_BYTES = 64, 1 << 24
"""What a worker may say of a layer whose rows vary: so many times its rows when they were counted, or so much."""
TOP = 4
"""Singular values that are read, of each layer."""


@dataclass(frozen=True, kw_only=True)
class LayerPiece(Piece):
    """A layer's parameters. Where `columns` is given, all factors have so many, and sizes need not travel."""

    layer: Layer
    columns: int | None = None


@dataclass(frozen=True)
class DADScheme(Scheme):
    """DAD, or with `factored` RankDAD, at work on known layers, and `rest` on all else."""

    technique: DAD | RankDAD
    workers: int
    layers: Mapping[str, Layer]
    """By their weights."""
    rows: Mapping[str, int]
    """By the layers' names, once they are known."""
    rest: DenseScheme
    factored: RankDAD | None = None

    @property
    def memory(self) -> Mapping[str, Slot]:
        """What factors leave, on workers; and what those of a layer's owner leave."""
        if self.factored is None or not self.factored.error_feedback:
            return {}
        owners = self._owners

        def reply_residual(name: str, numel: int, worker: int) -> int:
            return self._residuals(name, numel, worker) if owners.get(name) == worker else 0

        own = {"residual": Slot(count=self._residuals, rescale=self._rescale)}
        replies = {"reply residual": Slot(Side.AGGREGATOR, reply_residual, rescale=self._rescale)}
        return own | replies if self.factored.two_way else own

    @property
    def routes(self) -> tuple[Route, ...]:
        """Those of layers, and those of all else."""
        pieces = (self.piece(layer, torch.float32) for layer in self.layers.values())
        return (*self.rest.routes, *{piece.route for piece in pieces})

    def _residuals(self, name: str, numel: int, _worker: int) -> int:
        """How many numbers factors of this parameter leave, once that is known."""
        if name not in self.formed:
            return 0
        return numel if self.formed[name] else KEEP * self.layers[name].width

    def _rescale(self, name: str, values: torch.Tensor, factor: float) -> None:
        """A residual becomes so many times itself; of factors, those of deltas do."""
        layer = self.layers[name]
        columns = values if self.formed[name] else values.view(KEEP, layer.width)[:, : layer.outputs]
        columns.mul_(factor)

    @functools.cached_property
    def formed(self) -> Mapping[str, bool]:
        """Whether a weight's gradient is factored as backward has made it, of each, once that is known."""
        if not self.rows or self.factored is None:
            return {}
        thrifty = self.factored.method != "power"
        return {
            weight: layer.convolution or (thrifty and self.rows[layer.name] >= min(layer.shape))
            for weight, layer in self.layers.items()
        }

    def forms(self, layer: Layer) -> bool:
        """Whether the layer's gradient is factored as backward has made it."""
        return self.formed.get(layer.weight, layer.convolution)

    def cut(self, bucket: Bucket, wire: int) -> Sequence[Piece]:
        """Everything that is no layer's, as `Dense` cuts it."""
        return self.rest.cut(bucket, wire)

    def piece(self, layer: Layer, dtype: torch.dtype) -> LayerPiece:
        """The piece of a layer: to its owner and back, or to everybody."""
        bucket = Bucket(layer.parameters, layer.sizes, dtype)
        columns, size = self._columns(layer), self._size(layer)
        two_way = self.factored is not None and self.factored.two_way
        route: Route = Owner(self._owners[layer.weight], size) if two_way else Everybody(size)
        span = (bucket, 0, bucket.numel, self.workers, bucket.numel, route)
        return LayerPiece(*span, layer=layer, columns=columns)

    def _columns(self, layer: Layer) -> int | None:
        """Of all factors of a layer, where their number is known."""
        if self.factored is None or self.factored.energy is not None:
            return None
        return min(self.factored.rank, layer.outputs, layer.inputs)

    def _size(self, layer: Layer) -> int | None:
        """Bytes of every message about a layer, where they are known."""
        columns = self._columns(layer)
        if columns is None:
            return None
        return self._bias_bytes(layer) + _whole(columns * layer.width * self.wire.itemsize)

    def longest(self, piece: Piece) -> int:
        """All factors that a layer can have; rows may be many more in one step than in another."""
        if not isinstance(piece, LayerPiece):
            return self.rest.longest(piece)
        layer, itemsize = piece.layer, self.wire.itemsize
        if self.factored is None:
            return max(layer.width * itemsize * MOST_ROWS * self.rows.get(layer.name, 1), MOST_BYTES)
        return 4 * layer.outputs + _whole(min(layer.outputs, layer.inputs) * layer.width * itemsize)

    def encode(self, turn: Turn, grad: torch.Tensor) -> Messages:
        """Rows or factors, to everybody or to the layer's owner."""
        piece = turn.piece
        if not isinstance(piece, LayerPiece):
            return self.rest.encode(turn, grad)
        assert isinstance(turn, LayerTurn)
        assert turn.rows is not None
        deltas, inputs, gradient = turn.rows.deltas, turn.rows.inputs, turn.rows.gradient
        if self.factored is None:
            return [joined([deltas.float(), inputs.float()])]
        bias = deltas.sum(0) if piece.layer.bias is not None else deltas.new_empty(0)
        kept = turn.memory.get("residual")
        found = (
            self._factor_matrix(gradient, kept)
            if gradient is not None
            else self._factor(deltas, inputs, kept, piece.layer)
        )
        turn.readings |= _readings(piece.layer, found)
        return [self._message(found, piece.columns, bias)]

    def combine(self, desk: Desk, messages: Messages) -> torch.Tensor:
        """The factors of the mean, at the layer's owner."""
        piece = desk.piece
        if not isinstance(piece, LayerPiece):
            return self.rest.combine(desk, messages)
        deltas, inputs, bias = self._stacked(piece.layer, messages, range(len(messages)))
        kept = desk.memory.get("reply residual")
        found = (
            self._factor_matrix(deltas.T @ inputs, kept)
            if self.forms(piece.layer)
            else self._factor(deltas, inputs, kept, piece.layer)
        )
        return self._message(found, piece.columns, bias)

    def decode(self, turn: Turn, replies: Messages, grad: torch.Tensor) -> None:
        """A layer's turn has its products; `grad` is their flat gradients, unless it is empty."""
        piece = turn.piece
        if not isinstance(piece, LayerPiece):
            self.rest.decode(turn, replies, grad)
            return
        assert isinstance(turn, LayerTurn)
        turn.products = self._products(piece, replies)
        if len(grad):
            grad.copy_(multiplied(piece.layer, turn.products))

    def _products(self, piece: LayerPiece, heard: Messages) -> dict[str, Product]:
        """The layer's gradients."""
        deltas, inputs, bias = self._told(piece, heard)
        weight = {piece.layer.weight: Product(deltas, inputs)}
        return weight if piece.layer.bias is None else {**weight, piece.layer.bias: Product(bias[None])}

    def _factor(self, deltas: torch.Tensor, inputs: torch.Tensor, kept: Cell | None, layer: Layer) -> Factors:
        """The factors to send; what they leave is kept."""
        settings = self.factored
        assert settings is not None
        method: lowrank.Method = settings.method  # type: ignore[assignment]
        if kept is None:
            return lowrank.factor(deltas, inputs, settings.rank, settings.energy, method, settings.sweeps)
        sizes = (settings.rank, settings.energy, KEEP)
        found, left = lowrank.factor_with_residual(
            deltas, inputs, _residual(kept.old, layer), 1.0, *sizes, method, settings.sweeps
        )
        _keep(left, kept, layer)
        return found

    def _factor_matrix(self, gradient: torch.Tensor, kept: Cell | None) -> Factors:
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
        return joined([bias, numbers])

    def _told(self, piece: LayerPiece, heard: Messages) -> Stacked:
        """What everybody has said of a layer, or its owner."""
        route = piece.route
        speakers = [route.worker] if isinstance(route, Owner) else range(len(heard))
        return self._stacked(piece.layer, heard, speakers)

    def _stacked(self, layer: Layer, messages: Messages, speakers: Sequence[int]) -> Stacked:
        """The rows whose product is the mean of what messages say, and the mean bias."""
        for message, speaker in zip(messages, speakers, strict=True):
            self._check(layer, len(message), speaker)
        alike = [messages] if isinstance(messages, torch.Tensor) else [message[None] for message in messages]
        deltas, inputs, biases = (
            torch.cat(side) for side in zip(*(self._unpacked(layer, each) for each in alike), strict=True)
        )
        deltas /= len(messages)
        bias = deltas.sum(0) if self.factored is None else biases.sum(0) / len(messages)
        return deltas, inputs, bias

    def _check(self, layer: Layer, size: int, speaker: int) -> None:
        """A message of so many bytes has whole rows, or as many columns as were agreed on."""
        bias, row = self._bias_bytes(layer), layer.width * self.wire.itemsize
        rows = (size - bias) // row
        if rows < 0 or size != bias + _whole(rows * row):
            raise DamagedMessage(speaker, f"has {size} bytes, which are no whole rows of {row}")
        if self._columns(layer) not in (None, rows):
            raise DamagedMessage(speaker, f"has {rows} columns, where {self._columns(layer)} were agreed on")

    def _bias_bytes(self, layer: Layer) -> int:
        """Rows say what the bias is, factors do not."""
        return 4 * layer.outputs * (layer.bias is not None and self.factored is not None)

    def _unpacked(self, layer: Layer, messages: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Rows of deltas and of inputs, and a bias for every message, where they are sent; messages are as long."""
        bias_bytes = self._bias_bytes(layer)
        values = _numbers(messages[:, bias_bytes:], self.wire)
        rows = values.shape[1] // layer.width
        deltas, inputs = values[:, : rows * layer.width].split(
            [rows * layer.outputs, rows * layer.inputs], dim=1
        )
        biases = _numbers(messages[:, :bias_bytes], torch.float32)
        return deltas.reshape(-1, layer.outputs), inputs.reshape(-1, layer.inputs), biases

    @functools.cached_property
    def _owners(self) -> dict[str, int]:
        """For every layer a worker, so that all have about as much to factor."""
        load, owners = [0] * self.workers, {}
        for layer in sorted(self.layers.values(), key=lambda layer: (-layer.width, layer.weight)):
            owners[layer.weight] = load.index(min(load))
            load[owners[layer.weight]] += layer.width
        return owners


def _whole(size: int) -> int:
    """So many bytes, in whole groups of four."""
    return -(-size // 4) * 4


def _numbers(messages: torch.Tensor, wire: torch.dtype) -> torch.Tensor:
    # Ones without rows may begin at a byte where no float can.
    if not messages.numel():
        return messages.float()
    return messages.flatten().view(wire).float().view(len(messages), -1)


def _factors(found: Factors, columns: int | None) -> torch.Tensor:
    """Both sides' columns, with zeros behind them if there are to be more."""
    more = max(0, (columns or 0) - found.rank)
    padded = (torch.nn.functional.pad(side.T, (0, 0, 0, more)) for side in (found.P, found.Q))
    return torch.cat([side.reshape(-1) for side in padded]).float()


def _keep(left: Factors, kept: Cell, layer: Layer) -> None:
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
