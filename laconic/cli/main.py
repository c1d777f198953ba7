"""The command line: `laconic train | compare | report | results | plan | inspect | simulate | doctor | bench | …`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from laconic.cli import compare, doors, plan, runs, studies
from laconic.cli.command import Parser, outcome, show
from laconic.lab.contestants import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 after one sentence about what is wrong."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser()
    options, unknown = parser.parse_known_args(words)
    if unknown and options.command not in doors.PROGRAMS:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    options.words = words[words.index(options.command) + 1 :]
    return outcome(options)


class _Parser(Parser):
    """An error names the nearest command where one was mistyped."""

    def error(self, message: str) -> NoReturn:
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        if "invalid choice" in message and command not in COMMANDS:
            message = f"unknown command {command!r}{nearest(command, COMMANDS)}"
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="laconic", description="Train PyTorch models over the network you have.", allow_abbrev=False
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, (describe, run, summary) in COMMANDS.items():
        behind_a_door = name in doors.PROGRAMS  # which has its own --help
        command = commands.add_parser(
            name, help=summary, description=summary, allow_abbrev=False, add_help=not behind_a_door
        )
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

    show(doctor.examine(), doctor.text, options.json)


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
        doors.describe,
        doors.enter,
        "write the page of results of recorded runs, with its figures (in a clone)",
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
    "bench": (doors.describe, doors.enter, "measure the ops against a plain copy (in a clone)"),
    "lab": (_describe_lab, _lab, "look after emulated links"),
}

if __name__ == "__main__":
    sys.exit(main())
