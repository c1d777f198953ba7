"""What may happen to a worker, by name: what does it, and what everybody should make of it."""

from __future__ import annotations

import functools
import signal
import sysconfig
import tempfile
import time
from pathlib import Path
from subprocess import run
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.faults.stage import Stage, Worker

    Act = Callable[[Stage, Worker], None]

BRIEFLY = 5.0
"""Seconds."""


class Kind(NamedTuple):
    """Something that happens to one worker, the culprit, in the midst of training."""

    name: str
    act: Act | None = None
    """What we do to it; or else its own script does something."""
    mishap: str | None = None
    heals: bool = False
    """Whether everybody goes on, and ends where an undisturbed run does."""
    spares: bool = False
    """Whether the culprit's own program is as well as the others'."""


def _killed(_stage: Stage, worker: Worker) -> None:
    worker.signal(signal.SIGKILL)


def _stopped(_stage: Stage, worker: Worker) -> None:
    worker.signal(signal.SIGSTOP)


def _cut(stage: Stage, worker: Worker) -> None:
    stage.lab.at_switch("ip", f"link set p{worker.number} down")


def _stopped_briefly(stage: Stage, worker: Worker) -> None:
    _stopped(stage, worker)
    time.sleep(BRIEFLY)
    worker.signal(signal.SIGCONT)


def _cut_briefly(stage: Stage, worker: Worker) -> None:
    _cut(stage, worker)
    time.sleep(BRIEFLY)
    mend(stage, worker)


def mend(stage: Stage, worker: Worker) -> None:
    """The worker's link is as it was."""
    port = f"p{worker.number}"
    stage.lab.at_switch("ip", f"link set {port} up")


def _damaged(stage: Stage, worker: Worker) -> None:
    """A bit of what the worker sends is changed at the switch."""
    port = f"p{worker.number}"
    stage.lab.at_switch(
        "tc",
        f"qdisc replace dev {port} clsact",
        f"filter replace dev {port} ingress prio 1 bpf direct-action object-file {flip()} section tc",
    )


def undamaged(stage: Stage, worker: Worker) -> None:
    """Nothing more is changed."""
    stage.lab.at_switch("tc", f"qdisc del dev p{worker.number} clsact")


@functools.cache
def flip() -> Path:
    """flip.c, compiled for the kernel."""
    made = Path(tempfile.mkdtemp(prefix="laconic-flip-"), "flip.o")
    headers = f"/usr/include/{sysconfig.get_config_var('MULTIARCH')}"
    command = ["clang", "-O2", "-g", "-target", "bpf", "-I", headers, "-c"]
    run([*command, str(Path(__file__).with_name("flip.c")), "-o", str(made)], check=True)
    return made


NOTHING = Kind("nothing", heals=True, spares=True)
DAMAGED = Kind("a bit changed on the wire", _damaged, spares=True)
KINDS = (
    Kind("killed", _killed),
    Kind("stopped for good", _stopped),
    Kind("link cut for good", _cut),
    Kind("raises an error", mishap="raises"),
    Kind("catches its error, lives on", mishap="lives on"),
    Kind("skips a backward", mishap="skips"),
    Kind("a bit of its parameters changed", mishap="loses a bit", spares=True),
    DAMAGED,
    Kind("stopped for 5 s", _stopped_briefly, heals=True, spares=True),
    Kind("link cut for 5 s", _cut_briefly, heals=True, spares=True),
    NOTHING,
)
