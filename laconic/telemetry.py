"""What a run says about itself: JSON lines with a header, and TensorBoard scalars.

attachment.on_step(laconic.JsonLines(f"run{rank}.jsonl", laconic.header(attachment.technique)))
attachment.on_step(laconic.TensorBoard("runs/first"))
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from laconic import kernels

if TYPE_CHECKING:
    from collections.abc import Mapping

    from laconic.core.meter import Stats


BEGINNING = b'{"kind": "header"'
"""Of every log's first line."""


def installed_version() -> str:
    """The package's version, or a word for a source tree that was never installed."""
    try:
        return version("laconic")
    except PackageNotFoundError:
        return "source tree"


def commit() -> str | None:
    """The commit that the package's own source is at; it says so if there are changes since."""
    root = Path(__file__).parent.parent
    if not (root / ".git").exists():  # it is installed, and a repository around it is somebody else's
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def header(technique: object, **more: object) -> dict[str, Any]:
    """What makes a run repeatable: technique, versions, kernels, machine, and `more`; and what to beware of."""
    warning = getattr(technique, "warning", "")
    return {
        "version": 1,
        "technique": repr(technique),
        **({"warning": warning} if warning else {}),
        "versions": {
            "laconic": installed_version(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "commit": commit(),
        "kernels": kernels.description(),
        "machine": machine(),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **more,
    }


def machine(device: str = "cpu") -> str:
    """The processor and, if the device is one, the GPU."""
    more = f", {torch.cuda.get_device_name()}" if device == "cuda" else ""
    return f"{_processor()}, {os.cpu_count()} cores{more}"


class JsonLines:
    """A file with one JSON object a line, each with its kind; the first is the header.

    A file that is there already is that of a run before, which this one resumes: it goes on behind another header.
    Nobody else can write it meanwhile, so each worker that is to write needs a file of its own.
    """

    def __init__(self, path: str | Path, header: Mapping[str, object]) -> None:
        self._file = _continued(Path(path))
        self.write("header", **header)

    def __call__(self, step: int, stats: Stats) -> None:
        """A line for the step; this makes it a listener for `Attachment.on_step`."""
        line = {"sent": stats.sent, "received": stats.received, "phases": stats.seconds}
        self.write("step", step=step, readings=stats.readings, **line)

    def write(self, kind: str, **values: object) -> None:
        """A line of the given kind."""
        self._file.write(json.dumps({"kind": kind, **values}) + "\n")

    def close(self) -> None:
        """The file is complete, and others may write it."""
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_UN)  # also for processes that were forked meanwhile
        self._file.close()


def _continued(path: Path) -> IO[str]:
    """The file behind its last whole line; one that was cut, when its run was killed, is taken away."""
    file = path.open("a", buffering=1, encoding="utf-8")
    try:
        _claim(file, path)
        content = path.read_bytes()
        if content[: len(BEGINNING)] != BEGINNING[: len(content)]:
            raise ValueError(f"{path} is there already, and no run's log; choose another file")
        os.truncate(file.fileno(), content.rfind(b"\n") + 1)
    except BaseException:
        file.close()
        raise
    return file


def _claim(file: IO[str], path: Path) -> None:
    """Nobody else writes the file, as far as its file system can tell."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"{path} is being written already; give each worker a file of its own, or close() the other log"
        ) from None
    except OSError:  # it cannot
        pass


class TensorBoard:
    """Scalars under `laconic/`, from a listener for `Attachment.on_step`.

    Of several workers, each has a run of its own: `worker0` in `log_dir`, `worker1` and so on.
    """

    def __init__(self, log_dir: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("TensorBoard is not installed; pip install 'laconic[tensorboard]'") from error
        alone = not dist.is_initialized() or dist.get_world_size() == 1
        self._writer = SummaryWriter(str(log_dir if alone else Path(log_dir) / f"worker{dist.get_rank()}"))

    def __call__(self, step: int, stats: Stats) -> None:
        """Bytes, seconds by phase, and what the technique noticed in this step."""
        scalars: dict[str, float] = {"bytes/sent": stats.sent, "bytes/received": stats.received}
        scalars.update({f"seconds/{phase}": seconds for phase, seconds in stats.seconds.items()})
        scalars.update({f"readings/{name}": value for name, value in stats.readings.items()})
        for name, value in scalars.items():
            self._writer.add_scalar(f"laconic/{name}", value, step)

    def close(self) -> None:
        """All is written."""
        self._writer.close()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
