"""The comparisons that Laconic is judged by: `python -m benchmarks.compare --preset paper --out RUNS`.

All else is as with `laconic compare`: what RUNS has is not run again, and `--only` chooses lines of a preset.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

from benchmarks.presets import PRESETS
from laconic.cli import compare
from laconic.cli.command import program

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 after one sentence about what is wrong."""
    describe = functools.partial(compare.describe_compare, presets=PRESETS)
    return program("python -m benchmarks.compare", describe, compare.compare, arguments)


if __name__ == "__main__":
    sys.exit(main())
