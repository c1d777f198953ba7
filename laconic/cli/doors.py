"""`laconic bench | results`: doors to programs of a clone's benchmarks/, which is not installed with the package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import laconic

if TYPE_CHECKING:
    import argparse

PROGRAMS = {"bench": "benchmarks.ops", "results": "benchmarks.results"}


def describe(_parser: argparse.ArgumentParser) -> None:
    """The parser takes nothing: all words are the program's own."""


def enter(options: argparse.Namespace) -> int:
    """The exit status of the program behind the command."""
    name = PROGRAMS[options.command]
    main = Path(*name.split("."), "__main__.py")
    places = Path(laconic.__file__).parents[1], Path.cwd()
    clone = next((place for place in places if (place / main).is_file()), None)
    if clone is None:
        raise RuntimeError(f"laconic {options.command} needs a clone of the repository; run it there")
    sys.path.insert(0, str(clone))
    try:
        importlib.import_module("benchmarks")
    finally:
        sys.path.remove(str(clone))  # nothing else is looked for there
    words = [*options.words, "--debug"] if options.debug else options.words
    status: int = importlib.import_module(f"{name}.__main__").main(words)
    return status
