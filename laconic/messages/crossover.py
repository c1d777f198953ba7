"""Parameters as bytes, for peers that have nearly the same: of a number of quanta only the low eight bits travel.

Workers that mix stay close to each other, so whoever hears k mod 256 knows k: it is the one nearest to its own.

    sender     k = round(x / q), of which it sends the low byte, and q for every block
    receiver   k' = round(x' / q), d = k - k' modulo 256 from -128 to 127;  then k = k' + d

x' is what the receiver itself has sent, as its own receiver has it, and it changes by half the difference:

    x ← x + ½ (q k - x')              everybody's x' is added once and taken off once, so that the mean stays

q is as small as it may be: a block's numbers must not be farther from a peer's than 127 quanta. How far they are is
known from the last mixing, and from how far the block has moved since; the range is `SAFETY` times the larger. If a
difference comes out near its end, as most do that are beyond it, the block is left as it is, and has a wider range
from there on. Left as it is, too, is a block whose quantum is no number above zero, such as one of a worker whose
parameters are none, or so large that a range of it would be none. Nothing is known before the first mixing, which
travels as float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from laconic.numerics.ans import require

BLOCK = 512
"""Numbers that have one quantum."""
SAFETY = 4.0
"""How many times the largest difference known the range is."""
NEAR = 100
"""Quanta beyond which a difference may have been another."""
LARGEST = 2.0**118
"""Of a quantum: a range of it, doubled, is finite."""
EXACT = 2.0**-21
"""Of a block's largest number, the least quantum: k must be a whole number in float32."""


class Coded(NamedTuple):
    """Bytes [blocks, BLOCK], and what a block's quantum is."""

    codes: Tensor
    quanta: Tensor

    def message(self) -> Tensor:
        """As bytes, the quanta first."""
        return torch.cat([self.quanta.view(torch.uint8).flatten(), self.codes.view(torch.uint8).flatten()])

    @classmethod
    def parse(cls, message: Tensor) -> Coded:
        """What `message` was made of."""
        blocks, left = divmod(len(message), BLOCK + 4)
        require(not left, "has no whole blocks")
        quanta, codes = message.split([4 * blocks, BLOCK * blocks])
        return cls(codes.view(torch.int8).view(blocks, BLOCK), quanta.view(torch.float32).view(blocks, 1))


class Modular:
    """What a worker knows of blocks [blocks, BLOCK]: how far they are from peers', and where they were when sent."""

    def __init__(self, before: Tensor, apart: Tensor) -> None:
        self.before, self.apart = before, apart

    @classmethod
    def after(cls, own: Tensor, heard: Tensor) -> Modular:
        """After a mixing in which both were seen as they are."""
        return cls(own.clone(), largest(heard - own))

    def encode(self, values: Tensor, span: slice = slice(None)) -> tuple[Coded, Tensor]:
        """What to send of `values`, the blocks of `span`, and the values as the receiver has them."""
        before = self.before[span]
        moved = largest(torch.sub(values, before, out=before))
        before.copy_(values)
        known = torch.maximum(self.apart[span], moved)
        quanta = torch.maximum(known * (SAFETY / 127), EXACT * largest(values))
        quanta = torch.where(quanta == 0, torch.ones_like(quanta), quanta)
        whole = (values / quanta).round_()
        return Coded(_low_byte(whole), quanta), whole.mul_(quanta)

    def decode(self, span: slice, sent: Tensor, heard: Coded) -> tuple[Tensor, Tensor]:
        """What to add to the blocks of `span`, and which of them could be read; to others nothing is added.

        `sent` are these blocks as receivers have them.
        """
        sound = (heard.quanta > 0) & (heard.quanta <= LARGEST)
        quanta = torch.where(sound, heard.quanta, 1.0)
        own = (sent / quanta).round_()
        ahead = heard.codes.sub(_low_byte(own))  # wraps around
        low, high = torch.aminmax(ahead, dim=1, keepdim=True)
        farthest = torch.maximum(-low.to(torch.int16), high.to(torch.int16))
        change = own.add_(ahead).mul_(quanta).sub_(sent).mul_(0.5)
        readable = sound & (farthest <= NEAR) & largest(change).isfinite()
        seen, apart = farthest * quanta, self.apart[span]
        wider = torch.where(sound, 2 * torch.maximum(apart, seen), apart)
        self.apart[span] = torch.where(readable, seen, wider)
        return torch.where(readable, change, 0.0), readable


def largest(blocks: Tensor) -> Tensor:
    """The largest magnitude of every block."""
    low, high = torch.aminmax(blocks, dim=1, keepdim=True)
    return torch.maximum(-low, high)


def _low_byte(whole: Tensor) -> Tensor:
    return whole.to(torch.int32).to(torch.int8)
