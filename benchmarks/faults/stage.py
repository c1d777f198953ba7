"""Workers at the ends of a lab's links, started in a moment: a process at each end has torch loaded, and forks.

    trial ── a line of JSON ──> fork (main, below) ── os.fork() ──> the script, as any program runs it

A forked worker ends as every Python program does, its exit status is what the kernel says of it, and it does not
outlive its parent.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from subprocess import PIPE, Popen
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from laconic.lab.jobs import DEFAULTS, PARENT, end_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from laconic.lab.links import Lab

GLANCE = 0.02
"""Seconds between two looks at what workers say."""

ERROR = r"[\w.]*(?:Error|DamagedMessage)"
"""The name of an exception, at the end of a traceback."""


class Ended(NamedTuple):
    """When a worker's program ended, and its exit status; below zero the signal that ended it."""

    time: float
    status: int


class Worker:
    """One worker of a trial; what it prints is in the logs."""

    def __init__(self, number: int, logs: Sequence[Path], process: int = 0) -> None:
        self.number, self.process = number, process
        self.ended: Ended | None = None
        self._logs = logs

    @property
    def text(self) -> str:
        """All that it has printed."""
        return "".join(log.read_text(errors="replace") for log in self._logs if log.exists())

    def said(self, what: str) -> str | None:
        """What the worker said of this last, of what it has said to its end."""
        found = re.findall(rf"^{what} (.*)\n", self.text, re.MULTILINE)
        return found[-1] if found else None

    def error(self) -> str:
        """The sentence with which its program ended, without who says it and where that was; or nothing."""
        last = re.findall(rf"^(?:\[rank\d+\]: )?{ERROR}: (.*)$", self.text, re.MULTILINE)
        said = rf"^(Got the following .* callback: |{ERROR}: |worker {self.number} of \d+: )*"
        return re.sub(said, "", (last or [""])[-1])

    def signal(self, number: int) -> None:
        """The worker's program is sent a signal, if it has not ended."""
        if self.ended is None:
            os.kill(self.process, number)


class Stage:
    """The ends of a lab's links; a stage has one trial at a time."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        variables = {**DEFAULTS, **os.environ, **lab.environment(), "OPENBLAS_NUM_THREADS": "1"}
        program = [sys.executable, "-m", "benchmarks.faults.stage"]
        self._forks = [
            Popen(
                lab.command(worker, program),
                stdin=PIPE,
                stdout=PIPE,
                env={**variables, PARENT: str(os.getpid())},
                text=True,
                start_new_session=True,
            )
            for worker in range(len(lab.rates))
        ]

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for fork in self._forks:
            fork.kill()
        for fork in self._forks:
            with fork:
                pass

    def start(self, settings: Mapping[str, Any], directory: Path) -> list[Worker]:
        """The workers of a trial; what they print is in the directory."""
        directory.mkdir(parents=True, exist_ok=True)
        where = {"MASTER_ADDR": self.lab.address(0), "MASTER_PORT": str(self.lab.port())}
        where["WORLD_SIZE"] = str(len(self._forks))
        workers = []
        for number, fork in enumerate(self._forks):
            log = directory / f"worker{number}.log"
            job = {"settings": dict(settings), "log": str(log), "environment": {**where, "RANK": str(number)}}
            _write(fork.stdin, job)
            workers.append(Worker(number, [log], _read(fork.stdout)["process"]))
            threading.Thread(target=_follow, args=(workers[-1], fork), daemon=True).start()
        return workers


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it has become true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not (known := condition()) and time.monotonic() < deadline:
        time.sleep(GLANCE)
    return known


def _follow(worker: Worker, fork: Popen[str]) -> None:
    worker.ended = Ended(**_read(fork.stdout))


def _write(pipe: IO[str] | None, what: object) -> None:
    assert pipe is not None
    pipe.write(json.dumps(what) + "\n")
    pipe.flush()


def _read(pipe: IO[str] | None) -> Any:
    assert pipe is not None
    return json.loads(pipe.readline() or '{"time": 0, "status": 0}')


def main() -> None:
    """A worker for every line of JSON, one after the other; this process becomes it."""
    from benchmarks.faults import script

    end_with_parent()
    for line in iter(sys.stdin.readline, ""):
        job = json.loads(line)
        process = os.fork()
        if process == 0:
            _become(job)
            script.main(json.dumps(job["settings"]))
            return
        _write(sys.stdout, {"process": process})
        _, status = os.waitpid(process, 0)
        _write(sys.stdout, {"time": time.time(), "status": os.waitstatus_to_exitcode(status)})


def _become(job: Mapping[str, Any]) -> None:
    """This process writes to the worker's log, and does not outlive its parent."""
    os.environ.update(job["environment"])
    os.environ[PARENT] = str(os.getppid())
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


if __name__ == "__main__":
    main()
