"""The command: all trials, some labs abreast, and the page."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import queue
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.faults import launched, page, trial
from benchmarks.faults.kinds import KINDS, Kind
from benchmarks.faults.stage import Stage, until
from laconic.lab.links import Lab, parse_links

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

WORKERS, LINK = 4, "100mbit"
TECHNIQUES = (
    *("ddp", "dense", "thc", "sign_vote", "gennorm", "dad", "rank_dad", "crossover"),
    "crossover:overlap=true",
)


class Task(NamedTuple):
    """A trial to come."""

    kind: Kind | str
    """At the ends of links, or by its name one that torchrun starts."""
    technique: str
    number: int


def main() -> None:
    """Outcomes are in the file, and the page is written."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    names = [*(kind.name for kind in KINDS), *launched.KINDS]
    parser.add_argument("--techniques", nargs="+", default=TECHNIQUES, metavar="SPEC")
    parser.add_argument("--faults", nargs="+", default=names, choices=names, metavar="FAULT")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--abreast", type=int, default=2, help="labs at work at the same time")
    parser.add_argument("--outcomes", type=Path, default=Path("runs/faults.jsonl"), metavar="FILE")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page, such as docs/faults.md")
    options = parser.parse_args()
    wanted = [kind for kind in (*KINDS, *launched.KINDS) if _name(kind) in options.faults]
    tasks = [Task(*each) for each in itertools.product(wanted, options.techniques, range(options.trials))]
    options.outcomes.parent.mkdir(parents=True, exist_ok=True)
    with options.outcomes.open("a") as file, tempfile.TemporaryDirectory() as logs:
        for outcome in outcomes(tasks, options.techniques, options.abreast, Path(logs)):
            print(told(outcome), flush=True)
            file.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
            file.flush()
    if options.out is not None:
        command = " ".join(["python -m benchmarks.faults", *sys.argv[1:]])
        page.write(options.outcomes, options.out, LINK, WORKERS, command)


def outcomes(
    tasks: Sequence[Task], techniques: Sequence[str], abreast: int, logs: Path
) -> Iterator[trial.Outcome]:
    """Of all trials, as they come."""
    left: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
    found: queue.SimpleQueue[trial.Outcome | BaseException] = queue.SimpleQueue()
    for task in (*tasks, *[None] * abreast):
        left.put(task)
    with contextlib.ExitStack() as stack:
        stages = [stack.enter_context(opened()) for _ in range(abreast)]
        undisturbed = {technique: _undisturbed(stages[0], technique, logs) for technique in techniques}
        for number, stage in enumerate(stages):
            work = (stage, left, found, undisturbed, logs / str(number))
            threading.Thread(target=_work, args=work, daemon=True).start()
        for _ in tasks:
            outcome = found.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome


@contextlib.contextmanager
def opened() -> Iterator[Stage]:
    """A stage at the ends of links of its own."""
    with Lab(parse_links(LINK, WORKERS)) as lab:
        if not lab.shaped:
            raise RuntimeError(lab.note)
        with Stage(lab) as stage:
            yield stage


def _undisturbed(stage: Stage, technique: str, logs: Path) -> dict[int, str]:
    workers = stage.start({"technique": technique, "steps": trial.STEPS}, logs / "undisturbed")
    until(lambda: all(worker.ended for worker in workers), trial.START)
    return trial.parameters(workers)


def _work(
    stage: Stage,
    left: queue.SimpleQueue[Task | None],
    found: queue.SimpleQueue[trial.Outcome | BaseException],
    undisturbed: Mapping[str, Mapping[int, str]],
    logs: Path,
) -> None:
    try:
        while (task := left.get()) is not None:
            found.put(_play(stage, task, logs, undisturbed[task.technique]))
    except BaseException as error:  # whatever it is, the one who waits must learn of it
        found.put(error)


def _play(stage: Stage, task: Task, logs: Path, undisturbed: Mapping[int, str]) -> trial.Outcome:
    if isinstance(task.kind, str):
        with tempfile.TemporaryDirectory() as own:
            return launched.play(task.kind, task.technique, Path(own))
    return trial.play(stage, task.kind, task.technique, task.number, logs, undisturbed)


def _name(kind: Kind | str) -> str:
    return kind if isinstance(kind, str) else kind.name


def told(outcome: trial.Outcome) -> str:
    """A line about a trial."""
    seconds = "hangs" if outcome.seconds is None else f"{outcome.seconds:.1f} s"
    numbers = f"{outcome.well} well, {outcome.named} of {outcome.survivors} named, {outcome.signals} signals"
    apart = "" if outcome.alike else ", parameters differ"
    return f"{outcome.kind}, {outcome.technique}: {seconds}, {numbers}{apart}: {outcome.sentence[:160]}"


if __name__ == "__main__":
    main()
