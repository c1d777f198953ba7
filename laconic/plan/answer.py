"""Will it pay? What a step would take with each technique, on links and with workers that cannot be tried here.

The model is cost.py's, what techniques charge is in plan/charges.py, and plan/text.py says all that was assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from laconic.lab import contestants
from laconic.plan import sampled_rates
from laconic.plan.charges import Model, Tariff, tariff
from laconic.plan.cost import Link, step_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

TECHNIQUES = "ddp fp16 powersgd:rank=4 thc gennorm sign_vote rank_dad crossover crossover:codec=int8"
FLOPS = 1e14
"""Of a worker, where nothing is known about it."""
PAYS = 0.95
"""Of plain DDP's step, the most that a technique may take to be worth it."""
RATES = [10 ** (6 + step / 20) for step in range(121)]
"""From 1 Mbit/s to 1000 Gbit/s."""


@dataclass(frozen=True)
class Question:
    """Training, and the network it would have; `given` says whether the time of computing was."""

    workers: int
    link: Link
    model: Model
    compute: float
    cores: float = 2.0
    given: bool = True

    def __post_init__(self) -> None:
        if not 2 <= self.workers <= sampled_rates.MOST_WORKERS:
            raise ValueError(f"--workers is {self.workers}; use 2 to {sampled_rates.MOST_WORKERS}")
        if not self.cores > 0:
            raise ValueError(f"--cores is {self.cores}; it must be above zero")


@dataclass(frozen=True)
class Estimate:
    """A technique, and what it charges."""

    label: str
    family: str
    tariff: Tariff

    def seconds(self, question: Question) -> float:
        """Of a step."""
        computing = self.tariff.computing(question.compute, question.cores)
        return step_seconds(computing, self.tariff.exchange, question.link)


@dataclass(frozen=True)
class Answer:
    """A row for each technique, plain DDP first, and a sentence for each that cannot serve."""

    question: Question
    rows: tuple[Estimate, ...]
    left_out: tuple[str, ...] = ()

    @property
    def plain(self) -> Estimate:
        """What others are compared with."""
        return self.rows[0]

    def seconds(self, row: Estimate, rate: float | None = None) -> float:
        """Of a step; on a link of another rate, if given."""
        if rate is None:
            return row.seconds(self.question)
        return row.seconds(replace(self.question, link=replace(self.question.link, rate=rate)))

    def best(self, *families: str) -> Estimate:
        """The fastest row of these families, or of all."""
        return min((row for row in self.rows if not families or row.family in families), key=self.seconds)

    def pays(self, rate: float | None = None) -> bool:
        """Whether a technique of Laconic's shortens plain DDP's step enough."""
        most = PAYS * self.seconds(self.plain, rate)
        return any(self.seconds(row, rate) <= most for row in self.rows if row.family == "laconic")

    def break_even(self) -> float | None:
        """The fastest link on which one does, of those that were looked at; None if there is none."""
        return next((rate for rate in reversed(RATES) if self.pays(rate)), None)


def parse(texts: Sequence[str]) -> list[contestants.Contestant]:
    """The contestants that these texts describe, plain DDP first, whether it was named or not."""
    found: list[contestants.Contestant] = []
    for contestant in map(contestants.parse, ["ddp", *texts]):
        if contestant not in found:
            found.append(contestant)
    return found


def ask(question: Question, entrants: Sequence[contestants.Contestant], device: torch.device) -> Answer:
    """What each would take; kernels are timed on `device`."""
    rows, left_out = [], []
    for contestant in entrants:
        try:
            charged = tariff(contestant, question.model, question.workers, device)
            rows.append(Estimate(contestant.label, contestant.family, charged))
        except ValueError as reason:
            left_out.append(f"{contestant.label} is left out: {reason}")
    return Answer(question, tuple(rows), tuple(left_out))
