"""Bytes where they are sent, and seconds by phase.

Phases: `encode`, `combine`, `decode`, `seal` and `compare` are the lane's busy time; `agree`, `up` and `down` are
the time during which at least one such transfer is under way; `waiting` runs from the last bucket's arrival to the
end of the step, the time that training stands still for communication. Phases overlap, so they need not add up to a
step.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.autograd import profiler
from torch.profiler import record_function

from laconic.core.technique import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from laconic.core.place import Transfer


@dataclass(frozen=True)
class Stats:
    """Totals of one worker: steps, bytes to and from other workers, and seconds by phase."""

    steps: int = 0
    sent: int = 0
    received: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    readings: dict[str, float] = field(default_factory=dict)
    """What the technique noticed in the last step, where it is finite; and where it was measured `error`, the squared
    error of the result over the squared length of the exact mean."""

    def plus(self, other: Stats) -> Stats:
        """Bytes, seconds and readings of both; steps of this."""
        phases = {**self.seconds, **other.seconds}
        seconds = {phase: self.seconds.get(phase, 0.0) + other.seconds.get(phase, 0.0) for phase in phases}
        return Stats(
            self.steps,
            self.sent + other.sent,
            self.received + other.received,
            seconds,
            {**other.readings, **self.readings},
        )

    def since(self, earlier: Stats) -> Stats:
        """What was added after `earlier`."""
        seconds = {phase: value - earlier.seconds.get(phase, 0.0) for phase, value in self.seconds.items()}
        return Stats(
            self.steps - earlier.steps,
            self.sent - earlier.sent,
            self.received - earlier.received,
            seconds,
            self.readings,
        )


class Meter:
    """Counts for one attachment. With `on_stream`, phases are timed by CUDA events."""

    def __init__(self, on_stream: bool = False) -> None:
        self._on_stream = on_stream
        self._sent = self._received = self.steps = 0
        self.readings: dict[str, Reading] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._under_way: Counter[str] = Counter()
        self._since: dict[str, float] = {}
        self._pending: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()
        self._lock = threading.Lock()

    def count(self, transfer: Transfer) -> None:
        """The transfer's bytes are counted."""
        self.add_bytes(transfer.sent, transfer.received)

    def add_bytes(self, sent: int, received: int) -> None:
        """So many bytes went to other workers, and came from them."""
        self._sent += sent
        self._received += received

    def depart(self, transfer: Transfer) -> None:
        """The transfer's bytes are counted and its phase is under way."""
        self.count(transfer)
        if self._under_way[transfer.phase] == 0:
            self._since[transfer.phase] = time.perf_counter()
        self._under_way[transfer.phase] += 1

    def arrive(self, transfer: Transfer) -> None:
        """The transfer is no longer under way."""
        self._under_way[transfer.phase] -= 1
        if self._under_way[transfer.phase] == 0:
            self._seconds[transfer.phase] += time.perf_counter() - self._since[transfer.phase]

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The block's time belongs to phase `name`; it shows in torch.profiler as `laconic.<name>`."""
        start = self.mark()
        # A range costs more than a small phase, so it is opened only for a profiler that would see it.
        if profiler._is_profiler_enabled:
            with record_function(f"laconic.{name}"):
                yield
        else:
            yield
        self.add(name, start)

    def mark(self) -> float | torch.cuda.Event:
        """A point in time, to be given to `add`."""
        if not self._on_stream:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, name: str, start: float | torch.cuda.Event) -> None:
        """Phase `name` lasted from `start` until now."""
        if isinstance(start, float):
            self._seconds[name] += time.perf_counter() - start
        else:
            end = self.mark()
            assert isinstance(end, torch.cuda.Event)
            with self._lock:
                self._pending.append((name, start, end))
            self._resolve(wait=False)

    def stats(self, wait: bool = True) -> Stats:
        """The totals so far; on a stream, without `wait`, only of what the device has done by now.

        Readings are of the last step, and waited for.
        """
        self._resolve(wait)
        readings = Reading.shares(self.readings) if self.readings else {}
        return Stats(self.steps, self._sent, self._received, dict(self._seconds), readings)

    def _resolve(self, wait: bool) -> None:
        with self._lock:
            while self._pending and (wait or self._pending[0][2].query()):
                name, start, end = self._pending.popleft()
                end.synchronize()
                self._seconds[name] += start.elapsed_time(end) / 1000.0
