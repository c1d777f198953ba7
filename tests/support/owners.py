"""A technique whose aggregators keep a residual of the coordinates that they own, and a number for each slice."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from laconic.core import slices
from laconic.core.place import Capability, Shards
from laconic.core.technique import Scheme, Side, Slot


@dataclass(frozen=True)
class OwnerRounds:
    """Gradients travel up as they are; the mean comes down in bf16, and its owner keeps what rounding lost."""

    numel: int = slices.CHUNK

    needs: ClassVar[Capability] = Capability.COMBINE
    reads: ClassVar[str] = "gradients"

    def bind(self, setting):
        return OwnerScheme(self, setting.workers)


@dataclass(frozen=True)
class OwnerScheme(Scheme):
    technique: OwnerRounds
    workers: int

    @property
    def memory(self):
        counts = {"lost": slices.owned, "steps": slices.noted}
        return {
            name: Slot(
                Side.AGGREGATOR, lambda n, numel, worker, count=count: count(n, numel, worker, self.workers)
            )
            for name, count in counts.items()
        }

    @property
    def routes(self):
        return (Shards(vary=True),)

    def cut(self, bucket, wire):
        return slices.slice_pieces(bucket, self.workers, numel=self.technique.numel)

    def encode(self, turn, grad):
        piece = turn.piece
        return [_gather(piece.parts(k), grad).view(torch.uint8) for k in range(piece.shards)]

    def combine(self, desk, messages):
        lost, steps = desk.memory["lost"], desk.memory["steps"]
        owned, noted = desk.piece.owned(desk.shard), desk.piece.noted(desk.shard)
        mean = torch.stack([message.view(torch.float32) for message in messages]).mean(0)
        exact = mean + lost.old[owned]
        reply = exact.to(torch.bfloat16)
        torch.sub(exact, reply, out=lost.new[owned])
        torch.add(steps.old[noted], 1, out=steps.new[noted])
        return reply.view(torch.uint8)

    def decode(self, turn, replies, grad):
        for k, reply in enumerate(replies):
            numels = turn.piece.parts(k)[:, 1].tolist()
            values = reply.view(torch.bfloat16).split(numels)
            for (start, numel, *_), value in zip(turn.piece.parts(k).tolist(), values, strict=True):
                grad[start : start + numel] = value


def _gather(parts, grad):
    inside = [grad[start : start + numel] for start, numel, *_ in parts.tolist()]
    return torch.cat([grad[:0], *inside])
