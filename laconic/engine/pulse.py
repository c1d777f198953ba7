"""Signs that a neighbor lives: a connection on which nothing is ever said, and beats.

The connection ends when the neighbor's process does. Beats stop, too, when the neighbor is stopped or cut off.

gloo does not wake who waits for a message of which half has come when the sender dies. A receive for which nothing
has come yet is woken at once.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from laconic.engine.waiters import FOREVER
from laconic.places.peers import dissolve, like

if TYPE_CHECKING:
    from collections.abc import Callable

    from laconic.core.place import Seat
    from laconic.engine.board import Board

BEAT = 5.0
"""Seconds between two beats."""
ENDS = 5.0
"""Seconds in which a thread ends whose connections are closed; usually at once."""


class Pulse:
    """`ended(worker)` is called when the connection to the worker before this one is closed.

    If that returns true the worker before that one is watched from then on.
    """

    def __init__(self, group: dist.ProcessGroup, ended: Callable[[int], bool]) -> None:
        cpu = torch.device("cpu")
        ranks = dist.get_process_group_ranks(group)
        self._group = like(group, cpu, ranks)
        self._ended = ended
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="laconic-pulse", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nobody is watched, and whoever watches us learns that we are gone."""
        self._closed = True
        dissolve(self._group)
        if self._thread is not threading.current_thread():
            self._thread.join(ENDS)

    def _run(self) -> None:
        own, workers = self._group.rank(), self._group.size()
        for distance in range(1, workers):
            neighbor = (own - distance) % workers
            self._wait(neighbor)
            if self._closed or not self._ended(neighbor):
                return

    def _wait(self, neighbor: int) -> None:
        try:
            self._group.recv([torch.empty(1)], neighbor, 0).wait(FOREVER)
        except RuntimeError:  # the end of the connection is what we wait for
            return


class Neighbor:
    """The worker before this one; this one's own beats are for the one behind it."""

    def __init__(self, board: Board, seat: Seat, patience: float) -> None:
        self._board, self._worker, self._patience = board, seat.worker, patience
        self._who = (seat.worker - 1) % seat.workers
        self._every = min(BEAT, patience / 6)
        self._looked, self._silence, self._beats = 0.0, 0.0, 0

    def is_silent(self) -> bool:
        """Whether it has not left, and was not heard of for longer than there is patience."""
        elapsed = time.monotonic() - self._looked
        if elapsed < self._every:
            return False
        self._looked += elapsed
        self._board.count(f"beats/{self._worker}", 1)
        beats = self._board.count(f"beats/{self._who}")
        # Time in which this worker was stopped itself does not count.
        self._silence = self._silence + min(elapsed, 2 * self._every) if beats == self._beats != 0 else 0.0
        self._beats = beats
        return self._silence > self._patience and not self._board.written([f"left/{self._who}"])
