"""How results were made and checked, in Markdown: projection, replicas, machines, software, settings and commands."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from benchmarks.results.rules import MISSING
from benchmarks.results.tables import metric, table, words_table
from laconic.lab import contestants
from laconic.report.projection import shows_only_time
from laconic.report.summary import WARM_UP, grouped
from laconic.telemetry import commit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.results.board import Board
    from laconic.lab.records import Header, Run, Setting
    from laconic.report.projection import Check

AGREE = 0.1
"""How far a projection may be from the full run that checks it, as a share of it."""

_TRAINING = ("lr", "momentum", "optimizer")


def projection(board: Board) -> str:
    """How runs were projected, and the full runs that check it; nothing where none was projected."""
    if not board.evidence.timings:
        return ""
    lengths = _joined(sorted({run.header.steps for run in board.evidence.timings}))
    text = (
        "What a technique learns does not depend on the link. So each was trained in full on the bare machine, and "
        f"its step was timed on each link in rounds of {lengths} steps. The seconds above are those of the first "
        f"{WARM_UP} steps as they were timed (or of the first half of a round), and for all others the median step "
        "after these, over all rounds (GenNorm's messages still get a little shorter after that, so that its product "
        "is too long). Bytes a step are the "
        "rounds'; bytes to the target are the training's own where Laconic counts them, with the link's frames, and "
        "else the rounds', like seconds. Two trainings with one seed on different machines do not end at the same "
        "number, as sums are rounded in another order: the last columns show how far apart they are. Each full run "
        "is compared with the product of the round next to it in time, as the machine's pace changes with the hours. "
    )
    return text + _checked(board.evidence.checks)


def _checked(checks: Sequence[Check]) -> str:
    if not checks:
        return "No full run on a link is among the records, so the product is not checked."
    agree = sum(abs(check.ratio - 1) <= AGREE for check in checks)
    lines = [
        [
            f"{_place(check.setting)}: {check.label}, seed {check.seed}",
            f"{check.projected:.1f}",
            f"{check.measured:.1f}",
            f"{check.ratio:.3f}",
            *(
                MISSING if end is None else metric(end, check.setting)
                for end in (check.ended, check.twin_ended)
            ),
        ]
        for check in checks
    ]
    head = [
        "full run",
        "projected, s",
        "measured, s",
        "projected / measured",
        "ends at",
        "on the bare machine",
    ]
    told = f"In {agree} of {len(checks)} full runs the product agrees within {100 * AGREE:.0f} %"
    return f"{told}:\n\n{table(head, lines)}"


def replicas(runs: Sequence[Run]) -> str:
    """Whether workers ended with the same parameters, by a checksum of all of them, or how far apart they were."""
    ended = [run for run in runs if run.end is not None]
    gossip = [run for run in ended if run.end and run.end.consensus is not None]
    synchronous = [run for run in ended if run not in gossip]
    trained = [run for run in gossip if not shows_only_time(run)]
    unequal = [run for run in synchronous if run.end and not run.end.replicas_equal]
    told = f"In {len(synchronous) - len(unequal)} of {len(synchronous)} finished synchronous runs all replicas ended "
    told += "equal, by a checksum of every parameter."
    if unequal:
        told += f" They differ in {_joined(map(_name, unequal))}."
    if len(ended) < len(runs):
        told += f" {len(runs) - len(ended)} records are of unfinished runs."
    return f"{told}\n\n{_apart(trained)}" if trained else told


def _apart(runs: Sequence[Run]) -> str:
    """The largest consensus distance of each gossip technique."""
    groups = grouped(runs, lambda run: (run.header.task, run.header.workers, run.header.label))
    lines = [
        [
            f"{task}, {workers} workers: {label}",
            f"{max(_consensus(run) for run in group):.2g}",
            str(len(group)),
        ]
        for (task, workers, label), group in groups.items()
    ]
    told = "Gossip's workers do not end equal; what is evaluated is their mean, and this is how far they are from it"
    return f"{told}:\n\n{table(['', 'largest consensus distance at the end', 'runs'], lines)}"


def _consensus(run: Run) -> float:
    assert run.end is not None
    assert run.end.consensus is not None
    return run.end.consensus


def provenance(runs: Sequence[Run]) -> str:
    """Machines, software and settings."""
    facts = {
        **_machines(runs),
        "software": _each(runs, lambda header: ", ".join(f"{n} {v}" for n, v in header.versions.items())),
        "kernels": _each(runs, lambda header: header.kernels),
        "model": _each(runs, lambda header: f"{header.task}: {header.parameters:,} parameters"),
        "batch of a worker": _each(runs, lambda header: f"{header.task}: {header.batch}"),
        "steps of a training": _each(
            [run for run in runs if not shows_only_time(run)],
            lambda header: (
                f"{header.task}: {header.steps} ({header.steps * header.batch * header.workers:,} samples "
                f"with {header.workers} workers)"
            ),
        ),
        **_peers(runs),
        "optimizer": _each([run for run in runs if not _has_own(run.header)], _optimizer),
        "days": f"{min(run.header.started for run in runs)[:10]} to {max(run.header.started for run in runs)[:10]}",
        "records made at": _each(runs, lambda header: header.commit or "an unknown commit"),
        "page written at": commit() or "unknown: not in a Git repository",
    }
    return words_table(["", ""], facts.items())


def _peers(runs: Sequence[Run]) -> dict[str, str]:
    """What must be known of other people's hooks."""
    power = any(run.header.spec.startswith("powersgd") for run in runs)
    told = (
        "PyTorch's hook, from its third step on (the earliest), with one bucket: with two it aborts on gloo"
    )
    return {"PowerSGD": told} if power else {}


def _machines(runs: Sequence[Run]) -> dict[str, str]:
    """Where runs were made: those that were trained on a bare link, and all others, which were timed."""
    bare = [run for run in runs if run.header.link == "none" and not shows_only_time(run)]
    kinds = {"machine, trainings": bare, "machine, timings": [run for run in runs if run not in bare]}
    told = {name: _each(some, lambda header: header.machine) for name, some in kinds.items() if some}
    return {"machine": next(iter(told.values()))} if len(set(told.values())) == 1 else told


def commands(runs: Sequence[Run]) -> list[str]:
    """Command lines that make these records again."""
    groups = grouped(runs, lambda run: _conditions(run.header)).values()
    return [_command([run.header for run in part]) for group in groups for part in _agreeing(group)]


def training(header: Header) -> str:
    """What a run is trained with."""
    momentum = f", momentum {header.momentum:g}" if header.optimizer == "sgd" and header.momentum else ""
    return f"{header.optimizer}, learning rate {header.lr:g}{momentum}"


def _optimizer(header: Header) -> str:
    """What a task is trained with where a row says nothing else."""
    momentum = f" with momentum {header.momentum:g}" if header.optimizer == "sgd" and header.momentum else ""
    return f"{header.task}: {header.optimizer}{momentum}, learning rate falling as a cosine to 0"


def _has_own(header: Header) -> bool:
    return bool({"momentum", "optimizer"} & contestants.training(header.spec).keys())


def _each(runs: Iterable[Run], value: Callable[[Header], str]) -> str:
    return "; ".join(sorted({value(run.header) for run in runs}))


def _conditions(header: Header) -> str:
    """All words of a command line but the techniques and what they train with."""
    words = [header.task, *_option("workers", header.workers), *_option("link", header.link)]
    words += [*_option("steps", header.steps), *_option("batch", header.batch)]
    words += _option("eval-every", header.eval_every) if header.eval_every else []
    words += _option("split", header.split) if header.split != "iid" else []
    words += _option("size", header.size) if header.size != "default" else []
    words += _option("device", header.device) if header.device != "cpu" else []
    return shlex.join(words)


def _agreeing(runs: Sequence[Run]) -> Iterable[Sequence[Run]]:
    """The runs in groups whose rows, where they say nothing else, train alike."""
    if all(len(values) <= 1 for values in _shared([run.header for run in runs]).values()):
        return [runs]
    return grouped(runs, lambda run: str(_unsaid(run.header))).values()


def _unsaid(header: Header) -> dict[str, object]:
    """What the run trained with and its spec does not say."""
    said = contestants.training(header.spec)
    return {name: getattr(header, name) for name in _TRAINING if name not in said}


def _shared(headers: Iterable[Header]) -> dict[str, set[object]]:
    unsaid = [_unsaid(header) for header in headers]
    return {name: {known[name] for known in unsaid if known.get(name) is not None} for name in _TRAINING}


def _command(headers: Sequence[Header]) -> str:
    trained = [
        word for name, values in _shared(headers).items() for value in values for word in _option(name, value)
    ]
    seeds = max(header.seed for header in headers) + 1
    rows = list(dict.fromkeys(header.spec for header in headers))
    words = [*trained, *_option("seeds", seeds), "--techniques", *rows]
    return f"laconic compare {_conditions(headers[0])} {shlex.join(words)}"


def _option(name: str, value: object) -> list[str]:
    return [f"--{name}", str(value)]


def _name(run: Run) -> str:
    return f"{run.header.label}, {_place(run.header)}, seed {run.header.seed}"


def _place(setting: Setting) -> str:
    return f"{setting.task}, {setting.workers} workers, {setting.link}"


def _joined(parts: Iterable[object]) -> str:
    return ", ".join(map(str, parts))
