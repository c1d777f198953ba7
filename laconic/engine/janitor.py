"""Closes what nobody has any more, in a thread of its own.

Garbage is collected in the midst of whatever a thread is doing. Closing an attachment takes locks and waits for
threads, and so must not happen there: the thread that is waited for may be the very one that is waiting.
"""

from __future__ import annotations

import atexit
import functools
import queue
import threading
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@functools.cache
def janitor(process: int) -> Janitor:
    """That of this process, by its number: a fork has none of its parent's threads."""
    return Janitor(process)


class Janitor:
    """A thread until the program ends; then everybody closes what is left by themselves."""

    def __init__(self, process: int) -> None:
        self._forgotten: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"laconic-janitor-{process}", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def close(self, close: Callable[[], None]) -> None:
        """`close` will be called, and is not waited for; this may be called wherever garbage is collected."""
        if self._ended:
            close()
        else:
            self._forgotten.put(close)

    def _run(self) -> None:
        while (close := self._forgotten.get()) is not None:
            try:
                close()
            except Exception:  # whatever it is, what is forgotten later must still be closed
                traceback.print_exc()

    def _end(self) -> None:
        self._ended = True
        self._forgotten.put(None)
        self._thread.join()
