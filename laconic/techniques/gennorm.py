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

Both ends build equal codes from five bytes a tensor, so no table travels (gennorm.py), and every message has a
checksum. Who aggregates a coordinate is a matter of its parameter alone (slices.py), so an aggregator's residual is
of the same coordinates whatever DDP's buckets are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch

from laconic.core import checks, slices
from laconic.core.slices import SlicePiece, slice_pieces
from laconic.core.technique import PIECE_BYTES, Bucket, Capability, Memory, Messages, Nothing, Reading, Turn
from laconic.kernels import coding
from laconic.kernels import gennorm as kernels
from laconic.messages.gennorm import Leveling, Shapes
from laconic.numerics import generalized_normal, level_codes
from laconic.numerics.minifloat import FORMATS
from laconic.places.peers import Peers, Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from laconic.core.technique import Count, Piece

KEPT = 2
"""The numbers that are kept of a part from one fit to the next."""


@dataclass(frozen=True)
class GenNorm:
    """Levels of a minifloat up and down, close to their entropy.

    `format` is "fp4" (11 levels), "e5m2" or "e4m3". `memory` is what is kept of everything that levels do not say, on
    workers and on aggregators; CO3 has 0.7. `scale` is "fitted", or a factor from gradients to levels. `coder`
    "rans" goes below one bit where most levels are zero, as Huffman codes cannot. Scales are fitted every `refit`
    steps. Nothing is random: `seed` changes nothing, and is there for those who try one technique after the other.
    """

    format: str = "fp4"
    memory: float = 1.0
    scale: float | str = "fitted"
    coder: str = "huffman"
    refit: int = 1
    seed: int = 0
    place: Place = Peers()

    needs: ClassVar[Capability] = Capability.COMBINE
    varies: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.choice("format", self.format, *FORMATS)
        checks.choice("coder", self.coder, *level_codes.CODERS)
        if not 0 <= checks.number("memory", self.memory) <= 1:
            raise ValueError(f"memory is {self.memory}; use 0, which forgets, to 1, which keeps everything")
        if isinstance(self.scale, str):
            checks.choice("scale", self.scale, "fitted")
        elif not 1e-30 < checks.number("scale", self.scale) < 1e30:
            raise ValueError(f"scale is {self.scale}; use 'fitted', or a factor above 0")
        if isinstance(self.refit, bool) or not isinstance(self.refit, int) or self.refit < 1:
            raise ValueError(f"refit is {self.refit!r}; use a number of steps, 1 or more")
        checks.seed(self.seed)

    @property
    def remembers(self) -> tuple[str, ...]:
        """What levels did not say, unless it is forgotten."""
        return ("residual",) if self.memory else ()

    def keeps(self, worker: int, workers: int) -> Mapping[str, Count]:
        """An aggregator's residual; and shapes, where they hold for several steps."""
        residual: dict[str, Count] = {
            "reply residual": lambda name, numel: slices.owned(name, numel, worker, workers)
        }
        shapes: dict[str, Count] = {
            "shapes": lambda name, numel: KEPT * len(slices.slices(name, numel, workers)),
            "reply shapes": lambda name, numel: KEPT * slices.noted(name, numel, worker, workers),
        }
        return (residual if self.memory else {}) | (shapes if self.refit > 1 else {})

    def cut(self, bucket: Bucket, workers: int) -> Sequence[Piece]:
        """Pieces of whole chunks of parameters: about two million levels of four bits, or one of eight."""
        numel = 2 * PIECE_BYTES * 8 // kernels.width(FORMATS[self.format])
        return slice_pieces(bucket, workers, numel=numel) if bucket.numel else []

    def encode(self, turn: Turn, grad: torch.Tensor) -> Messages:
        """The levels of every shard."""
        piece = _sliced(turn)
        charts = [piece.parts(worker)[:, :2] for worker in range(piece.shards)]
        residual = turn.memory["residual"] if self.memory else Nothing()
        messages = self._write(turn, grad, residual, charts, self._noted(turn, charts))
        turn.readings["bits up"] = Reading(8.0 * sum(map(len, messages)), piece.numel)
        return messages

    def combine(self, turn: Turn, messages: Messages) -> torch.Tensor:
        """The levels of the mean."""
        piece, device = _sliced(turn), messages[0].device
        sizes = piece.parts(turn.worker)[:, 1]
        chart = torch.stack([sizes.cumsum(0) - sizes, sizes], 1)
        residual = self._reply_residual(turn)
        place = device if residual.old is None else residual.old.device
        mean = torch.empty(int(sizes.sum()), dtype=torch.float32, device=place)
        if not self._read(turn, list(messages), range(len(messages)), turn.worker, chart, mean):
            return coding.lost().to(device)
        (reply,) = self._write(turn, mean, residual, [chart], self._reply_noted(turn))
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

    @property
    def _leveling(self) -> Leveling:
        return Leveling(self.format, self.coder, None if isinstance(self.scale, str) else self.scale)

    def _write(
        self,
        turn: Turn,
        values: torch.Tensor,
        residual: Memory | Nothing,
        charts: Sequence[torch.Tensor],
        notes: _Notes | None,
    ) -> list[torch.Tensor]:
        """A message for each chart, which has its parts, (start, numel)."""
        chart = torch.cat(list(charts))
        shapes = self._shapes(turn, values, residual, chart, notes)
        if shapes is None:
            return [coding.lost()] * len(charts)
        symbols = torch.empty(int(chart[:, 1].sum()), dtype=torch.uint8, pin_memory=values.is_cuda)
        counts = torch.empty(len(chart), 1 << 8, dtype=torch.int32)
        finite = kernels.gennorm_quantize(
            values,
            residual.old,
            self.memory,
            chart,
            self._leveling.scales(shapes),
            self.format,
            residual.new,
            symbols,
            counts,
        )
        if not finite:
            return [coding.lost()] * len(charts)
        return _sealed(self._leveling, symbols, counts, charts, shapes)

    def _read(
        self,
        turn: Turn,
        messages: Sequence[torch.Tensor],
        senders: Sequence[int],
        shard: int,
        chart: torch.Tensor,
        out: torch.Tensor,
    ) -> bool:
        """Whether no message is lost; if so, the shard's parts of `out` are their mean."""
        try:
            return self._leveling.average([message.cpu() for message in messages], chart, out)
        except ValueError as error:
            *_, number, what = str(error).split(" ", 5)
            about = _names(_sliced(turn), shard)
            raise ValueError(f"the message of worker {senders[int(number)]} about {about} {what}") from None

    def _shapes(
        self,
        turn: Turn,
        values: torch.Tensor,
        residual: Memory | Nothing,
        chart: torch.Tensor,
        notes: _Notes | None,
    ) -> Shapes | None:
        """The parts' shapes, or None where something is not finite."""
        known = notes.old() if notes and turn.step % self.refit else None
        if known is None or not known[:, 1].all():  # zeros have no shape that could hold
            known = _fitted(values, residual, self.memory, chart)
        if known is not None:
            betas = np.array([generalized_normal.grid_beta(int(beta)) for beta in known[:, 0]])
            sizes = chart[:, 1].numpy() * (known[:, 1] > 0)
            turn.readings.setdefault("beta", Reading(float(betas @ sizes), float(sizes.sum())))
            if notes:
                notes.write(known)
        return known

    def _reply_residual(self, turn: Turn) -> Memory | Nothing:
        if not self.memory:
            return Nothing()
        kept, span = turn.memory["reply residual"], _sliced(turn).owned(turn.worker)
        return Memory(kept.old[span], kept.new[span])

    def _noted(self, turn: Turn, charts: Sequence[torch.Tensor]) -> _Notes | None:
        """The shapes of all parts, which are kept in order of their places."""
        if self.refit == 1:
            return None
        piece = _sliced(turn)
        before = sum(piece.noted(worker).start for worker in range(piece.shards))
        return _Notes(turn.memory["shapes"], before + torch.cat(list(charts))[:, 0].argsort().argsort())

    def _reply_noted(self, turn: Turn) -> _Notes | None:
        if self.refit == 1:
            return None
        span = _sliced(turn).noted(turn.worker)
        return _Notes(turn.memory["reply shapes"], torch.arange(span.start, span.stop))


class _Notes(NamedTuple):
    """Shapes that hold for several steps, as rows of what is kept."""

    kept: Memory
    rows: torch.Tensor

    def old(self) -> Shapes:
        """Those of the last fit, zeros where there was none."""
        return self.kept.old.view(-1, KEPT)[self.rows.to(self.kept.old.device)].cpu().numpy().astype(np.int64)

    def write(self, shapes: Shapes) -> None:
        """They hold."""
        new = self.kept.new.view(-1, KEPT)
        new[self.rows.to(new.device)] = torch.from_numpy(shapes).to(new)


def _sliced(turn: Turn) -> SlicePiece:
    assert isinstance(turn.piece, SlicePiece)
    return turn.piece


def _fitted(
    values: torch.Tensor, residual: Memory | Nothing, memory: float, chart: torch.Tensor
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
