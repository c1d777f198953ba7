"""The commands that study one process: `laconic inspect | simulate`."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from laconic.cli.options import (
    DATA,
    check_positive,
    describe_training,
    device_at,
    directory_at,
    fresh,
    settings_of,
)

if TYPE_CHECKING:
    import argparse

    from laconic.lab.worker import Settings

METHODS = "allreduce crossover hierarchical sgp one_segment unfair"


def describe_inspect(parser: argparse.ArgumentParser) -> None:
    """The parser takes the options of `laconic inspect`."""
    parser.add_argument(
        "what", choices=INSPECTED, help="gradients: their density and its code; rank: of every layer"
    )
    parser.add_argument("task", help="digits, fashion or text")
    parser.add_argument(
        "--every", type=int, metavar="STEPS", help="look at the first step, and so often from there"
    )
    parser.add_argument("--seed", type=int, default=0)
    describe_training(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the figure and the table go")
    parser.set_defaults(workers=1, link="none", split="iid", eval_every=None, device="cpu")


def inspect(options: argparse.Namespace) -> None:
    """A task's gradients, or their ranks, are printed, tabled and drawn."""
    from laconic.report import charts

    check_positive(options, "every")
    settings = replace(settings_of(options), seed=options.seed)
    charts.engine()  # fails now, if at all
    directory = directory_at(options.out or fresh(f"inspect-{options.task}"))
    INSPECTED[options.what](settings, options.every, directory)


def _inspect_gradients(settings: Settings, every: int | None, directory: Path) -> None:
    from laconic.report import charts
    from laconic.studies import gradient_charts, inspect_gradients

    looks = inspect_gradients.watch(settings, every)
    layers = inspect_gradients.summarize(looks)
    print(inspect_gradients.text(layers), end="\n\n")
    print(inspect_gradients.write_csv(layers, directory / "gradients.csv"))
    print(charts.figure(gradient_charts.figure(settings, looks, layers), directory / "gradients.svg"))


def _inspect_rank(settings: Settings, every: int | None, directory: Path) -> None:
    from laconic.report import charts, rank_charts
    from laconic.studies import inspect_rank

    looks = inspect_rank.watch(settings, every)
    print(inspect_rank.text(looks), end="\n\n")
    print(inspect_rank.write_csv(looks, directory / "rank.csv"))
    print(charts.figure(rank_charts.figure(settings, looks), directory / "rank.svg"))


INSPECTED = {"gradients": _inspect_gradients, "rank": _inspect_rank}


def describe_simulate(parser: argparse.ArgumentParser) -> None:
    """The parser takes the options of `laconic simulate`."""
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
    parser.add_argument("--data", type=Path, help=DATA)
    parser.add_argument("--device", default="cpu", help="such as cuda")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where runs and figures go")


def simulate(options: argparse.Namespace) -> None:
    """Virtual workers are trained; the table is printed and the figures drawn."""
    from laconic.lab import tasks
    from laconic.report import charts
    from laconic.studies import simulate_charts, simulate_study, simulate_table

    check_positive(options, "epochs", "steps", "seeds", "groups")
    size = options.size or tasks.smallest(options.task)
    task = tasks.load(options.task, data=options.data, size=size)
    chosen = {field.name: getattr(options, field.name) for field in fields(simulate_study.Study)}
    cells = simulate_study.Study(**chosen).cells(task, size)
    charts.engine()  # fails now, if at all
    device_at(options.device)  # fails now, if at all
    directory = directory_at(options.out or fresh(f"simulate-{options.task}"))
    with simulate_table.Watch(cells, task) as watch:
        runs = watch.follow(simulate_study.run(cells, task, directory, options.device, watch.step))
    rows = simulate_table.best(runs, task)
    print(simulate_table.text(rows, task), end="\n\n")
    for name, spec in simulate_charts.figures(rows, task).items():
        print(charts.figure(spec, directory / f"{name}.svg"))
