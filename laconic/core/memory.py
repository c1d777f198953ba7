"""What a technique remembers between steps, keyed by parameter name.

DDP rebuilds its buckets after the first step and a resumed job may bucket differently, so a bucket's flat
tensors are only a home for its parameters' values; a parameter that turns up in another bucket moves there. Most
memory has one value a coordinate; of what an aggregator keeps or a worker holds, the technique says how many values
a parameter has.

Every flat tensor exists twice: a step reads the committed one and writes the other. `commit` swaps them, so a
step with a non-finite result leaves no trace: it is simply not committed. Tallies are small, belong to the worker as
an aggregator, and add up what a step's pieces say.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from laconic.core.technique import Holder, Keeper, Memory, Tallier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from laconic.core.technique import Bucket, Count, Piece, Tally, Technique

Values = dict[str, dict[str, torch.Tensor]]
"""Kind of memory, then parameter name, then its values as a flat tensor."""


class State:
    """The memory of one attachment: kinds with one value a coordinate, kinds that are kept or held, and tallies."""

    def __init__(
        self,
        kinds: Sequence[str],
        kept: Mapping[str, Count] | None = None,
        tallies: Mapping[str, Tally] | None = None,
        held: Mapping[str, Count] | None = None,
    ) -> None:
        self._kept = frozenset(kept or {})
        self._whole = {**(kept or {}), **(held or {})}
        self._counts = {**dict.fromkeys(kinds, _all), **self._whole}
        named = len(kinds) + len(self._kept) + len(held or {})
        assert len(self._counts) == named, "a kind is either remembered or kept or held"
        self._fades = {name: tally.fades for name, tally in (tallies or {}).items()}
        self.tallies = {
            name: Memory(*torch.zeros(2, *tally.shape, dtype=torch.float64))
            for name, tally in (tallies or {}).items()
        }
        self._flat: dict[Bucket, dict[str, Memory]] = {}
        self._home: dict[str, tuple[Bucket, dict[str, slice]]] = {}
        self._loaded: Values = {}
        self._written: set[Bucket] = set()

    @property
    def remembers(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self._counts or self.tallies)

    @classmethod
    def of(cls, technique: Technique, worker: int, workers: int) -> State:
        """All that `technique` needs on one worker, at zero."""
        kept = technique.keeps(worker, workers) if isinstance(technique, Keeper) else {}
        tallies = technique.tallies(workers) if isinstance(technique, Tallier) else {}
        held = technique.holds() if isinstance(technique, Holder) else {}
        return cls(technique.remembers, kept, tallies, held)

    def memory(
        self, bucket: Bucket, device: torch.device, carrier: torch.device | None = None
    ) -> dict[str, Memory]:
        """The bucket's memory, to be read and written in this step; what is kept lies on `carrier`, if given."""
        if not self._counts:
            return {}
        if bucket not in self._flat or self._has_grown(bucket):
            self._settle(bucket, device, carrier or device)
        self._written.add(bucket)
        return self._flat[bucket]

    def part(self, memory: Mapping[str, Memory], piece: Piece) -> dict[str, Memory]:
        """Of the memory of a piece's bucket the piece's span, and all that is kept or held."""
        span = slice(piece.start, piece.stop)
        return {
            kind: flat if kind in self._whole else Memory(flat.old[span], flat.new[span])
            for kind, flat in memory.items()
        }

    def commit(self) -> None:
        """What was written since the last commit holds."""
        for bucket in self._written:
            self._flat[bucket] = {kind: Memory(new, old) for kind, (old, new) in self._flat[bucket].items()}
        for name, (old, new) in self.tallies.items():
            old.mul_(self._fades[name]).add_(new)
        self.rollback()

    def rollback(self) -> None:
        """What was written since the last commit is forgotten."""
        self._written.clear()
        for tally in self.tallies.values():
            tally.new.zero_()

    def values(self) -> Values:
        """A copy of all that is committed."""
        return {
            kind: {
                name: value.clone()
                for name in self._names()
                if (value := self._value(kind, name)) is not None
            }
            for kind in self._counts
        }

    def check(self, values: Mapping[str, Mapping[str, torch.Tensor]], sizes: Mapping[str, int]) -> None:
        """`values` are of a model with parameters of these sizes, where they are of a kind that is known here."""
        for kind, count in self._counts.items():
            for name, value in values.get(kind, {}).items():
                _check_size(name, value, count(name, sizes[name]) if name in sizes else None)

    def load(self, values: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """`values` hold from the next step on, instead of what is here."""
        self._flat.clear()
        self._home.clear()
        self._written.clear()
        self._loaded = {kind: dict(by_name) for kind, by_name in values.items()}

    def load_tallies(self, values: Mapping[str, torch.Tensor]) -> None:
        """`values` hold from the next step on; what they do not name begins anew."""
        for name, (old, _) in self.tallies.items():
            old.copy_(values.get(name, torch.zeros_like(old)))

    def _settle(self, bucket: Bucket, device: torch.device, carrier: torch.device) -> None:
        spans = {kind: _spans(bucket, count) for kind, count in self._counts.items()}
        self._flat[bucket] = {
            kind: self._moved(kind, by_name, carrier if kind in self._kept else device)
            for kind, by_name in spans.items()
        }
        for name in bucket.names:
            self._home[name] = (bucket, {kind: by_name[name] for kind, by_name in spans.items()})
        inhabited = {home for home, _ in self._home.values()}
        self._flat = {home: memory for home, memory in self._flat.items() if home in inhabited}

    def _has_grown(self, bucket: Bucket) -> bool:
        """Whether a count that was not known when the bucket settled is known now."""
        sizes = {
            kind: sum(count(name, size) for name, size in zip(bucket.names, bucket.sizes, strict=True))
            for kind, count in self._whole.items()
        }
        return any(len(self._flat[bucket][kind].old) != size for kind, size in sizes.items())

    def _moved(self, kind: str, spans: Mapping[str, slice], device: torch.device) -> Memory:
        """A bucket's memory with what its parameters had elsewhere."""
        size = max((span.stop for span in spans.values()), default=0)
        memory = Memory(*torch.zeros(2, size, dtype=torch.float32, device=device))
        for name, span in spans.items():
            value = self._value(kind, name)
            if value is not None and len(value):  # what was empty so far may have become known
                _check_size(name, value, span.stop - span.start)
                memory.old[span] = value
            self._loaded.get(kind, {}).pop(name, None)
        return memory

    def _names(self) -> set[str]:
        return set(self._home).union(*self._loaded.values())

    def _value(self, kind: str, name: str) -> torch.Tensor | None:
        if name in self._home:
            bucket, spans = self._home[name]
            return self._flat[bucket][kind].old[spans[kind]]
        return self._loaded.get(kind, {}).get(name)


def _check_size(name: str, value: torch.Tensor, needed: int | None) -> None:
    if value.numel() != needed:
        needs = "has no such parameter" if needed is None else f"needs {needed}"
        raise ValueError(
            f"the checkpoint has {value.numel()} values for {name}, but the model {needs}; "
            "load one of the same model"
        )


def _spans(bucket: Bucket, count: Count) -> dict[str, slice]:
    """Where each parameter's values lie in a bucket's flat tensor."""
    sizes = [count(name, size) for name, size in zip(bucket.names, bucket.sizes, strict=True)]
    stops = itertools.accumulate(sizes)
    return {
        name: slice(stop - size, stop) for name, stop, size in zip(bucket.names, stops, sizes, strict=True)
    }


def _all(_name: str, numel: int) -> int:
    return numel
