"""Who is gone, or has failed: all workers of an attachment learn of it, at once and by name.

A worker that fails for a reason of its own says so. One that only sees a symptom, such as a closed connection, asks
who is still there: whoever has not answered after `ROLL_CALL` seconds is gone. All this goes through the process
group's store (board.py), so it works where no message comes through any more.

Who sees what, when a worker
    is killed           its neighbor's pulse ends at once (pulse.py), whatever becomes of messages under way
    is stopped, cut off the same neighbor misses its beats for `patience` seconds
    fails, lives on     it says so, also where only its program knows of it (program.py); the others hear it at once
    ends its program    it says so; whoever still needs it then learns that it has ended
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING

import torch.distributed as dist

from laconic.core.place import Seat
from laconic.engine.board import Board
from laconic.engine.program import Program
from laconic.engine.pulse import Neighbor, Pulse
from laconic.places.peers import patience_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 60.0
"""Seconds without a sign of life after which a worker is gone."""
ROLL_CALL = 2.0
"""Seconds in which those who live say so."""
TICK = 0.5
"""Seconds between two looks at the board."""
MARGIN = 3.0
"""Seconds beyond the roll call within which the one who saw something knows what it was."""
LONGEST = 1000
"""Characters of a reason."""
CLOSED = ("onnection closed", "onnection reset", "roken pipe", "pair closure", "ocket closed")


class PeerError(RuntimeError):
    """Another worker is gone, or has failed; the message names it."""


class LinkError(RuntimeError):
    """A transfer has not come to its end, and whoever was waiting for it does not know why."""


@contextlib.contextmanager
def linked() -> Iterator[None]:
    """What goes wrong in here is the link's, or that of whoever is at its other end."""
    try:
        yield
    except RuntimeError as error:
        raise LinkError(str(error)) from error


class Quiet:
    """There is nobody to tell."""

    step: int | None = None
    """The step that is under way."""
    patience: float = PATIENCE
    """Seconds without a sign of life after which a worker is gone."""

    def begin(self, step: int) -> None:
        """The step is under way; others wait for all of its gradients."""
        self.step = step

    def complete(self) -> None:
        """All of the step's gradients are under way."""

    def verdict(self, error: BaseException) -> BaseException:
        """Why that happened, as far as can be known; from now on nobody waits for anything."""
        return error

    def listen(self, listener: Callable[[BaseException], None]) -> None:
        """`listener` is called with the verdict, in whatever thread; it must not wait."""

    def before_leaving(self, settle: Callable[[], None]) -> None:
        """`settle` is called before this worker leaves, unless something has gone wrong: others may still need it."""

    def said(self, topic: str, text: str) -> dict[int, str]:  # noqa: ARG002
        """What workers have said about the topic so far, now that this one has, too; nobody is waited for."""
        return {}

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Whoever fails in here says why, and the others fail, too."""
        try:
            yield
        except BaseException as error:
            verdict = self.verdict(error)
            raise verdict from (error if verdict is not error else None)

    def close(self) -> None:
        """This worker needs the others no more."""


class Alarm(Quiet):
    """One worker's alarm among those of `group`."""

    def __init__(self, group: dist.ProcessGroup, patience: float = PATIENCE) -> None:
        self.seat = Seat(dist.get_rank(group), dist.get_world_size(group))
        self.patience = patience
        self.board = Board(group, patience)
        self.group, self._timeout = group, patience_of(group).total_seconds()
        self._tick = min(TICK, patience / 8) * max(1.0, self.seat.workers / 128)  # the store serves them all
        self._roll_call = max(ROLL_CALL, 4 * self._tick)
        self._neighbor = Neighbor(self.board, self.seat, patience)
        self._listeners: list[Callable[[BaseException], None]] = []
        self._debts: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._verdict: BaseException | None = None
        self._own = self._symptom = self._ends = ""
        self._said = {"failed": "", "symptom": ""}
        self._called: float | None = None
        self._deaf = False
        self._known, self._wake, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._is_said = threading.Event()
        """What this worker failed of, as far as anybody can hear it."""
        self._questions: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._asking: float | None = None
        """Since when the store has not answered."""
        self._pulse: Pulse | None = None
        self._program = Program()
        self._thread = threading.Thread(target=self._run, name="laconic-alarm", daemon=True)
        self._thread.start()
        self._guard = threading.Thread(target=self._look_after, name="laconic-alarm-guard", daemon=True)
        self._guard.start()
        atexit.register(self._at_exit)

    def verdict(self, error: BaseException) -> BaseException:
        """Why that happened, as far as can be known; from now on nobody waits for anything."""
        if self._ends:  # nobody would answer, and nobody is to be told
            self._settle(error)
            return self._verdict or error
        if _is_a_symptom(error):
            self._notice(_short(error))
            self._known.wait(self._roll_call + MARGIN)
        elif self._verdict is None:
            self._own = f"{self.seat} failed {self._when()}: {_told(error)}"
        self._settle(error)
        self._wake.set()
        if self._own and threading.current_thread() is not self._thread:
            self._is_said.wait(MARGIN)  # or the program might end before
        return self._verdict or error

    def begin(self, step: int) -> None:
        """The step is under way; others wait for all of its gradients."""
        self.step = step
        self._program.begin()

    def complete(self) -> None:
        """All of the step's gradients are under way."""
        self._program.complete()

    def listen(self, listener: Callable[[BaseException], None]) -> None:
        """`listener` is called with the verdict, in whatever thread; it must not wait."""
        self._listeners.append(listener)
        if self._verdict is not None:
            listener(self._verdict)

    def before_leaving(self, settle: Callable[[], None]) -> None:
        """`settle` is called before this worker leaves, unless something has gone wrong: others may still need it."""
        self._debts.append(settle)

    def said(self, topic: str, text: str) -> dict[int, str]:
        """What workers have said about the topic so far, now that this one has, too; nobody is waited for."""
        heard: dict[int, str] = {}
        known = threading.Event()

        def ask() -> None:
            self.board.write(f"{topic}/{self.seat.worker}", text)
            texts = ((worker, self.board.read(f"{topic}/{worker}")) for worker in range(self.seat.workers))
            heard.update({worker: said for worker, said in texts if said is not None})
            known.set()

        self._questions.put(ask)
        self._wake.set()
        known.wait(self.patience)
        return dict(heard) if known.is_set() else {}

    def until(self, condition: Callable[[], bool]) -> None:
        """The condition, of what others write, is true; it is not waited for in vain."""
        pause, deadline = 0.001, time.monotonic() + self._timeout
        while not condition():
            if self._verdict is not None:
                raise self._verdict
            if time.monotonic() > deadline:
                absent = [k for k in range(self.seat.workers) if self.board.count(f"beats/{k}") == 0]
                raise TimeoutError(
                    f"{_named(absent, self.seat.workers)} not here after {self._timeout:.0f} s"
                )
            time.sleep(pause)
            pause = min(2 * pause, self._tick / 4)

    def watch(self) -> None:
        """A neighbor's death is noticed at once; all workers must call it."""
        if self.seat.workers > 1:
            self._pulse = Pulse(self.group, self._pulse_ended)

    def close(self) -> None:
        """This worker needs the others no more."""
        self._leave("it was detached")

    def _leave(self, why: str) -> None:
        """What others may still need has come to its end; then they are told."""
        atexit.unregister(self._at_exit)
        debts, self._debts = self._debts, []
        for settle in debts:
            if self._verdict is None:
                settle()
        self._ends = self._ends or why
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(self._roll_call)
        pulse, self._pulse = self._pulse, None
        if pulse is not None:
            pulse.close()
        self._ended.set()

    def _at_exit(self) -> None:
        error = getattr(sys, "last_value", None)
        if error is not None:
            self._fail(error)
        self._leave("its program has ended")

    def _fail(self, error: BaseException) -> None:
        """This worker's program has failed, outside of what is exchanged."""
        if self.step is not None and not self._program.is_open:
            self.step += 1  # of which no gradient has left
        self.verdict(error)

    def _when(self) -> str:
        return "when it was attached" if self.step is None else f"at step {self.step}"

    def _notice(self, what: str) -> None:
        self._symptom = self._symptom or f"{what}, seen by worker {self.seat.worker} {self._when()}"
        self._wake.set()

    def _settle(self, verdict: BaseException) -> None:
        with self._lock:
            if self._verdict is not None:
                return
            self._verdict = verdict
        self._known.set()
        for listener in self._listeners:
            listener(verdict)

    def _run(self) -> None:
        while not self._ends:
            pause = None if self._deaf else self._tick if self._called is None else self._tick / 4
            self._wake.wait(pause)
            self._wake.clear()
            while not self._questions.empty():
                self._try(self._questions.get())
            self._try(self._look)
            if self._deaf and self._symptom:
                self._settle(PeerError(self._guess()))
        self._try(lambda: self.board.write(f"left/{self.seat.worker}", self._ends))

    def _try(self, act: Callable[[], None]) -> None:
        """What goes through the store, as long as it answers."""
        if self._deaf:
            return
        self._asking = time.monotonic()
        try:
            act()
        except Exception:  # whatever it is, the store is of no use any more
            self._deaf = True
        finally:
            self._asking = None

    def _look_after(self) -> None:
        """Nobody waits for a store that is silent: its client would, whatever it was told, for ever."""
        while not self._ended.wait(self._tick):
            since = self._asking
            if since is not None and time.monotonic() - since > self.patience:
                self._deaf = True
                self._notice(f"no answer for {self.patience:g} s")
                self._settle(PeerError(self._guess()))

    def _look(self) -> None:
        """What there is to say is said, and what others said is heard."""
        if self._neighbor.is_silent():
            self._notice(f"silent for {self.patience:g} s")
        failure = self._program.failure() if self._verdict is None else None
        if failure is not None and not _is_a_symptom(failure):
            self._fail(failure)
        said = {"failed": self._own, "symptom": self._symptom}
        if said != self._said:
            self._said = said
            for key, text in said.items():
                if text:
                    self.board.write_first(key, text)
            self.board.write("alarm", "")
            if self._own:
                self._is_said.set()
        if self.board.written(["alarm"]):
            self._attend()

    def _attend(self) -> None:
        """What the alarm is about is known, as soon as it can be."""
        if self._called is None:
            self._called = time.monotonic()
            self.board.write(f"here/{self.seat.worker}", "")
        said = self.board.read("failed") or self.board.read("verdict")
        if said is None and time.monotonic() - self._called >= self._roll_call:
            said = self.board.write_first("verdict", self._judged())
        if said is not None:
            mine = said.startswith(f"{self.seat} ")
            self._settle(PeerError(f"the others took this worker for gone: {said}" if mine else said))

    def _judged(self) -> str:
        """Of those who have not answered, who is gone; or else who has left; or else that nobody has."""
        workers = self.seat.workers
        missing = [k for k in range(workers) if not self.board.written([f"here/{k}"])]
        left = {k: why for k in missing if (why := self.board.read(f"left/{k}")) is not None}
        symptom = self.board.read("symptom")
        if gone := [k for k in missing if k not in left]:
            return f"{_named(gone, workers)} gone ({symptom})"
        if left:
            reason = next(iter(left.values()))
            return f"{_named([*left], workers)} needed no more by its own account: {reason} ({symptom})"
        return f"a connection is broken, though all {workers} workers are alive ({symptom})"

    def _guess(self) -> str:
        """What has happened, without the store."""
        if self.board.holder is not None and self.board.holder != self.seat.worker:
            lost = _named([self.board.holder], self.seat.workers)
            return f"{lost} gone, or out of reach, and with it the process group's store ({self._symptom})"
        return (
            f"a worker is gone, and the process group's store, which would know, is silent ({self._symptom})"
        )

    def _pulse_ended(self, worker: int) -> bool:
        """Whether the worker whose connection is closed had said that it leaves; if not, it is missed."""
        left: list[bool] = []
        self._try(lambda: left.append(self.board.written([f"left/{worker}"])))
        if left != [True]:
            self._notice("connection closed")
        return left == [True]


def _named(workers: list[int], of: int) -> str:
    if len(workers) == 1:
        return f"worker {workers[0]} of {of} is"
    return f"workers {', '.join(map(str, workers[:-1]))} and {workers[-1]} of {of} are"


def _is_a_symptom(error: BaseException) -> bool:
    """Whether it only says that somebody does not answer, wherever in the program that was seen."""
    return isinstance(error, LinkError) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in CLOSED)
    )


def _told(error: BaseException) -> str:
    """The error in one line, not too long."""
    text = " ".join(str(error).split())
    return (
        f"{type(error).__name__}: {text}"
        if len(text) <= LONGEST
        else f"{type(error).__name__}: {text[:LONGEST]}…"
    )


def _short(error: BaseException) -> str:
    """What gloo says, in a word or two."""
    text = str(error)
    if any(sign in text for sign in CLOSED):
        return "connection closed"
    return "timed out" if "imed out" in text else _told(error)
