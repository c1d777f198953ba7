"""What a scheme remembers between steps, keyed by parameter name.

DDP rebuilds its buckets after the first step and a resumed job may bucket differently, so a bucket's flat
tensors are only a home for its parameters' values; a parameter that turns up in another bucket moves there. Most
memory has one value a coordinate; of other slots, the scheme says how many values a parameter has.

Every flat tensor exists twice: a step reads the committed one and writes the other. `commit` swaps them, so a
step with a non-finite result leaves no trace: it is simply not committed. Tallies are small, belong to the worker as
an aggregator, and add up what a step's pieces say.

Gradients may be those of a loss that was multiplied by a scale, which changes in the course of training. What is kept
is in the scale of the last step, and `rescale` turns it into another's.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch

from laconic.core.technique import Cell, Side

if TYPE_CHECKING:
    from laconic.core.technique import Bucket, Count, Piece, Slot

Values = dict[str, dict[str, torch.Tensor]]
"""Slot, then parameter name, then its values as a flat tensor."""


class Part(NamedTuple):
    """A piece's memory: the worker's, of slots with one value a coordinate its span; and the aggregator's."""

    worker: Mapping[str, Cell]
    aggregator: Mapping[str, Cell]


class Memory:
    """All that one worker remembers, as a worker and as an aggregator."""

    def __init__(self, slots: Mapping[str, Slot], worker: int) -> None:
        self._worker = worker
        self.scale: float | None = None
        """Of the gradients by which all this was kept, where it is known."""
        self._slots = {name: slot for name, slot in slots.items() if slot.tally is None}
        self._fades = {name: slot.fades for name, slot in slots.items() if slot.tally is not None}
        self._tallies = {
            name: Cell(*torch.zeros(2, *slot.tally, dtype=torch.float64))
            for name, slot in slots.items()
            if slot.tally is not None
        }
        self._flat: dict[Bucket, dict[str, Cell]] = {}
        self._home: dict[str, tuple[Bucket, dict[str, slice]]] = {}
        self._loaded: Values = {}
        self._written: set[Bucket] = set()

    def __bool__(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self._slots or self._tallies)

    def rebind(self, slots: Mapping[str, Slot]) -> None:
        """Parameters have as many values as these slots say from now on; what had as many before is kept."""
        self._loaded = self.values()
        self._flat.clear()
        self._home.clear()
        self._written.clear()
        self._slots = {name: slot for name, slot in slots.items() if slot.tally is None}

    def of(
        self, bucket: Bucket, device: torch.device, carrier: torch.device | None = None
    ) -> dict[str, Cell]:
        """The bucket's memory, to be read and written in this step; the aggregator's lies on `carrier`, if given."""
        if not self._slots or not bucket.names:
            return {}
        if bucket not in self._flat:
            self._move_in(bucket, device, carrier or device)
        self._written.add(bucket)
        return self._flat[bucket]

    def part(self, memory: Mapping[str, Cell], piece: Piece) -> Part:
        """Of the memory of a piece's bucket what is the piece's."""
        span = slice(piece.start, piece.stop)
        sides: dict[Side, dict[str, Cell]] = {side: {} for side in Side}
        for name, cell in memory.items():
            slot = self._slots[name]
            sides[slot.side][name] = cell if slot.count else Cell(cell.old[span], cell.new[span])
        return Part(sides[Side.WORKER], sides[Side.AGGREGATOR] | self._tallies)

    def commit(self) -> None:
        """What was written since the last commit holds."""
        for bucket in self._written:
            self._flat[bucket] = {name: Cell(new, old) for name, (old, new) in self._flat[bucket].items()}
        for name, (old, new) in self._tallies.items():
            old.mul_(self._fades[name]).add_(new)
        self.rollback()

    def rollback(self) -> None:
        """What was written since the last commit is forgotten."""
        self._written.clear()
        for tally in self._tallies.values():
            tally.new.zero_()

    def rescale(self, scale: float | None) -> None:
        """What is committed is of gradients with this scale, if it and the one before are known."""
        if scale and self.scale and scale != self.scale:
            self._loaded = _copied(self._loaded)  # they are the state's
            for name in self._names():
                for slot in self._slots:
                    if (value := self._value(slot, name)) is not None and len(value):
                        self._slots[slot].rescale(name, value, scale / self.scale)
        self.scale = scale or self.scale

    def values(self) -> Values:
        """A copy of all that is committed, but for tallies."""
        return {
            slot: {
                name: value.clone()
                for name in self._names()
                if (value := self._value(slot, name)) is not None
            }
            for slot in self._slots
        }

    def tallies(self) -> dict[str, torch.Tensor]:
        """A copy of all tallies that are committed."""
        return {name: tally.old.clone() for name, tally in self._tallies.items()}

    def check(self, values: Mapping[str, Mapping[str, torch.Tensor]], sizes: Mapping[str, int]) -> None:
        """`values` are of a model with parameters of these sizes, where they are of a slot that is known here."""
        for slot in self._slots:
            for name, value in values.get(slot, {}).items():
                _check_size(
                    name, value, self._count(slot)(name, sizes[name], self._worker) if name in sizes else None
                )

    def load(
        self,
        values: Mapping[str, Mapping[str, torch.Tensor]],
        tallies: Mapping[str, torch.Tensor] | None = None,
        scale: float | None = None,
    ) -> None:
        """These hold from the next step on, instead of what is here; tallies that are not named begin anew."""
        self.scale = scale
        self._flat.clear()
        self._home.clear()
        self._written.clear()
        self._loaded = {slot: dict(by_name) for slot, by_name in values.items()}
        for name, (old, _) in self._tallies.items():
            old.copy_((tallies or {}).get(name, torch.zeros_like(old)))

    def _count(self, slot: str) -> Count:
        return self._slots[slot].count or _all

    def _move_in(self, bucket: Bucket, device: torch.device, carrier: torch.device) -> None:
        spans = {slot: self._spans(bucket, slot) for slot in self._slots}
        where = {Side.WORKER: device, Side.AGGREGATOR: carrier}
        self._flat[bucket] = {
            slot: self._moved(slot, by_name, where[self._slots[slot].side]) for slot, by_name in spans.items()
        }
        for name in bucket.names:
            self._home[name] = (bucket, {slot: by_name[name] for slot, by_name in spans.items()})
        inhabited = {home for home, _ in self._home.values()}
        self._flat = {home: memory for home, memory in self._flat.items() if home in inhabited}

    def _moved(self, slot: str, spans: Mapping[str, slice], device: torch.device) -> Cell:
        """A bucket's memory with what its parameters had elsewhere."""
        size = max((span.stop for span in spans.values()), default=0)
        memory = Cell(*torch.zeros(2, size, dtype=torch.float32, device=device))
        for name, span in spans.items():
            value = self._value(slot, name)
            if value is not None and len(value):  # what was empty so far may have become known
                _check_size(name, value, span.stop - span.start)
                memory.old[span] = value
            self._loaded.get(slot, {}).pop(name, None)
        return memory

    def _spans(self, bucket: Bucket, slot: str) -> dict[str, slice]:
        """Where each parameter's values lie in a bucket's flat tensor."""
        count = self._count(slot)
        sizes = [
            count(name, size, self._worker) for name, size in zip(bucket.names, bucket.sizes, strict=True)
        ]
        stops = itertools.accumulate(sizes)
        return {
            name: slice(stop - size, stop)
            for name, stop, size in zip(bucket.names, stops, sizes, strict=True)
        }

    def _names(self) -> set[str]:
        return set(self._home).union(*self._loaded.values())

    def _value(self, slot: str, name: str) -> torch.Tensor | None:
        if name in self._home:
            bucket, spans = self._home[name]
            return self._flat[bucket][slot].old[spans[slot]]
        return self._loaded.get(slot, {}).get(name)


def _copied(values: Values) -> Values:
    return {slot: {name: value.clone() for name, value in own.items()} for slot, own in values.items()}


def _check_size(name: str, value: torch.Tensor, needed: int | None) -> None:
    if value.numel() != needed:
        needs = "has no such parameter" if needed is None else f"needs {needed}"
        raise ValueError(
            f"the checkpoint has {value.numel()} values for {name}, but the model {needs}; "
            "load one of the same model"
        )


def _all(_name: str, numel: int, _worker: int) -> int:
    return numel
