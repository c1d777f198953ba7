"""The comparisons that Laconic is judged by, for `python -m benchmarks.compare`, and those that come with it.

paper   The evidence in docs/results.md. A synchronous technique learns the same on any link, so for each task and
        number of workers there are full trainings on the bare machine, and short runs on each link, abreast, to time
        a step; the report multiplies the two, and checks the product on full runs. Short runs on the bare machine
        are what the cost model starts from, and those of two workers are for its figure of scaling. Rows have the
        settings that the technique's page recommends; learning rates are plain DDP's best, but for SignVote, whose
        step is a sign. The closest rivals are neighbours, so that they are timed abreast where there is memory for
        two.
rates   Half and twice the learning rates of `paper` and `votes`, one seed: `python -m benchmarks.results RUNS
        --rates …` shows them beside.
votes   S³GD-MV's own question: do sparse votes beat the signs of everything (signSGD with majority vote), and how far
        is the average ahead, if workers see all labels, and if each sees two of ten?
adam    What error feedback does under Adam in a long run: 2,000 steps of `text`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from laconic.lab import presets

if TYPE_CHECKING:
    from collections.abc import Iterable

FASHION = (
    "ddp@lr=0.1 fp16@lr=0.1 powersgd:rank=4@lr=0.1 rank_dad:dtype=bf16@lr=0.1 powersgd:rank=1@lr=0.1 "
    "powersgd:rank=2@lr=0.1 rank_dad@lr=0.1 dad@lr=0.1 thc@lr=0.1 gennorm@lr=0.1 "
    "sign_vote:density=0.03@lr=0.003,momentum=0 dense:dtype=bf16@lr=0.1 crossover:overlap=true@lr=0.1 "
    "crossover:codec=int8@lr=0.1"
)
TEXT = (
    "ddp@lr=0.002 fp16@lr=0.002 powersgd:rank=4@lr=0.002 "
    "sign_vote:density=0.03@lr=0.004,momentum=0,optimizer=sgd powersgd:rank=16@lr=0.002 powersgd:rank=1@lr=0.002 "
    "powersgd:rank=2@lr=0.002 "
    "thc@lr=0.002 gennorm@lr=0.002 rank_dad:two_way=true,rank=28,dtype=bf16@lr=0.002 dad@lr=0.002 "
    "crossover:overlap=true@lr=0.002 crossover:codec=int8@lr=0.002 dense:dtype=bf16@lr=0.002"
)
_TASKS = {"fashion": (FASHION, 800), "text": (TEXT, 400)}
_TIMED_STEPS = 60
_UNTRIED = ("dad", "dense", "powersgd:rank=1@", "powersgd:rank=2@")
_CHECKED = "rank_dad@lr=0.1 powersgd:rank=4@lr=0.1 gennorm@lr=0.1"


def _trajectory(task: str, workers: int, link: str = "none", seeds: int = 3, rows: str | None = None) -> str:
    """Full trainings, with 16 evaluations."""
    all_rows, steps = _TASKS[task]
    return (
        f"{task} --workers {workers} --link {link} --seeds {seeds} --steps {steps} --eval-every {steps // 16} "
        f"--techniques {rows or all_rows}"
    )


def _timing(task: str, workers: int, link: str) -> str:
    """Short runs, which show what a step takes."""
    return (
        f"{task} --workers {workers} --link {link} --seeds 3 --steps {_TIMED_STEPS} --eval-every {_TIMED_STEPS} "
        f"--techniques {_TASKS[task][0]}"
    )


def _paper() -> tuple[str, ...]:
    cells = [(task, workers) for task in _TASKS for workers in (4, 8)]
    return (
        *(_trajectory(task, workers) for task, workers in cells),
        *(_timing(task, workers, link) for task, workers in cells for link in ("none", "100mbit", "1gbit")),
        *(_timing("fashion", 2, link) for link in ("none", "100mbit")),
        _trajectory("fashion", 4, "100mbit", seeds=1, rows=_CHECKED),
    )


def _rates(task: str) -> str:
    """Half and twice the rate of every row, but for those that learn as plain DDP does, or hardly at all."""
    rows = [row for row in _TASKS[task][0].split() if not row.startswith(_UNTRIED)]
    return _trajectory(task, 4, seeds=1, rows=_other_rates(rows))


def _other_rates(rows: Iterable[str]) -> str:
    return " ".join(other for row in rows for other in map(functools.partial(_at, row), (0.5, 2)))


def _at(row: str, factor: float) -> str:
    """The row with so many times its rate."""
    technique, _, training = row.partition("@")
    options = dict(option.split("=") for option in training.split(","))
    options["lr"] = f"{factor * float(options['lr']):g}"
    return f"{technique}@" + ",".join(f"{name}={value}" for name, value in options.items())


_VOTES = (
    ("iid", "ddp@lr=0.1 sign_vote:density=1@lr=0.001,momentum=0 sign_vote:density=0.1@lr=0.001,momentum=0"),
    (
        "labels:2",
        "ddp@lr=0.1 sign_vote:density=1@lr=0.003,momentum=0 sign_vote:density=0.1@lr=0.003,momentum=0",
    ),
)


def _votes(split: str, rows: str, seeds: int = 3) -> str:
    return (
        f"fashion --workers 15 --batch 16 --split {split} --link none --seeds {seeds} --steps 200 --eval-every 25 "
        f"--techniques {rows}"
    )


_FEEDBACK = ("ddp", "thc", "gennorm")


def _adam(lr: float, seeds: int) -> str:
    rows = " ".join(f"{technique}@lr={lr:g}" for technique in _FEEDBACK)
    return f"text --workers 4 --link none --seeds {seeds} --steps 2000 --eval-every 125 --techniques {rows}"


PRESETS = {
    **presets.PRESETS,
    "paper": _paper(),
    "rates": (
        *map(_rates, _TASKS),
        *(_votes(split, _other_rates(rows.split()), seeds=1) for split, rows in _VOTES),
    ),
    "votes": tuple(_votes(split, rows) for split, rows in _VOTES),
    "adam": (_adam(0.002, seeds=2), _adam(0.001, seeds=2)),
}
