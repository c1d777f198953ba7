"""Trials of workers that torchrun starts, as a user does: they end well; and torchrun is killed.

torchrun does not tell us their exit status, but a program that a signal ends says so, as PYTHONFAULTHANDLER is set.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import TYPE_CHECKING

from benchmarks.faults.stage import Worker, until
from benchmarks.faults.trial import LIMIT, START, STEPS, Outcome, is_under_way, parameters
from laconic.lab.jobs import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Sequence

WORKERS = 2
ENDS, KILLED = "ends, started by torchrun", "torchrun is killed"
KINDS = (KILLED, ENDS)


def play(kind: str, technique: str, directory: Path) -> Outcome:
    """The outcome of the trial; a culprit there is none."""
    with _torchrun(technique, directory) as launcher:
        workers = _workers(directory)
        try:
            if kind == KILLED:
                until(lambda: all(map(is_under_way, workers)) or launcher.poll() is not None, START)
                launcher.kill()
            begun = time.time()
            ended = until(
                lambda: launcher.poll() is not None and not any(map(_lives, workers)), START + LIMIT
            )
            return _outcome(kind, technique, time.time() - begun if ended else None, workers)
        finally:
            launcher.kill()
            for worker in filter(_lives, workers):
                os.kill(int(worker.said("process") or 0), signal.SIGKILL)


def _torchrun(technique: str, directory: Path) -> Popen[bytes]:
    where = ["--log-dir", str(directory), "--redirects", "3"]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(WORKERS),
    ]
    settings = json.dumps({"technique": technique, "steps": STEPS})
    program = ["-m", "benchmarks.faults.script", settings]
    variables = {**DEFAULTS, **os.environ}
    return Popen([*command, *where, *program], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, env=variables)


class _Launched(Worker):
    """A worker whose logs torchrun names when it starts."""

    def __init__(self, number: int, directory: Path) -> None:
        super().__init__(number, [])
        self._directory = directory

    @property
    def text(self) -> str:
        """All that it has printed."""
        logs = sorted(self._directory.glob(f"*/attempt_0/{self.number}/std*.log"))
        return "".join(log.read_text(errors="replace") for log in logs)


def _workers(directory: Path) -> Sequence[Worker]:
    return [_Launched(number, directory) for number in range(WORKERS)]


def _lives(worker: Worker) -> bool:
    process = worker.said("process")
    return process is not None and Path(f"/proc/{process}").exists()


def _outcome(kind: str, technique: str, seconds: float | None, workers: Sequence[Worker]) -> Outcome:
    known = parameters(workers)
    well = [worker for worker in workers if worker.number in known and not worker.error()]
    signals = sum("Fatal Python error" in worker.text for worker in workers)
    sentence = next((error for worker in workers if (error := worker.error())), "")
    return Outcome(kind, technique, -1, seconds, WORKERS, 0, len(well) - signals, signals, True, sentence)
