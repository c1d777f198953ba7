"""One trial: workers train, something happens to one of them, and what became of all is an outcome."""

from __future__ import annotations

import re
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.faults import kinds, script
from benchmarks.faults.stage import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.faults.kinds import Kind
    from benchmarks.faults.stage import Stage, Worker

STEPS = 60
START = 60.0
"""Seconds in which a run comes to the step at which it is disturbed."""
LIMIT = script.TIMEOUT + 20.0
"""Seconds after which who has not ended hangs."""


@dataclass(frozen=True)
class Outcome:
    """What became of those whose programs should have ended, in a trial."""

    kind: str
    technique: str
    culprit: int
    seconds: float | None
    """From the fault to the last one's end, or none if somebody has hung."""
    survivors: int
    named: int
    """How many named the culprit."""
    well: int
    """How many ended without an error."""
    signals: int
    """How many programs, of all, were ended by a signal that nobody sent."""
    alike: bool
    """Whether those who ended well have the parameters of an undisturbed run."""
    sentence: str
    """What one of them said, one that did not name the culprit if there is one."""


def play(
    stage: Stage, kind: Kind, technique: str, number: int, directory: Path, undisturbed: Mapping[int, str]
) -> Outcome:
    """The outcome of the trial; trials of one kind take culprits and moments in turn."""
    culprit = number % len(stage.lab.rates)
    settings = {"technique": technique, "steps": STEPS, "culprit": culprit, "mishap": kind.mishap}
    workers = stage.start(settings, directory)
    try:
        begun = _disturb(stage, kind, workers, workers[culprit], 0.05 * (number % 7))
        those = [worker for worker in workers if kind.spares or worker.number != culprit]
        until(lambda: all(worker.ended for worker in those), LIMIT)
        return _outcome(kind, technique, culprit, begun, (workers, those), undisturbed)
    finally:
        _clear(stage, kind, workers, workers[culprit])


def parameters(workers: Sequence[Worker]) -> dict[int, str]:
    """What those who ended well said of their parameters."""
    return {worker.number: said for worker in workers if (said := worker.said("parameters")) is not None}


def _disturb(stage: Stage, kind: Kind, workers: Sequence[Worker], culprit: Worker, delay: float) -> float:
    """When it happened."""
    if not until(lambda: all(is_under_way(worker) for worker in workers), START):
        raise RuntimeError(f"a trial did not begin: {[worker.text for worker in workers]}")
    if kind.mishap is not None:
        until(lambda: culprit.said("mishap") is not None, START)
        return float(culprit.said("mishap") or 0)
    time.sleep(delay)
    begun = time.time()
    if kind.act is not None:
        kind.act(stage, culprit)
    return begun


def is_under_way(worker: Worker) -> bool:
    """Whether it has come to the step at which runs are disturbed, or has ended before."""
    if worker.ended is not None:
        return True
    said = worker.said("step")
    return said is not None and int(said) >= script.AT_STEP - 1


def _outcome(
    kind: Kind,
    technique: str,
    culprit: int,
    begun: float,
    workers: tuple[Sequence[Worker], Sequence[Worker]],
    undisturbed: Mapping[int, str],
) -> Outcome:
    everybody, those = workers
    ended = [worker.ended for worker in those if worker.ended is not None]
    errors = [error for worker in those if worker.ended and (error := worker.error())]
    named = [error for error in errors if names(error, culprit)]
    silent = [error for error in errors if error not in named]
    known = parameters(those)
    return Outcome(
        kind.name,
        technique,
        culprit,
        max(end.time for end in ended) - begun if len(ended) == len(those) else None,
        len(those),
        len(named),
        sum(end.status == 0 for end in ended),
        sum(_is_signaled(worker, kind, culprit) for worker in everybody),
        all(known[number] == undisturbed.get(number, known[number]) for number in known),
        (silent or named or [""])[0],
    )


def names(error: str, culprit: int) -> bool:
    """Whether the sentence has the culprit's."""
    return re.search(rf"\bworkers? (\d+, |\d+ and )*{culprit}\b", error) is not None


def _is_signaled(worker: Worker, kind: Kind, culprit: int) -> bool:
    ours = kind.name == "killed" and worker.number == culprit
    return worker.ended is not None and worker.ended.status < 0 and not ours


def _clear(stage: Stage, kind: Kind, workers: Sequence[Worker], culprit: Worker) -> None:
    """Nothing of the trial is left."""
    for worker in workers:
        worker.signal(signal.SIGKILL)
    until(lambda: all(worker.ended for worker in workers), START)
    kinds.mend(stage, culprit)
    if kind is kinds.DAMAGED:
        kinds.undamaged(stage, culprit)
