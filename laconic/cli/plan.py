"""`laconic plan`: is it worth it, and which technique, for sizes and links that cannot be tried here."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from laconic.cli.options import check_positive, device_at, directory_at

if TYPE_CHECKING:
    import argparse

    from laconic.plan.answer import Question

Figure: TypeAlias = "tuple[str, Callable[[], dict[str, Any]]]"
"""A name, and how to draw it."""


def describe_plan(parser: argparse.ArgumentParser) -> None:
    """The parser takes the options of `laconic plan`."""
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--link", default="1gbit", help="of every worker, both ways (default: 1gbit)")
    parser.add_argument("--params", default="100M", help="of the model, such as 350M or 1.3B (default: 100M)")
    parser.add_argument("--compute", metavar="TIME", help="forward and backward of a step, such as 250ms")
    parser.add_argument(
        "--rows",
        type=int,
        metavar="N",
        help="batch times positions of a worker (default: 2048, or a record's batch)",
    )
    parser.add_argument("--width", type=int, metavar="N", help="of its layers, which are square (1024)")
    parser.add_argument("--latency", default="50us", metavar="TIME", help="of the link (default: 50us)")
    parser.add_argument("--cores", type=float, default=2.0, help="of a worker; 1 where kernels share the GPU")
    parser.add_argument("--techniques", nargs="+", metavar="SPEC", help="as `laconic compare` takes them")
    parser.add_argument("--device", default="cpu", help="where kernels are timed, such as cuda")
    parser.add_argument("--scaling", action="store_true", help="also draw 2 to 1024 workers")
    parser.add_argument(
        "--runs", type=Path, nargs="+", metavar="DIR", help="draw what records say about scaling, and no plan"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where figures go; without it, none is drawn")


def plan(options: argparse.Namespace) -> None:
    """The table, the verdict and what they rest on are printed, and the figures drawn."""
    check_positive(options, "rows", "width", "cores")
    directory = _directory(options)
    figures = _planned(options) if options.runs is None else _recorded(options)
    for name, spec in figures:
        if directory is not None:
            from laconic.report import charts

            print(charts.figure(spec(), directory / f"{name}.svg"))


def _directory(options: argparse.Namespace) -> Path | None:
    """Where figures go, if any are drawn; what would hinder that fails now."""
    if options.out is None:
        if options.scaling or options.runs:
            raise ValueError("scaling is shown as a figure; say where with --out DIR")
        return None
    from laconic.report import charts

    charts.engine()
    return directory_at(options.out)


def _planned(options: argparse.Namespace) -> Iterator[Figure]:
    from laconic.plan import charts, scaling, text
    from laconic.plan.answer import TECHNIQUES, ask, parse

    question, device = _question(options), device_at(options.device)
    contestants = parse(options.techniques or TECHNIQUES.split())
    answer = ask(question, contestants, device)
    print(text.text(answer), text.verdict(answer), sep="\n\n", end="\n\n")
    print("\n".join(f"- {sentence}" for sentence in text.assumptions(answer, device)))
    yield "plan", lambda: charts.by_rate(answer)
    if options.scaling:
        words = f"by the model alone; {charts.subtitle(question)}"
        points = scaling.planned(question, contestants, device)
        yield "scaling", lambda: charts.by_workers(points, [], words)


def _recorded(options: argparse.Namespace) -> Iterator[Figure]:
    """A figure for every task and link of the records."""
    from laconic.lab import records, tasks
    from laconic.plan import charts, scaling
    from laconic.plan.charges import Model

    runs, device = records.find(options.runs), device_at(options.device)
    settings, names = scaling.settings(runs), Counter[str]()
    if not settings:
        raise ValueError(
            "none of these records is of a shaped link; give some of `laconic compare --link 100mbit`"
        )
    for shaped in settings:
        header = shaped[0].header
        same = scaling.same_but_for_workers
        bare = [run for run in runs if run.header.link == "none" and same(run.header) == same(header)]
        rows = options.rows or header.batch * tasks.rows(header.task, header.size)
        model = Model(header.parameters, options.width or 1024, rows)
        lines = scaling.extended(bare, header.link, model, device)
        dots = scaling.measured(shaped)
        words = f"{header.task} on links of {header.link}: dots are measured, lines are by the model"
        name = f"scaling-{header.task}-{header.link}"
        names[name] += 1
        number = f"-{names[name]}" if names[name] > 1 else ""
        yield name + number, functools.partial(charts.by_workers, lines, dots, words)


def _question(options: argparse.Namespace) -> Question:
    from laconic.lab.links import parse_rate
    from laconic.plan.answer import FLOPS, Question
    from laconic.plan.charges import Model
    from laconic.plan.cost import Link
    from laconic.plan.units import parse_count, parse_seconds

    rate = parse_rate(options.link)
    if rate is None:
        raise ValueError("--link is none, on which nothing waits; use a rate such as 10gbit")
    model = Model(parse_count("--params", options.params), options.width or 1024, options.rows or 2048)
    guess = 6 * model.parameters * model.rows / FLOPS
    compute = guess if options.compute is None else parse_seconds("--compute", options.compute)
    link = Link(rate, parse_seconds("--latency", options.latency))
    return Question(options.workers, link, model, compute, options.cores, options.compute is not None)
