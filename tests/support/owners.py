"""A technique whose aggregators keep a residual of the coordinates that they own, and a number for each slice."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from laconic.core import slices
from laconic.core.technique import Capability
from laconic.places.peers import Peers, Place


@dataclass(frozen=True)
class OwnerRounds:
    """Gradients travel up as they are; the mean comes down in bf16, and its owner keeps what rounding lost."""

    numel: int = slices.CHUNK
    place: Place = Peers()

    needs: ClassVar[Capability] = Capability.COMBINE
    remembers: ClassVar[tuple[str, ...]] = ()
    varies: ClassVar[bool] = True

    def keeps(self, worker, workers):
        seat = {"worker": worker, "workers": workers}
        return {"lost": partial(slices.owned, **seat), "steps": partial(slices.noted, **seat)}

    def cut(self, bucket, workers):
        return slices.slice_pieces(bucket, workers, numel=self.numel)

    def encode(self, turn, grad):
        piece = turn.piece
        return [_gather(piece.parts(k), grad).view(torch.uint8) for k in range(piece.shards)]

    def combine(self, turn, messages):
        lost, steps = turn.memory["lost"], turn.memory["steps"]
        owned, noted = turn.piece.owned(turn.worker), turn.piece.noted(turn.worker)
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
