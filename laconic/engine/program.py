"""Whether this worker's program lives on after a step has failed: the others would wait for the rest of it.

Nobody tells us of an error that a script catches, a notebook shows or a debugger looks at. Another thread can see

    an error that is being handled, or was shown last, and came through a step: through code that calls backward
    a backward that has ended, but has not handed over all gradients of its step

Whoever goes on to another step within `GRACE` seconds has mended what was wrong, and nothing is said.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType, TracebackType

GRACE = 1.5
"""Seconds in which a program goes on with its steps after an error, if it does."""

BACKWARD = torch.autograd.graph._engine_run_backward.__code__
SHADOW = Join.__exit__.__code__
"""A worker without batches hands zeros over in here."""
FORWARD = DistributedDataParallel.forward.__code__

_ASKING = threading.Lock()
"""One thread at a time switches the collection of garbage off and on."""


class StepError(RuntimeError):
    """A step of this worker's has ended in its midst; what has happened is not known."""


class Program:
    """This worker's program, as its other threads see it."""

    def __init__(self) -> None:
        self._steps: set[CodeType] = {FORWARD}
        """What a step's errors come through."""
        self.is_open, self._count = False, 0
        """Whether a step is under way some of whose gradients are still to come; and how many steps have begun."""
        self._first: dict[int, int] = {}
        """How many steps had begun when an error that still matters was seen first."""
        self._seen: tuple[int, int] | None = None
        self._since = 0.0

    def begin(self) -> None:
        """A step is under way, as this thread's work or in a thread that waits for it."""
        self.is_open, self._count = True, self._count + 1
        if self._count == 1:
            self._steps.update(_callers())

    def complete(self) -> None:
        """All of the step's gradients are under way."""
        self.is_open = False

    def failure(self) -> BaseException | None:
        """What has gone wrong with a step, if the program has not gone on since; it is asked time and again."""
        error, now = self._error(), time.monotonic()
        stopped = error is None and self.is_open and not _in_backward()
        seen = (id(error), self._count) if error is not None or stopped else None
        if seen != self._seen:
            self._seen, self._since = seen, now
        if seen is None or now - self._since < GRACE:
            return None
        return error or StepError(
            "backward has ended in the midst of a step, with an error that the program caught"
        )

    def _error(self) -> BaseException | None:
        """An error that came through a step, and after which no other has begun."""
        found = [error for error in _errors() if not self._steps.isdisjoint(_path(error))]
        self._first = {id(error): self._first.get(id(error), self._count) for error in found}
        return next((error for error in found if self._first[id(error)] == self._count), None)


def _callers() -> Iterator[CodeType]:
    """Code that takes this step: what calls this thread's, and what calls backward."""
    for thread, frame in _frames().items():
        codes = list(_stack(frame))
        if thread == threading.get_ident() or BACKWARD in codes:
            yield from codes


def _in_backward() -> bool:
    """Whether a thread is where steps' gradients come from."""
    return any(code in (BACKWARD, SHADOW) for frame in _frames().values() for code in _stack(frame))


def _frames() -> dict[int, FrameType]:
    """Where every thread is."""
    with _uncollected():
        return sys._current_frames()


def _stack(frame: FrameType | None) -> Iterator[CodeType]:
    """From the innermost outwards."""
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def _errors() -> list[BaseException]:
    """Those being handled in any thread, and the last that an interpreter has shown."""
    with _uncollected():
        handled: list[Any] = list(sys._current_exceptions().values())
    errors = [each[1] if isinstance(each, tuple) else each for each in handled]
    return [error for error in (*errors, getattr(sys, "last_value", None)) if error is not None]


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage is collected in here.

    Before Python 3.12 asking for all threads may collect garbage under a lock of the interpreter's; whoever asks next
    then waits for that lock without giving up the other one, for ever.
    """
    if sys.version_info >= (3, 12):
        yield
        return
    with _ASKING:
        enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if enabled:
                gc.enable()


def _path(error: BaseException) -> Iterator[CodeType]:
    """What an error came through, but for who caught it."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
        yield trace.tb_frame.f_code
