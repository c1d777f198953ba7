"""The answer of `laconic plan` in words: a table, a verdict, and all that was assumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from laconic import kernels
from laconic.plan import sampled_rates
from laconic.plan.answer import FLOPS, PAYS, RATES
from laconic.plan.charges import BUCKET
from laconic.plan.cost import FRAMES, LANE, RELAYED, RING, SCATTERED
from laconic.plan.units import bits_per_second, duration, size
from laconic.report.tables import table

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from laconic.plan.answer import Answer, Estimate, Question


def text(answer: Answer) -> str:
    """The table, fastest first."""
    plain = answer.seconds(answer.plain)
    columns: dict[str, Callable[[_Line], str]] = {
        "sent": lambda line: size(line.row.tariff.exchange.sent),
        "kernels": lambda line: duration(line.row.tariff.exchange.busy),
        "wire": lambda line: duration(line.row.tariff.exchange.wire(answer.question.link)),
        "step": lambda line: duration(answer.seconds(line.row)),
        "faster": lambda line: f"{plain / answer.seconds(line.row):.2f}×",
    }
    lines = [_Line(row.label, row) for row in sorted(answer.rows, key=answer.seconds)]
    return table(lines, columns, "technique")


@dataclass(frozen=True)
class _Line:
    name: str
    row: Estimate


def verdict(answer: Answer) -> str:
    """Whether it pays, with which technique, and up to which link."""
    plain, best = answer.seconds(answer.plain), answer.best()
    waiting = plain - answer.question.compute
    if answer.seconds(best) <= PAYS * plain:
        said = (
            f"{best.label} is fastest: {duration(answer.seconds(best))} a step, "
            f"{plain / answer.seconds(best):.1f}× as fast as plain DDP.{_among(answer, best)}"
        )
    elif waiting < (1 - PAYS) * plain:
        said = "Nothing pays: the network is not what you wait for."
    else:
        said = (
            f"Nothing pays: plain DDP waits {duration(waiting)} for the network, but with its own kernels and "
            f"messages no technique saves more than {1 - PAYS:.0%} of a step."
        )
    return f"{said}{_limit(answer)}"


def _among(answer: Answer, best: Estimate) -> str:
    """How far the best of Laconic is ahead of PyTorch's hooks, or behind them."""
    peers = [row for row in answer.rows if row.family == "peer"]
    if not peers or not any(row.family == "laconic" for row in answer.rows):
        return ""
    ours, theirs = answer.best("laconic"), answer.best("peer")
    ratio = answer.seconds(theirs) / answer.seconds(ours)
    if best.family == "laconic":
        return f" The best of PyTorch's hooks, {theirs.label}, takes {ratio:.1f} times as long."
    return f" The best of Laconic's, {ours.label}, takes {1 / ratio:.1f} times as long."


def _limit(answer: Answer) -> str:
    """The link from which on nothing pays, to within the distance of the rates that are looked at."""
    if not any(row.family == "laconic" for row in answer.rows):
        return ""
    limit = answer.break_even()
    if limit is None:
        return " No technique of Laconic's pays on any link from 1 Mbit/s on."
    if limit == RATES[-1]:
        return f" One of Laconic's pays on links of up to {bits_per_second(limit)}, and perhaps beyond."
    return f" On links faster than about {bits_per_second(limit, 2)} no technique of Laconic's pays."


def assumptions(answer: Answer, device: torch.device) -> list[str]:
    """All that the numbers rest on, a sentence or two each."""
    model = answer.question.model
    return [
        _computing(answer.question),
        f"Kernels were timed now, on {_where(device)}; a worker has {answer.question.cores:g} cores. Time them "
        "where you will train. Plain DDP's additions cost nothing, nor do calls and copies.",
        f"Bytes and kernels are the techniques' own on {sampled_rates.TENSORS} tensors of about a million numbers, "
        f"drawn from a generalized normal with β = {sampled_rates.BETA}, independently on each "
        "worker; all is in proportion.",
        f"Layers (DAD, RankDAD, PowerSGD) are square, {model.width} wide, with {model.rows} rows a worker; nothing "
        "else has parameters.",
        _link(answer.question),
        "This is about time: how many steps a technique needs to the same accuracy is another question.",
        *answer.left_out,
    ]


def _computing(question: Question) -> str:
    source = (
        "as given"
        if question.given
        else f"6 operations a parameter and row, {FLOPS:.0e} of them a second; give yours with --compute"
    )
    return (
        f"Computing takes {duration(question.compute)} a step: {source}. Two thirds are backward, beside which "
        f"{question.model.buckets} buckets of {BUCKET >> 20} MiB travel; Crossover mixes after the optimizer's step."
    )


def _where(device: torch.device) -> str:
    return (
        f"one thread here ({kernels.description()})"
        if device.type == "cpu"
        else f"the {device.type} device here"
    )


def _link(question: Question) -> str:
    rate, latency = bits_per_second(question.link.rate or 0), duration(question.link.latency)
    return (
        f"Every worker has a link of {rate} both ways to itself, with {latency} of latency; headers make bytes "
        f"{FRAMES:.3f} times as many. Rings use {RING:.0%} of its time, Laconic's pieces {LANE:.0%}, and Crossover "
        f"{SCATTERED:.0%}, or {RELAYED:.0%} where it overlaps."
    )
