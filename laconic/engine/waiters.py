"""Threads that wait for transfers and say when they have ended.

gloo could call us back from a thread of its own, but a program must not end while such a call is on its way: Python
would end that thread in the midst of C++, which ends the process by a signal. Threads of ours can be waited for; so
none of them may still be in C++ when a program ends, or what it waits for must not end either.
"""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch.distributed as dist

    Tell: TypeAlias = Callable[[Exception | None], None]
    Wait: TypeAlias = Callable[[dist.Work, threading.Event], None]

FOREVER = timedelta(days=3650)
SLICE = timedelta(milliseconds=500)
"""How long a thread waits for a collective before it looks whether it is still to wait."""
PATIENCE = 5.0
"""Seconds that threads have to end; those that can, do at once."""


def in_slices(work: dist.Work, closed: threading.Event) -> None:
    """The collective has ended, or nobody waits for it any more."""
    while not closed.is_set():
        try:
            work.wait(SLICE)
        except RuntimeError:
            if not work.is_completed():
                continue
            work.wait(SLICE)  # it has failed, or has ended since the slice had passed
        return


def to_the_end(work: dist.Work, _closed: threading.Event) -> None:
    """The message has been sent, or heard: of these, one that is waited for in slices would be given up.

    Nor does it time out, as that might be while the program ends.
    """
    work.wait(FOREVER)


class Waiters:
    """So many threads, each of which waits for one item at a time."""

    def __init__(self, count: int, name: str = "waiter", wait: Wait = in_slices) -> None:
        self._posted: queue.SimpleQueue[tuple[Sequence[dist.Work], Tell] | None] = queue.SimpleQueue()
        self._closed, self._wait = threading.Event(), wait
        # Daemons: nothing wakes who waits to the end for a message of which half came before its sender died.
        self._threads = [
            threading.Thread(target=self._run, name=f"laconic-{name}-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def post(self, works: Sequence[dist.Work], tell: Tell) -> None:
        """Once all of these have ended `tell` is called, with what went wrong if anything did.

        Nobody else may wait for them, as gloo ends a receive once.
        """
        self._posted.put((works, tell))

    def close(self, timeout: float = PATIENCE) -> bool:
        """Whether the threads have ended, all but those that nothing wakes within `timeout` seconds."""
        self._closed.set()
        for _ in self._threads:
            self._posted.put(None)
        deadline = time.monotonic() + timeout
        others = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in others:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in others)

    def _run(self) -> None:
        posted = self._posted.get()
        while posted is not None:
            self._tell(*posted)
            posted = None  # while it waits for the next, nothing of the last is kept
            posted = self._posted.get()

    def _tell(self, works: Sequence[dist.Work], tell: Tell) -> None:
        try:
            for work in works:
                self._wait(work, self._closed)
        except Exception as error:  # whatever it is, the one who waits for the end must learn of it
            tell(error)
        else:
            tell(None)


def never_ends(held: object) -> None:
    """What a thread waits for that cannot be woken stays as it is, until the kernel ends the process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
