"""`laconic compare`: one comparison, or the lines of a preset, restartable and in one report."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from laconic.cli.options import check_positive, describe_run, directory_at, fresh, settings_of
from laconic.cli.runs import report_on, run_comparison, run_lines
from laconic.lab.presets import DEFAULT, PRESETS, ROWS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from laconic.lab.compare import Comparison, Line

    Presets = Mapping[str, Sequence[str]]


def describe_compare(parser: argparse.ArgumentParser, presets: Presets = PRESETS) -> None:
    """The parser takes the options of `laconic compare`, and the names of these presets."""
    parser.set_defaults(presets=presets)
    parser.add_argument("task", nargs="?", help=f"digits, fashion or text (default: --preset {DEFAULT})")
    parser.add_argument(
        "--techniques", nargs="+", default=ROWS.split(), metavar="SPEC", help=f"(default: {ROWS})"
    )
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of each, with seeds 0 to N-1")
    parser.add_argument(
        "--preset", metavar="NAME", help=f"{', '.join(presets)}: a comparison that other options change"
    )
    parser.add_argument(
        "--only", metavar="TEXT", help="of a preset only the lines with this in their name, as fashion-4"
    )
    describe_run(parser)


def compare(options: argparse.Namespace) -> None:
    """All runs of the comparison are recorded and reported."""
    check_positive(options, "seeds")
    if options.task is None:
        _compare_preset(options.preset or DEFAULT, options)
    elif options.preset is not None:
        raise ValueError(f"--preset {options.preset} has tasks of its own; leave out {options.task}")
    elif options.only is not None:
        raise ValueError(f"--only {options.only} chooses lines of a preset; name one with --preset")
    else:
        plan = _plan(options)
        directory = directory_at(options.out or fresh(options.task))
        print(report_on(run_comparison(plan, directory), directory))


def _compare_preset(preset: str, options: argparse.Namespace) -> None:
    """All chosen lines of a preset, each in a directory of its own where there are several, in one report."""
    several = len(_preset(options.presets, preset)) > 1
    for option in ("--link", "--workers"):
        if several and any(word.partition("=")[0] == option for word in options.words):
            raise ValueError(
                f"--preset {preset} has lines with {option} of their own; leave it out, or use --only"
            )
    lines = lines_of(options.presets, preset, options.only, options.words)
    directory = directory_at(options.out or fresh(preset))
    if several:
        print(_compare_lines(lines, directory))
    else:
        print(report_on(run_comparison(lines[0].plan, directory), directory))


def _compare_lines(lines: Sequence[Line], directory: Path) -> Path:
    """The report on all that the directory has once the lines are recorded; there is one after each round."""
    from laconic.lab.compare import rounds

    said: set[str] = set()
    for number, together in enumerate(rounds(lines), 1):
        for alike in together:
            part = f", seed {alike[0].plan.seeds[0]} (round {number})"
            run_lines([(line.plan, directory_at(directory / line.name)) for line in alike], said, part)
        report = report_on([directory], directory)
    return report


def lines_of(presets: Presets, preset: str, only: str | None = None, given: Sequence[str] = ()) -> list[Line]:
    """The preset's lines, or those with this text in their name, with more words `given` for each."""
    from laconic.lab.compare import Line

    lines = named(_preset(presets, preset))
    chosen = {name: words for name, words in lines.items() if only is None or only in name}
    if not chosen:
        raise ValueError(f"no line of {preset} has {only!r} in its name; they are {', '.join(lines)}")
    return [Line(name, _plan(_parsed([*words.split(), *given]))) for name, words in chosen.items()]


def named(lines: Sequence[str]) -> dict[str, str]:
    """The lines, each under a name of its own: task, workers and link, and what it takes to tell it from others."""
    names: dict[str, str] = {}
    for number, words in enumerate(lines):
        options = _parsed(words.split())
        name = f"{options.task}-{options.workers}-{options.link}".replace(",", "+")
        more = ["", f"-{options.split.replace(':', '-')}", f"-{options.steps}", f"-{number}"]
        names[
            next(name + end for end in more if end not in ("-iid", "-None") and name + end not in names)
        ] = words
    return names


def _preset(presets: Presets, name: str) -> Sequence[str]:
    if name not in presets:
        more = "; python -m benchmarks.compare has more, in a clone of the repository"
        known = ", ".join(presets) + (more if presets is PRESETS else "")
        raise ValueError(f"unknown preset {name!r}; there is {known}")
    return presets[name]


def _plan(options: argparse.Namespace) -> Comparison:
    from laconic.lab.compare import Comparison

    return Comparison(settings_of(options), tuple(options.techniques), tuple(range(options.seeds)))


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """The options that a line of a preset stands for."""
    parser = argparse.ArgumentParser(prog="laconic compare", allow_abbrev=False)
    parser.add_argument("--debug", action="store_true")
    describe_compare(parser)
    return parser.parse_args(words)
