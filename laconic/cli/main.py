"""The command line: `laconic train | compare | report | results | plan | inspect | simulate | doctor | bench | …`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from laconic.cli import compare, plan, runs, studies
from laconic.cli.options import check_positive
from laconic.lab.contestants import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn


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


def _describe_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")


def _doctor(options: argparse.Namespace) -> None:
    from laconic.cli import doctor

    _show(doctor.examine(), doctor.text, options.json)


def _describe_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--coordinates", type=int, default=16_000_000, metavar="N")


def _bench(options: argparse.Namespace) -> None:
    from benchmarks.ops import table

    check_positive(options, "coordinates")
    _show(table.measure(options.coordinates), table.text, options.json)


def _show(rows: list[Any], text: Callable[[list[Any]], str], as_json: bool) -> None:
    """Named tuples are printed, for people or for programs."""
    print(json.dumps([row._asdict() for row in rows], indent=1) if as_json else text(rows))


def _describe_lab(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["clean"], help="clean: remove what a killed run left behind")


def _lab(_options: argparse.Namespace) -> None:
    from laconic.lab import links

    for sentence in links.clean() or ["there was nothing to remove"]:
        print(sentence)


COMMANDS = {
    "train": (
        runs.describe_train,
        runs.train,
        "train a task with one technique over an emulated link",
    ),
    "compare": (
        compare.describe_compare,
        compare.compare,
        "train a task with several techniques side by side and write a report",
    ),
    "report": (runs.describe_report, runs.report, "draw the report of recorded runs again"),
    "results": (
        runs.describe_results,
        runs.results,
        "write the page of results of recorded runs, with its figures",
    ),
    "pack": (
        runs.describe_pack,
        runs.pack,
        "put the records of a directory into one small file, which other commands read",
    ),
    "plan": (plan.describe_plan, plan.plan, "say whether it would pay, and which technique"),
    "inspect": (
        studies.describe_inspect,
        studies.inspect,
        "train a task alone and look at its gradients, or their rank",
    ),
    "simulate": (
        studies.describe_simulate,
        studies.simulate,
        "train many virtual workers in one process",
    ),
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
