"""The commands about runs: `laconic train | report | pack`, and what they share with `compare`."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from laconic.cli.options import describe_run, directory_at, fresh, settings_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from laconic.lab.compare import Comparison


def describe_train(parser: argparse.ArgumentParser) -> None:
    """The parser takes the options of `laconic train`."""
    parser.add_argument("task", help="digits, fashion or text")
    parser.add_argument("--technique", default="dense", metavar="SPEC", help="such as dense:dtype=bf16")
    parser.add_argument("--seed", type=int, default=0)
    describe_run(parser)


def train(options: argparse.Namespace) -> None:
    """One run is recorded and reported."""
    from laconic.lab.compare import Comparison

    plan = Comparison(settings_of(options), (options.technique,), (options.seed,))
    directory = directory_at(options.out or fresh(options.task))
    print(report_on(run_comparison(plan, directory), directory))


def describe_report(parser: argparse.ArgumentParser) -> None:
    """The parser takes the options of `laconic report`."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="records, packs or directories of records"
    )
    parser.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE")


def report(options: argparse.Namespace) -> None:
    """The report of recorded runs is in the file."""
    from laconic.lab import records
    from laconic.report import page

    print(page.write(records.find(options.runs), options.out))


def describe_pack(parser: argparse.ArgumentParser) -> None:
    """The parser takes the options of `laconic pack`."""
    parser.add_argument("directory", type=Path, metavar="RUNS", help="a directory of records")
    parser.add_argument("file", type=Path, metavar="FILE", help="such as docs/records.tar.xz")


def pack(options: argparse.Namespace) -> None:
    """The directory's records are in the file."""
    from laconic.report import packs

    print(packs.write(options.directory, options.file))


def run_comparison(plan: Comparison, directory: Path) -> list[Path]:
    """The records of all runs, in `directory`."""
    return run_lines([(plan, directory)], set())


def run_lines(lines: Sequence[tuple[Comparison, Path]], said: set[str], part: str = "") -> list[Path]:
    """The records of all runs, each in its plan's directory; plans, which differ in links only, go abreast.

    Where there are several, some of their techniques do, too, each on links of its own. A sentence that was `said`
    before is not said again.
    """
    from laconic.lab.compare import compare, rows_abreast
    from laconic.lab.links import Lab, parse_links
    from laconic.lab.progress import LiveTable

    rows = rows_abreast(sum(plan.base.workers for plan, _ in lines)) if len(lines) > 1 else 1
    with ExitStack() as stack:
        runs, titles = [], []
        for plan, directory in lines:
            links = parse_links(plan.base.link, plan.base.workers)
            labs = [stack.enter_context(Lab(links)) for _ in range(min(rows, len(plan.specs)))]
            _say([labs[0].note or "", *plan.warnings], said)
            settings = plan.runs(directory, labs[0])
            runs.append([(each, labs[i % len(labs)]) for i, each in enumerate(settings)])
            titles.append(plan.base.link + ("" if labs[0].shaped else ", not shaped"))
        links_of_rows = list(zip(*runs, strict=True))
        abreast = [
            [run for row in links_of_rows[start : start + rows] for run in row]
            for start in range(0, len(links_of_rows), rows)
        ]
        base = lines[0][0].base
        title = f"{base.task}, {base.workers} workers, {'; '.join(titles)}{part}"
        table = stack.enter_context(LiveTable([settings for each in abreast for settings, _ in each], title))
        return compare(abreast, table)


def report_on(recorded: Sequence[Path], directory: Path) -> Path:
    """The report on these records, in the directory."""
    from laconic.lab.records import find
    from laconic.report import page

    return page.write(find(recorded), directory / "report.html")


def _say(sentences: Iterable[str], said: set[str]) -> None:
    for sentence in sentences:
        if sentence and sentence not in said:
            print(f"laconic: {sentence}", file=sys.stderr)
            said.add(sentence)
