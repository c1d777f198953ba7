"""What a worker pays as workers grow: by the model, with what was measured beside it.

Without records, every number of workers is planned like the one that was asked about (answer.py). With records of a
task on a link, the model starts from what they say: up to the largest number of workers, from the bare machine's runs
of as many (measured_steps.py); beyond, each worker has as much of the machine as it had there, so that computing and
its own work take as long, and bytes grow as the technique's tariff does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from laconic.lab import contestants
from laconic.lab.links import parse_rate
from laconic.plan.answer import ask
from laconic.plan.charges import Model, tariff
from laconic.plan.cost import Link, step_seconds
from laconic.plan.measured_steps import known
from laconic.report.summary import grouped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import torch

    from laconic.lab.records import Run
    from laconic.plan.answer import Question
    from laconic.plan.measured_steps import Known

same_but_for_workers = attrgetter("machine", "task", "split", "batch", "parameters")
WORKERS = tuple(2**power for power in range(1, 11))


@dataclass(frozen=True)
class Point:
    """A technique among so many workers."""

    label: str
    family: str
    workers: int
    seconds: float
    sent: float

    @property
    def megabytes(self) -> float:
        """That a worker sends in a step."""
        return self.sent / 1e6


def planned(
    question: Question, entrants: Sequence[contestants.Contestant], device: torch.device
) -> list[Point]:
    """By the model alone; a technique has no point where it cannot serve so many."""
    answers = [ask(replace(question, workers=workers), entrants, device) for workers in WORKERS]
    return [
        Point(row.label, row.family, answer.question.workers, answer.seconds(row), row.tariff.exchange.sent)
        for answer in answers
        for row in answer.rows
    ]


def measured(runs: Sequence[Run]) -> list[Point]:
    """One point for each technique and number of workers of these runs, all of one task on one link."""
    return [
        Point(header.label, header.family, header.workers, one.seconds, one.exchange.sent)
        for one in known(runs)
        for header in [one.header]
    ]


def extended(runs: Sequence[Run], link: str, model: Model, device: torch.device) -> list[Point]:
    """By the model, from runs on the bare machine: as far as they go, and beyond."""
    rate = Link(parse_rate(link))
    groups = grouped(known(runs), lambda one: one.header.label)
    return [point for group in groups.values() for point in _extended(group, rate, model, device)]


def settings(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs on shaped links, those together that differ in technique, workers and seed only."""
    alike = [run for run in runs if run.header.shaped and run.steps and "," not in run.header.link]
    return list(grouped(alike, lambda run: (run.header.link, *same_but_for_workers(run.header))).values())


def _extended(group: Sequence[Known], link: Link, model: Model, device: torch.device) -> Iterator[Point]:
    by_workers = {one.header.workers: one for one in group}
    last = by_workers[max(by_workers)]
    contestant = contestants.parse(last.header.spec)
    charged = _sent(contestant, model, last.header.workers, device)
    for workers in sorted({*by_workers, *(number for number in WORKERS if number > last.header.workers)}):
        one = by_workers.get(workers)
        if one is None:
            grown = _sent(contestant, model, workers, device)
            if grown is None or not charged:
                continue
            sent = last.exchange.sent * grown / charged
            one = replace(last, exchange=replace(last.exchange, sent=sent, received=sent))
        seconds = step_seconds(one.computing, one.exchange, link)
        yield Point(last.header.label, last.header.family, workers, seconds, one.exchange.sent)


def _sent(
    contestant: contestants.Contestant, model: Model, workers: int, device: torch.device
) -> float | None:
    """By the technique's tariff, or None where it cannot serve so many."""
    try:
        return tariff(contestant, model, workers, device).exchange.sent
    except ValueError:
        return None
