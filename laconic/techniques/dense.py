"""The plain average, in fp32, bf16 or fp16 on the wire and added in fp32.

The identity among techniques: what DDP does by itself, here on the same path as all others, so that everything
else is measured against equal plumbing.

    encode   x = grad + residual; message = x in the wire's format; residual = x - message
    combine  the mean of the messages
    decode   the mean, in the gradient's own format

A few numbers go to everybody in one round instead of up and down in two, and everybody takes the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from laconic.core import checks
from laconic.core.place import Capability, Everybody, Messages, Route, Shards
from laconic.core.technique import Bucket, Desk, Piece, Scheme, Setting, Slot, Turn, even_pieces
from laconic.kernels import plain
from laconic.messages.seals import blank

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FEW_BYTES = 1 << 14
"""What everybody may hear of a piece at once."""

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Dense:
    """The average of all workers' gradients.

    A gradient no wider than `dtype` travels as it is. `error_feedback` keeps what rounding a worker's own gradient
    lost and adds it to the next one; the mean is rounded once more, and that is not kept.
    """

    dtype: str = "fp32"
    error_feedback: bool = False

    needs: ClassVar[Capability] = Capability.COMBINE
    reads: ClassVar[str] = "gradients"

    def __post_init__(self) -> None:
        if self.dtype not in FORMATS:
            raise ValueError(f"dtype {self.dtype!r} is not a wire format; use one of {', '.join(FORMATS)}")
        checks.flag("error_feedback", self.error_feedback)

    def bind(self, setting: Setting) -> DenseScheme:
        """Nothing is open but the number of workers."""
        return DenseScheme(self, setting.workers)


@dataclass(frozen=True)
class DenseScheme(Scheme):
    """The average among so many workers."""

    technique: Dense
    workers: int

    @property
    def memory(self) -> Mapping[str, Slot]:
        """The residual, where rounding leaves one."""
        return {"residual": Slot()} if self.technique.error_feedback else {}

    @property
    def routes(self) -> tuple[Route, ...]:
        """By shards, or a few numbers to everybody."""
        return (Shards(), Everybody(FEW_BYTES))

    def cut(self, bucket: Bucket, wire: int) -> Sequence[Piece]:
        """Even pieces, or one that goes to everybody."""
        itemsize = self._wire(bucket).itemsize
        if 0 < bucket.numel * itemsize * self.workers <= FEW_BYTES:
            return [Piece(bucket, 0, bucket.numel, 1, bucket.numel, Everybody(bucket.numel * itemsize))]
        return even_pieces(bucket, self.workers, width=wire // (itemsize * self.workers))

    def encode(self, turn: Turn, grad: torch.Tensor) -> Messages:
        """The gradient in the wire's format."""
        piece, wire = turn.piece, self._wire(turn.piece.bucket)
        if self.technique.error_feedback:
            residual = turn.memory["residual"]
            exact = grad + residual.old
            grad = exact.to(wire)
            torch.sub(exact, grad, out=residual.new)
        return written(grad, piece, wire)

    def combine(self, desk: Desk, messages: Messages) -> torch.Tensor:
        """The mean of the messages, rounded once."""
        return self._mean(desk.piece, messages)

    def decode(self, turn: Turn, replies: Messages, grad: torch.Tensor) -> None:
        """`grad` is the mean."""
        assert isinstance(replies, torch.Tensor)
        if isinstance(turn.piece.route, Everybody):
            replies = self._mean(turn.piece, replies)
        values = replies.view(self._wire(turn.piece.bucket))
        if turn.piece.padding:
            grad.copy_(values.flatten()[: turn.piece.numel])
        else:
            grad.view_as(values).copy_(values)

    def _mean(self, piece: Piece, messages: Messages) -> torch.Tensor:
        assert isinstance(messages, torch.Tensor)
        values = messages.view(self._wire(piece.bucket))
        mean = blank(messages, messages.shape[1])
        plain.average(values, mean.view(values.dtype))
        return mean

    def _wire(self, bucket: Bucket) -> torch.dtype:
        wire = FORMATS[self.technique.dtype]
        return wire if wire.itemsize < bucket.dtype.itemsize else bucket.dtype


def written(values: torch.Tensor, piece: Piece, wire: torch.dtype) -> torch.Tensor:
    """A row of the values for each shard, in the wire's format, with zeros behind the last of them."""
    rows = blank(values, piece.shards, piece.width * wire.itemsize)
    whole, rest = divmod(piece.numel, piece.width)
    numbers, split = rows.view(wire), piece.numel - rest
    numbers[:whole].copy_(values[:split].view(whole, piece.width))
    if piece.padding:
        numbers[whole:].zero_()
        numbers[whole, :rest].copy_(values[split:])
    return rows
