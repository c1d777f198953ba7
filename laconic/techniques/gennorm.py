"""GenNorm: minifloats in codes of a fitted density (Chen, Hernandez, Huang and Rini, "DNN gradient lossless
compression: can GenNorm be the answer?", arXiv 2111.07599, and "How to attain communication-efficient DNN training?
Convert, compress, correct", arXiv 2204.08211, which is called CO3).

The values of a gradient are much like draws from a generalized normal. With γ = `memory`, for each tensor, or for
each slice of a large one:

    encode   t = gradient + γ·e; (β, α) from the means of |t| and t²; the levels nearest to t·s, where s suits (β, α);
             e = t - levels/s, without what is beyond the last level; a code that suits the levels' histogram; send
             (β, α), which code, and the levels in it
    combine  the mean of what all workers' levels say; then the same as above, with a residual of the aggregator's own
    decode   levels/s

Both ends build equal codes from five bytes a tensor, so no table travels (gennorm.py). Who aggregates a
coordinate is a matter of its parameter alone (slices.py), so an aggregator's residual is of the same coordinates
whatever DDP's buckets are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch

from laconic.core import checks, slices
from laconic.core.place import Capability, Messages, Route, Shards
from laconic.core.slices import SlicePiece, slice_pieces
from laconic.core.technique import (
    Bucket,
    Cell,
    Desk,
    Nothing,
    Reading,
    Scheme,
    Setting,
    Side,
    Slot,
    Turn,
)
from laconic.kernels import coding
from laconic.kernels import gennorm as kernels
from laconic.messages.gennorm import Leveling, Shapes
from laconic.numerics import generalized_normal, level_codes
from laconic.numerics.damage import DamagedMessage
from laconic.numerics.minifloat import FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from laconic.core.technique import Piece

KEPT = 2
"""The numbers that are kept of a part from one fit to the next."""


@dataclass(frozen=True)
class GenNorm:
    """Levels of a minifloat up and down, close to their entropy.

    `format` is "fp4" (11 levels), "e5m2" or "e4m3". `memory` is what is kept of everything that levels do not say, on
    workers and on aggregators; CO3 has 0.7. `scale` is "fitted", or a factor from gradients to levels. `coder`
    "rans" goes below one bit where most levels are zero, as Huffman codes cannot. Scales are fitted every `refit`
    steps. Nothing is random.
    """

    format: str = "fp4"
    memory: float = 1.0
    scale: float | str = "fitted"
    coder: str = "huffman"
    refit: int = 1

    needs: ClassVar[Capability] = Capability.COMBINE
    reads: ClassVar[str] = "gradients"

    def __post_init__(self) -> None:
        checks.choice("format", self.format, *FORMATS)
        checks.choice("coder", self.coder, *level_codes.CODERS)
        if not 0 <= checks.number("memory", self.memory) <= 1:
            raise ValueError(f"memory is {self.memory}; use 0, which forgets, to 1, which keeps everything")
        if isinstance(self.scale, str):
            checks.choice("scale", self.scale, "fitted")
        elif not 1e-30 < checks.number("scale", self.scale) < 1e30:
            raise ValueError(f"scale is {self.scale}; use 'fitted', or a factor above 0")
        checks.count("refit", self.refit)

    def bind(self, setting: Setting) -> GenNormScheme:
        """Nothing is open but the number of workers."""
        return GenNormScheme(self, setting.workers)


@dataclass(frozen=True)
class GenNormScheme(Scheme):
    """Levels among so many workers."""

    technique: GenNorm
    workers: int

    @property
    def memory(self) -> Mapping[str, Slot]:
        """What levels do not say, on workers and aggregators; and shapes, where they hold for several steps."""
        workers = self.workers
        residuals = {
            "residual": Slot(),
            "reply residual": Slot(
                Side.AGGREGATOR, lambda name, numel, worker: slices.owned(name, numel, worker, workers)
            ),
        }
        shapes = {
            "shapes": Slot(
                count=lambda name, numel, _: KEPT * len(slices.slices(name, numel, workers)), rescale=_wider
            ),
            "reply shapes": Slot(
                Side.AGGREGATOR,
                lambda name, numel, worker: KEPT * slices.noted(name, numel, worker, workers),
                rescale=_wider,
            ),
        }
        return (residuals if self.technique.memory else {}) | (shapes if self.technique.refit > 1 else {})

    @property
    def has_units(self) -> bool:
        """Residuals and shapes have, and so has a scale that is given."""
        return bool(self.memory) or self.technique.scale != "fitted"

    @property
    def routes(self) -> tuple[Route, ...]:
        """By shards, as long as levels are."""
        return (Shards(vary=True),)

    def cut(self, bucket: Bucket, wire: int) -> Sequence[Piece]:
        """Pieces of whole chunks of parameters, with so many bytes of levels before they are coded."""
        numel = wire * 8 // kernels.width(FORMATS[self.technique.format])
        return slice_pieces(bucket, self.workers, numel=numel) if bucket.numel else []

    def longest(self, piece: Piece) -> int:
        """All levels as they are, and what is said of each part."""
        assert isinstance(piece, SlicePiece)
        parts = max(len(piece.parts(worker)) for worker in range(piece.shards))
        return Leveling(self.technique.format, self.technique.coder).longest(parts, piece.width)

    def encode(self, turn: Turn, grad: torch.Tensor) -> Messages:
        """The levels of every shard."""
        piece = _sliced(turn)
        charts = [piece.parts(worker)[:, :2] for worker in range(piece.shards)]
        residual = turn.memory["residual"] if self.technique.memory else Nothing()
        messages = self._write(turn, grad, residual, charts, self._noted(turn, charts))
        turn.readings["bits up"] = Reading(8.0 * sum(map(len, messages)), piece.numel)
        return messages

    def combine(self, desk: Desk, messages: Messages) -> torch.Tensor:
        """The levels of the mean."""
        piece, device = _sliced(desk), messages[0].device
        sizes = piece.parts(desk.shard)[:, 1]
        chart = torch.stack([sizes.cumsum(0) - sizes, sizes], 1)
        residual = self._reply_residual(desk)
        place = device if residual.old is None else residual.old.device
        mean = torch.empty(int(sizes.sum()), dtype=torch.float32, device=place)
        if not self._read(desk, list(messages), range(len(messages)), desk.shard, chart, mean):
            return coding.lost().to(device)
        (reply,) = self._write(desk, mean, residual, [chart], self._reply_noted(desk))
        return reply.to(device)

    def decode(self, turn: Turn, replies: Messages, grad: torch.Tensor) -> None:
        """`grad` is what the replies' levels say, or NaN if one of them is lost."""
        piece = _sliced(turn)
        arrived = [
            self._read(turn, [reply], [worker], worker, piece.parts(worker)[:, :2], grad)
            for worker, reply in enumerate(replies)
        ]
        if not all(arrived):
            grad.fill_(torch.nan)
        turn.readings["bits down"] = Reading(8.0 * sum(map(len, replies)), piece.numel)

    def _leveling(self, turn: Turn | Desk) -> Leveling:
        technique = self.technique
        scale = None if isinstance(technique.scale, str) else technique.scale / turn.scale
        return Leveling(technique.format, technique.coder, scale)

    def _write(
        self,
        turn: Turn | Desk,
        values: torch.Tensor,
        residual: Cell | Nothing,
        charts: Sequence[torch.Tensor],
        notes: _Notes | None,
    ) -> list[torch.Tensor]:
        """A message for each chart, which has its parts, (start, numel)."""
        chart = torch.cat(list(charts))
        shapes = self._shapes(turn, values, residual, chart, notes)
        if shapes is None:
            return [coding.lost()] * len(charts)
        leveling = self._leveling(turn)
        symbols = torch.empty(int(chart[:, 1].sum()), dtype=torch.uint8, pin_memory=values.is_cuda)
        counts = torch.empty(len(chart), 1 << 8, dtype=torch.int32)
        finite = kernels.gennorm_quantize(
            values,
            residual.old,
            self.technique.memory,
            chart,
            leveling.scales(shapes),
            self.technique.format,
            residual.new,
            symbols,
            counts,
        )
        if not finite:
            return [coding.lost()] * len(charts)
        return _sealed(leveling, symbols, counts, charts, shapes)

    def _read(
        self,
        turn: Turn | Desk,
        messages: Sequence[torch.Tensor],
        senders: Sequence[int],
        shard: int,
        chart: torch.Tensor,
        out: torch.Tensor,
    ) -> bool:
        """Whether no message is lost; if so, the shard's parts of `out` are their mean."""
        try:
            return self._leveling(turn).average([message.cpu() for message in messages], chart, out)
        except DamagedMessage as error:
            about = _names(_sliced(turn), shard)
            raise DamagedMessage(senders[error.worker], error.fault, about) from None

    def _shapes(
        self,
        turn: Turn | Desk,
        values: torch.Tensor,
        residual: Cell | Nothing,
        chart: torch.Tensor,
        notes: _Notes | None,
    ) -> Shapes | None:
        """The parts' shapes, or None where something is not finite."""
        known = notes.old() if notes and turn.step % self.technique.refit else None
        if known is None or not known[:, 1].all():  # zeros have no shape that could hold
            known = _fitted(values, residual, self.technique.memory, chart)
        if known is not None:
            betas = np.array([generalized_normal.grid_beta(int(beta)) for beta in known[:, 0]])
            sizes = chart[:, 1].numpy() * (known[:, 1] > 0)
            turn.readings.setdefault("beta", Reading(float(betas @ sizes), float(sizes.sum())))
            if notes:
                notes.write(known)
        return known

    def _reply_residual(self, desk: Desk) -> Cell | Nothing:
        if not self.technique.memory:
            return Nothing()
        kept, span = desk.memory["reply residual"], _sliced(desk).owned(desk.shard)
        return Cell(kept.old[span], kept.new[span])

    def _noted(self, turn: Turn, charts: Sequence[torch.Tensor]) -> _Notes | None:
        """The shapes of all parts, which are kept in order of their places."""
        if self.technique.refit == 1:
            return None
        piece = _sliced(turn)
        before = sum(piece.noted(worker).start for worker in range(piece.shards))
        return _Notes(turn.memory["shapes"], before + torch.cat(list(charts))[:, 0].argsort().argsort())

    def _reply_noted(self, desk: Desk) -> _Notes | None:
        if self.technique.refit == 1:
            return None
        span = _sliced(desk).noted(desk.shard)
        return _Notes(desk.memory["reply shapes"], torch.arange(span.start, span.stop))


def _wider(_name: str, values: torch.Tensor, factor: float) -> None:
    """Shapes of values that are so many times as large: α is in steps of an octave's part, and 0 stands for zeros."""
    alphas = values.view(-1, KEPT)[:, 1]
    steps = round(generalized_normal.ALPHAS_PER_OCTAVE * math.log2(factor))
    alphas[alphas > 0] += steps


class _Notes(NamedTuple):
    """Shapes that hold for several steps, as rows of what is kept."""

    kept: Cell
    rows: torch.Tensor

    def old(self) -> Shapes:
        """Those of the last fit, zeros where there was none."""
        return self.kept.old.view(-1, KEPT)[self.rows.to(self.kept.old.device)].cpu().numpy().astype(np.int64)

    def write(self, shapes: Shapes) -> None:
        """They hold."""
        new = self.kept.new.view(-1, KEPT)
        new[self.rows.to(new.device)] = torch.from_numpy(shapes).to(new)


def _sliced(turn: Turn | Desk) -> SlicePiece:
    assert isinstance(turn.piece, SlicePiece)
    return turn.piece


def _fitted(
    values: torch.Tensor, residual: Cell | Nothing, memory: float, chart: torch.Tensor
) -> Shapes | None:
    """The parts' shapes from their moments, or None where these are not finite."""
    moments = torch.empty(len(chart), 2, dtype=torch.float64)
    kernels.gennorm_moments(values, residual.old, memory, chart, moments)
    means = (moments / chart[:, 1:]).numpy()
    return generalized_normal.fit_all(*means.T) if np.isfinite(means).all() else None


def _sealed(
    leveling: Leveling,
    symbols: torch.Tensor,
    counts: torch.Tensor,
    charts: Sequence[torch.Tensor],
    shapes: Shapes,
) -> list[torch.Tensor]:
    """A message for each chart, from the symbols of all of them."""
    messages, part, place = [], 0, 0
    for chart in charts:
        parts = slice(part, part + len(chart))
        spoken = int(chart[torch.from_numpy(shapes[parts, 1] > 0), 1].sum())
        messages.append(
            leveling.seal(symbols[place : place + spoken], counts[parts], chart[:, 1], shapes[parts])
        )
        part, place = parts.stop, place + spoken
    return messages


def _names(piece: SlicePiece, shard: int) -> str:
    """What the messages of a shard are about, for errors."""
    named = [piece.bucket.names[index] for index in piece.parts(shard)[:, 2].unique().tolist()]
    return " to ".join(dict.fromkeys([named[0], named[-1]])) if named else "nothing"
