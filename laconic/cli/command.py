"""What every command has: a parser that errs in one sentence, an exit status, and rows for people or for programs."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """The sentence is printed, and the program ends."""
        print(f"laconic: {message}", file=sys.stderr)
        sys.exit(2)


def program(
    name: str,
    describe: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], int | None],
    arguments: Sequence[str] | None = None,
) -> int:
    """The exit status of a program that has this command alone, such as `python -m benchmarks.ops`."""
    parser = Parser(prog=name, allow_abbrev=False)
    parser.set_defaults(run=run)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    describe(parser)
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(words)
    options.words = words
    return outcome(options)


def outcome(options: argparse.Namespace) -> int:
    """The exit status of what these options run: 0, or 2 after one sentence about what is wrong."""
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


def show(rows: list[Any], text: Callable[[list[Any]], str], as_json: bool) -> None:
    """Named tuples are printed, for people or for programs."""
    print(json.dumps([row._asdict() for row in rows], indent=1) if as_json else text(rows))
