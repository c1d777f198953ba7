"""Threads that wait for transfers, for a program that wants to know which of them has ended first.

gloo's sends and receives can be waited for, each by itself, and tell nobody when they end.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch.distributed as dist


class Waiters:
    """So many threads, each of which waits for one item at a time."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._posted: queue.SimpleQueue[tuple[int, Sequence[dist.Work]] | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[int, Exception | None]] = queue.SimpleQueue()
        for number in range(count):
            # A daemon: a program must be able to end while a peer that is gone is waited for.
            threading.Thread(target=self._run, name=f"laconic-waiter-{number}", daemon=True).start()

    def post(self, number: int, works: Sequence[dist.Work]) -> None:
        """Somebody waits for these; nobody else may, as gloo ends a receive once."""
        self._posted.put((number, works))

    def next(self) -> int:
        """The number of what has ended, the first first; what went wrong is raised."""
        number, error = self._ended.get()
        if error is not None:
            raise error
        return number

    def close(self) -> None:
        """The threads end, when what they wait for has."""
        for _ in range(self._count):
            self._posted.put(None)

    def _run(self) -> None:
        while (posted := self._posted.get()) is not None:
            number, works = posted
            try:
                for work in works:
                    work.wait()
                self._ended.put((number, None))
            except Exception as error:  # whatever it is, the one who waits for the end must learn of it
                self._ended.put((number, error))
