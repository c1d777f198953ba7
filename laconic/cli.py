"""The command line: `laconic train | compare | report | inspect | simulate | doctor | bench | lab`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laconic.presets import PRESETS
from laconic.specs import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from laconic.train import Settings

ROWS = "ddp fp16 powersgd:rank=2 dense:dtype=bf16 thc sign_vote:density=0.1@lr=0.003,momentum=0"

METHODS = "allreduce crossover hierarchical sgp one_segment unfair"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 after one sentence about what is wrong."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(words)
    options.words = words
    run: Callable[[argparse.Namespace], int | None] = options.run
    try:
        return run(options) or 0
    except KeyboardInterrupt:
        print("laconic: interrupted", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        if options.debug:
            raise
        print(f"laconic: {error}", file=sys.stderr)
        return 2


class _Parser(argparse.ArgumentParser):
    """Errors are one sentence, with the nearest command where one was mistyped."""

    def error(self, message: str) -> NoReturn:
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        if "invalid choice" in message and command not in COMMANDS:
            message = f"unknown command {command!r}{nearest(command, COMMANDS)}"
        print(f"laconic: {message}", file=sys.stderr)
        sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="laconic", description="Train PyTorch models over the network you have.", allow_abbrev=False
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    for name, (describe, run, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        command.set_defaults(run=run)
        command.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks"
        )
        describe(command)
    return parser


def _describe_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", help="digits, fashion or text")
    parser.add_argument("--technique", default="dense", metavar="SPEC", help="such as dense:dtype=bf16")
    parser.add_argument("--seed", type=int, default=0)
    _describe_run(parser)


def _describe_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", nargs="?", help="digits, fashion or text (default: digits --size wide)")
    parser.add_argument(
        "--techniques", nargs="+", default=ROWS.split(), metavar="SPEC", help=f"(default: {ROWS})"
    )
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of each, with seeds 0 to N-1")
    parser.add_argument(
        "--preset", choices=PRESETS, help="a comparison that comes with Laconic; other options change it"
    )
    _describe_run(parser)


def _describe_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--link", default="100mbit", help="none, a rate, or one rate a worker: 1gbit,100mbit")
    parser.add_argument("--eval-every", type=int, metavar="STEPS")
    parser.add_argument("--split", default="iid", help="iid, labels:2 or dirichlet:0.3")
    _describe_training(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where records and the report go")


def _describe_training(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int, help="samples of one worker")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--momentum", type=float)
    parser.add_argument("--optimizer", choices=["sgd", "adam"])
    parser.add_argument("--size", help="the model's, for tasks that have several")
    parser.add_argument("--data", help="where fashion's files are")


def _train(options: argparse.Namespace) -> None:
    directory = _directory(options.out or _fresh(options.task))
    _report_on(_run_all(options, (options.technique,), (options.seed,), directory), directory)


def _compare(options: argparse.Namespace) -> None:
    _check_positive(options, "seeds")
    if options.preset is not None and options.task is not None:
        raise ValueError(f"--preset {options.preset} has tasks of its own; leave out {options.task}")
    if options.task is None:
        options.task, options.size = "digits", options.size or "wide"
    if options.preset is None:
        directory = _directory(options.out or _fresh(options.task))
        _report_on(_run_rows(options, directory), directory)
    else:
        _compare_preset(options)


def _compare_preset(options: argparse.Namespace) -> None:
    """All of a preset's comparisons, each in a directory of its own, in one report."""
    given = _without_preset(options.words)
    commands = [_parser().parse_args(["compare", *line.split(), *given]) for line in PRESETS[options.preset]]
    directory = _directory(options.out or _fresh(options.preset))
    recorded = [
        record
        for number, command in enumerate(commands)
        for record in _run_rows(command, _directory(directory / str(number)))
    ]
    _report_on(recorded, directory)


def _without_preset(words: Sequence[str]) -> list[str]:
    """The words behind `compare`, less the preset's name."""
    rest = list(words[list(words).index("compare") + 1 :])
    if "--preset" in rest:
        at = rest.index("--preset")
        return rest[:at] + rest[at + 2 :]
    return [word for word in rest if not word.startswith("--preset=")]


def _run_rows(options: argparse.Namespace, directory: Path) -> list[Path]:
    return _run_all(options, tuple(options.techniques), tuple(range(options.seeds)), directory)


def _fresh(name: str) -> Path:
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def _report_on(recorded: Sequence[Path], directory: Path) -> None:
    from laconic import report
    from laconic.records import find

    print(report.write(find(recorded), directory / "report.html"))


def _run_all(
    options: argparse.Namespace, specs: tuple[str, ...], seeds: tuple[int, ...], directory: Path
) -> list[Path]:
    """The records of all runs, in `directory`."""
    from laconic.compare import Plan, compare
    from laconic.lab import Lab, parse_links
    from laconic.progress import LiveTable

    base = _settings(options)
    plan = Plan(base, specs, seeds)
    rates = parse_links(options.link, options.workers)
    with Lab(rates) as lab:
        for sentence in [*filter(None, [lab.note]), *plan.warnings]:
            print(f"laconic: {sentence}", file=sys.stderr)
        runs = plan.runs(directory, lab)
        title = f"{base.task}, {base.workers} workers, {base.link}" + ("" if lab.shaped else ", not shaped")
        with LiveTable(runs, title) as table:
            return compare(runs, lab, table)


def _settings(options: argparse.Namespace) -> Settings:
    from laconic import tasks
    from laconic.train import Settings, check_training

    _check_positive(options, "workers", "steps", "batch", "eval_every")
    check_training(vars(options))
    size = options.size or "default"
    task = tasks.load(options.task, data=Path(options.data) if options.data else None, size=size)
    split = tasks.parse_split(options.split)
    tuned = {name: _given(options, name, getattr(task.defaults, name)) for name in TUNED}
    next(task.batches(0, options.workers, batch=tuned["batch"], seed=0, split=split))  # fails now, if at all
    return Settings(
        task=options.task,
        spec="",
        workers=options.workers,
        record="",
        split=str(split),
        size=size,
        data=options.data,
        link=options.link,
        **tuned,
    )


TUNED = ("steps", "batch", "lr", "momentum", "optimizer", "eval_every")


def _given(options: argparse.Namespace, name: str, default: Any) -> Any:
    value = getattr(options, name)
    return default if value is None else value


def _check_positive(options: argparse.Namespace, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; it must be above zero")


def _directory(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / ".writable").touch()
        (path / ".writable").unlink()
    except OSError as error:
        raise OSError(f"cannot write to {path}: {error.strerror}; choose another --out") from error
    return path


def _describe_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="records, or directories of records"
    )
    parser.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE")


def _report(options: argparse.Namespace) -> None:
    from laconic import records, report

    print(report.write(records.find(options.runs), options.out))


def _describe_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", choices=INSPECTED, help="gradients: their density and its code; rank: of every layer"
    )
    parser.add_argument("task", help="digits, fashion or text")
    parser.add_argument(
        "--every", type=int, metavar="STEPS", help="look at the first step, and so often from there"
    )
    parser.add_argument("--seed", type=int, default=0)
    _describe_training(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the figure and the table go")
    parser.set_defaults(workers=1, link="none", split="iid", eval_every=None)


def _inspect(options: argparse.Namespace) -> None:
    from laconic import charts

    _check_positive(options, "every")
    settings = replace(_settings(options), seed=options.seed)
    charts.engine()  # fails now, if at all
    directory = _directory(options.out or _fresh(f"inspect-{options.task}"))
    INSPECTED[options.what](settings, options.every, directory)


def _inspect_gradients(settings: Settings, every: int | None, directory: Path) -> None:
    from laconic import charts, gradient_charts, inspect_gradients

    looks = inspect_gradients.watch(settings, every)
    layers = inspect_gradients.summarize(looks)
    print(inspect_gradients.text(layers), end="\n\n")
    print(inspect_gradients.write_csv(layers, directory / "gradients.csv"))
    print(charts.figure(gradient_charts.figure(settings, looks, layers), directory / "gradients.svg"))


def _inspect_rank(settings: Settings, every: int | None, directory: Path) -> None:
    from laconic import charts, inspect_rank, rank_charts

    looks = inspect_rank.watch(settings, every)
    print(inspect_rank.text(looks), end="\n\n")
    print(inspect_rank.write_csv(looks, directory / "rank.csv"))
    print(charts.figure(rank_charts.figure(settings, looks), directory / "rank.svg"))


INSPECTED = {"gradients": _inspect_gradients, "rank": _inspect_rank}


def _describe_simulate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["crossover"], help="crossover: gossip, and what it is compared with")
    parser.add_argument("task", nargs="?", default="fashion", help="digits, fashion or text")
    parser.add_argument("--workers", type=int, nargs="+", default=[16], help="one number, or several")
    parser.add_argument("--groups", type=int, default=4, help="of workers, for hierarchical")
    parser.add_argument("--batch", type=int, nargs="+", default=[32], help="samples of one worker")
    parser.add_argument("--epochs", type=float, default=5, help="times that all samples are seen")
    parser.add_argument("--steps", type=int, help="instead of epochs")
    parser.add_argument("--segments", type=int, default=16)
    parser.add_argument(
        "--methods", nargs="+", default=METHODS.split(), metavar="METHOD", help=f"(default: {METHODS})"
    )
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of each, with seeds 0 to N-1")
    parser.add_argument(
        "--lr", type=float, nargs="+", default=[0.05, 0.1], help="each method's best is shown"
    )
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--size", help="the model's (default: the smallest)")
    parser.add_argument("--data", type=Path, help="where fashion's files are")
    parser.add_argument("--device", default="cpu", help="such as cuda")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where runs and figures go")


def _simulate(options: argparse.Namespace) -> None:
    from laconic import charts, simulate, simulate_charts, simulate_study, simulate_table, tasks

    _check_positive(options, "epochs", "steps", "seeds", "groups")
    size = options.size or tasks.smallest(options.task)
    task = tasks.load(options.task, data=options.data, size=size)
    chosen = {field.name: getattr(options, field.name) for field in fields(simulate_study.Plan)}
    cells = simulate_study.Plan(**chosen).cells(task, size)
    charts.engine()  # fails now, if at all
    simulate.check_device(options.device)
    directory = _directory(options.out or _fresh(f"simulate-{options.task}"))
    with simulate_table.Watch(cells, task) as watch:
        runs = watch.follow(simulate_study.run(cells, task, directory, options.device, watch.step))
    rows = simulate_table.best(runs, task)
    print(simulate_table.text(rows, task), end="\n\n")
    for name, spec in simulate_charts.figures(rows, task).items():
        print(charts.figure(spec, directory / f"{name}.svg"))


def _describe_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")


def _doctor(options: argparse.Namespace) -> None:
    from laconic import doctor

    _show(doctor.examine(), doctor.text, options.json)


def _describe_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--coordinates", type=int, default=16_000_000, metavar="N")


def _bench(options: argparse.Namespace) -> None:
    from laconic import bench

    _check_positive(options, "coordinates")
    _show(bench.measure(options.coordinates), bench.text, options.json)


def _show(rows: list[Any], text: Callable[[list[Any]], str], as_json: bool) -> None:
    """Named tuples are printed, for people or for programs."""
    print(json.dumps([row._asdict() for row in rows], indent=1) if as_json else text(rows))


def _describe_lab(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["clean"], help="clean: remove what a killed run left behind")


def _lab(_options: argparse.Namespace) -> None:
    from laconic import lab

    for sentence in lab.clean() or ["there was nothing to remove"]:
        print(sentence)


COMMANDS = {
    "train": (_describe_train, _train, "train a task with one technique over an emulated link"),
    "compare": (
        _describe_compare,
        _compare,
        "train a task with several techniques side by side and write a report",
    ),
    "report": (_describe_report, _report, "draw the report of recorded runs again"),
    "inspect": (_describe_inspect, _inspect, "train a task alone and look at its gradients, or their rank"),
    "simulate": (_describe_simulate, _simulate, "train many virtual workers in one process"),
    "doctor": (
        _describe_doctor,
        _doctor,
        "say what is installed, which kernels run where, and what is missing",
    ),
    "bench": (_describe_bench, _bench, "measure the ops against a plain copy"),
    "lab": (_describe_lab, _lab, "look after emulated links"),
}

if __name__ == "__main__":
    sys.exit(main())
