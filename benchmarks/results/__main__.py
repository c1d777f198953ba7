"""`python -m benchmarks.results RUNS`: the page of results, its figures and its summary, from records."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.results import page
from benchmarks.results.board import board
from laconic.cli.command import program
from laconic.lab import records

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 after one sentence about what is wrong."""
    return program("python -m benchmarks.results", _describe, _write, arguments)


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUNS", help="records, packs or directories of records"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/results.md"), metavar="FILE")
    parser.add_argument(
        "--rates", nargs="+", type=Path, default=[], metavar="RUNS", help="records of other learning rates"
    )
    parser.add_argument(
        "--readme", type=Path, metavar="FILE", help="also put the summary between its markers"
    )


def _write(options: argparse.Namespace) -> None:
    """The page of results and its figures are written."""
    runs = records.find(options.runs)
    for path in page.write(runs, options.out, records.find(options.rates) if options.rates else ()):
        print(path)
    if options.readme is not None:
        link = os.path.relpath(options.out, options.readme.parent)
        print(page.replace_summary(options.readme, page.summary(board(runs), link)))


if __name__ == "__main__":
    sys.exit(main())
