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

from laconic.core.technique import PIECE_BYTES, Bucket, Capability, Gather, Messages, Piece, Turn, even_pieces
from laconic.kernels import plain
from laconic.places.peers import Peers, Place

if TYPE_CHECKING:
    from collections.abc import Sequence

FEW_BYTES = 1 << 14
"""What everybody may hear of a piece at once."""

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Few(Piece):
    """Few enough numbers that everybody may have everybody's; `message` is their bytes."""

    message: int

    @property
    def gather(self) -> Gather:
        """To everybody."""
        return Gather(self.message)


@dataclass(frozen=True)
class Dense:
    """The average of all workers' gradients.

    A gradient no wider than `dtype` travels as it is. `error_feedback` keeps what rounding a worker's own gradient
    lost and adds it to the next one; the mean is rounded once more, and that is not kept.
    """

    dtype: str = "fp32"
    error_feedback: bool = False
    place: Place = Peers()

    needs: ClassVar[Capability] = Capability.COMBINE
    varies: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.dtype not in FORMATS:
            raise ValueError(f"dtype {self.dtype!r} is not a wire format; use one of {', '.join(FORMATS)}")

    @property
    def remembers(self) -> tuple[str, ...]:
        """The residual, where rounding leaves one."""
        return ("residual",) if self.error_feedback else ()

    def cut(self, bucket: Bucket, workers: int) -> Sequence[Piece]:
        """Pieces of about half a mebibyte on the wire, or one that goes to everybody."""
        if 0 < bucket.numel * self._wire(bucket).itemsize * workers <= FEW_BYTES:
            return [Few(bucket, 0, bucket.numel, 1, bucket.numel, bucket.numel * self._wire(bucket).itemsize)]
        return even_pieces(bucket, workers, width=PIECE_BYTES // (self._wire(bucket).itemsize * workers))

    def encode(self, turn: Turn, grad: torch.Tensor) -> Messages:
        """The gradient in the wire's format; it shares storage with `grad` where nothing has to change."""
        piece, wire = turn.piece, self._wire(turn.piece.bucket)
        if self.error_feedback:
            residual = turn.memory["residual"]
            exact = grad + residual.old
            grad = exact.to(wire)
            torch.sub(exact, grad, out=residual.new)
        values = (
            torch.nn.functional.pad(grad.to(wire), (0, piece.padding)) if piece.padding else grad.to(wire)
        )
        return values.view(piece.shards, piece.width).view(torch.uint8)

    def combine(self, turn: Turn, messages: Messages) -> torch.Tensor:
        """The mean of the messages, rounded once."""
        assert isinstance(messages, torch.Tensor)
        values = messages.view(self._wire(turn.piece.bucket))
        mean = torch.empty_like(values[0])
        plain.average(values, mean)
        return mean.view(torch.uint8)

    def decode(self, turn: Turn, replies: Messages, grad: torch.Tensor) -> None:
        """`grad` is the mean."""
        assert isinstance(replies, torch.Tensor)
        if isinstance(turn.piece, Few):
            replies = self.combine(turn, replies)
        grad.copy_(replies.view(self._wire(turn.piece.bucket)).flatten()[: turn.piece.numel])

    def _wire(self, bucket: Bucket) -> torch.dtype:
        wire = FORMATS[self.dtype]
        return wire if wire.itemsize < bucket.dtype.itemsize else bucket.dtype
