"""All workers of a technique in one process: the exchange as it is, without a network.

Tests, the planner and figures rehearse with it. Every worker has its memory and its meter, and goes through the same
journeys as among real workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from laconic.core.memory import Memory
from laconic.core.meter import Meter
from laconic.core.place import Traffic
from laconic.core.technique import Bucket, Desk, Piece, Setting, Turn
from laconic.engine.journey import Load, Vehicle
from laconic.engine.reducer import wire_for
from laconic.layers.loads import LayerTurn
from laconic.places.in_process import InProcess, together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from laconic.core.technique import Technique
    from laconic.layers.taps import Rows

CPU = torch.device("cpu")


class Rehearsal:
    """The workers of a setting, of whom `present` take part; see `InProcess` for the others, and for `damage`."""

    def __init__(
        self,
        technique: Technique,
        setting: Setting,
        device: torch.device = CPU,
        present: int | None = None,
        damage: Callable[[list[Any]], list[Any]] | None = None,
    ) -> None:
        self.scheme, self.step = technique.bind(setting), 0
        traffic = Traffic(self.scheme.routes, self.scheme.surveys)
        self.place = InProcess(setting.workers, device, traffic, present, damage)
        self.wire = wire_for(self.place.posts[0].channels)
        self.meters = [Meter(on_stream=device.type == "cuda") for _ in self.place.posts]
        self.memories = [Memory(self.scheme.memory, post.seat.worker) for post in self.place.posts]
        self._vehicles = [
            Vehicle(self.scheme, post, meter, device)
            for post, meter in zip(self.place.posts, self.meters, strict=True)
        ]
        self._device = device
        self.loads: list[list[Load]] = []
        """Of the last step: of each piece, one a worker."""

    def reduce(self, bucket: Bucket, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What each worker has after one step; the gradients are as they were."""
        results = [grad.clone() for grad in gradients]
        self.loads = [
            [
                self._load(worker, Turn, piece, result[piece.start : piece.stop])
                for worker, result in enumerate(results)
            ]
            for piece in self.scheme.cut(bucket, self.wire)
        ]
        self._take_step()
        return results

    def share(self, piece: Piece, rows: Sequence[Rows]) -> list[LayerTurn]:
        """Each worker's turn after one step of a layer, with its products."""
        nothing = torch.empty(0, device=self._device)
        loads = [self._load(worker, LayerTurn, piece, nothing) for worker in range(len(rows))]
        turns = [load.turn for load in loads if isinstance(load.turn, LayerTurn)]
        for turn, own in zip(turns, rows, strict=True):
            turn.rows = own
        self.loads = [loads]
        self._take_step()
        return turns

    def remembered(self, worker: int, bucket: Bucket) -> dict[str, torch.Tensor]:
        """What the worker has committed, flat, by slot."""
        return {name: cell.old for name, cell in self.memories[worker].of(bucket, self._device).items()}

    def _load(self, worker: int, kind: type[Turn], piece: Piece, grad: torch.Tensor) -> Load:
        memory = self.memories[worker]
        own, theirs = memory.part(memory.of(piece.bucket, self._device), piece)
        turn, desk = kind(piece, self.step, worker, own), Desk(piece, self.step, worker, theirs)
        return Load(turn, desk, grad)

    def _take_step(self) -> None:
        for loads in self.loads:
            journeys = [vehicle.travel([load]) for vehicle, load in zip(self._vehicles, loads, strict=True)]
            together(journeys, lambda worker, transfer: self.meters[worker].count(transfer))
        for memory in self.memories:
            memory.commit()
        self.step += 1
