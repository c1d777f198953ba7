"""What a technique remembers between steps, keyed by parameter name.

DDP rebuilds its buckets after the first step and a resumed job may bucket differently, so a bucket's flat
tensors are only a home for its parameters' values; a parameter that turns up in another bucket moves there.

Every flat tensor exists twice: a step reads the committed one and writes the other. `commit` swaps them, so a
step with a non-finite result leaves no trace: it is simply not committed. Tallies are small, belong to the worker as
an aggregator, and add up what a step's pieces say.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from laconic.technique import Memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from laconic.technique import Bucket, Tally

Values = dict[str, dict[str, torch.Tensor]]
"""Kind of memory, then parameter name, then its values as a flat tensor."""


class State:
    """The memory of one attachment, of the given kinds, and its tallies."""

    def __init__(self, kinds: Sequence[str], tallies: Mapping[str, Tally] | None = None) -> None:
        self._kinds = tuple(kinds)
        self._fades = {name: tally.fades for name, tally in (tallies or {}).items()}
        self.tallies = {
            name: Memory(*torch.zeros(2, *tally.shape, dtype=torch.float64))
            for name, tally in (tallies or {}).items()
        }
        self._flat: dict[Bucket, dict[str, Memory]] = {}
        self._home: dict[str, tuple[Bucket, slice]] = {}
        self._loaded: Values = {}
        self._written: set[Bucket] = set()

    def memory(self, bucket: Bucket, device: torch.device) -> dict[str, Memory]:
        """The bucket's memory, to be read and written in this step."""
        if not self._kinds:
            return {}
        if bucket not in self._flat:
            self._settle(bucket, device)
        self._written.add(bucket)
        return self._flat[bucket]

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
            for kind in self._kinds
        }

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

    def _settle(self, bucket: Bucket, device: torch.device) -> None:
        flat = {kind: Memory(*torch.zeros(2, bucket.numel, device=device)) for kind in self._kinds}
        spans = dict(zip(bucket.names, _spans(bucket.sizes), strict=True))
        for kind, (name, span) in itertools.product(self._kinds, spans.items()):
            value = self._value(kind, name)
            if value is not None:
                _check_size(name, value, span)
                flat[kind].old[span] = value
            self._loaded.get(kind, {}).pop(name, None)
        self._flat[bucket] = flat
        self._home.update({name: (bucket, span) for name, span in spans.items()})
        inhabited = {home for home, _ in self._home.values()}
        self._flat = {home: memory for home, memory in self._flat.items() if home in inhabited}

    def _names(self) -> set[str]:
        return set(self._home).union(*self._loaded.values())

    def _value(self, kind: str, name: str) -> torch.Tensor | None:
        if name in self._home:
            bucket, span = self._home[name]
            return self._flat[bucket][kind].old[span]
        return self._loaded.get(kind, {}).get(name)


def _check_size(name: str, value: torch.Tensor, span: slice) -> None:
    if value.numel() != span.stop - span.start:
        raise ValueError(
            f"the checkpoint has {value.numel()} values for {name}, but the model has {span.stop - span.start}; "
            "load one of the same model"
        )


def _spans(sizes: Sequence[int]) -> list[slice]:
    stops = list(itertools.accumulate(sizes))
    return [slice(stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]
