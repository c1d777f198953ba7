"""`python -m benchmarks.ops`: how fast the ops are, against a plain copy and their peers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from benchmarks.ops import table
from laconic.cli.command import program, show
from laconic.cli.options import check_positive

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 after one sentence about what is wrong."""
    return program("python -m benchmarks.ops", _describe, _measure, arguments)


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--coordinates", type=int, default=16_000_000, metavar="N")


def _measure(options: argparse.Namespace) -> None:
    check_positive(options, "coordinates")
    show(table.measure(options.coordinates), table.text, options.json)


if __name__ == "__main__":
    sys.exit(main())
