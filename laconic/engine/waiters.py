"""Threads that wait for transfers and say when they have ended.

gloo could call us back from a thread of its own, but a program must not end while such a call is on its way: Python
would end that thread in the midst of C++, which ends the process by a signal. Threads of ours can be waited for.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch.distributed as dist

    Tell: TypeAlias = Callable[[Exception | None], None]


class Waiters:
    """So many threads, each of which waits for one item at a time."""

    def __init__(self, count: int, name: str = "waiter") -> None:
        self._posted: queue.SimpleQueue[tuple[Sequence[dist.Work], Tell] | None] = queue.SimpleQueue()
        # Daemons: nothing wakes who waits for a message of which half came before its sender died.
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

    def close(self, timeout: float = 1.0) -> None:
        """The threads have ended, but for those that nothing wakes within `timeout` seconds."""
        for _ in self._threads:
            self._posted.put(None)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        posted = self._posted.get()
        while posted is not None:
            _wait(*posted)
            posted = None  # while it waits for the next, nothing of the last is kept
            posted = self._posted.get()


def _wait(works: Sequence[dist.Work], tell: Tell) -> None:
    try:
        for work in works:
            work.wait()
    except Exception as error:  # whatever it is, the one who waits for the end must learn of it
        tell(error)
    else:
        tell(None)
