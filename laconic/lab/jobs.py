"""A job of several nodes on one machine: a real torchrun at the end of every link of a lab.

    launcher ── torchrun of node i ── worker i

Both torchrun and the worker are started through the last part of this file. It has the kernel kill them
with their parent, so that however the launcher ends, nothing is left running; and it writes down a
worker's exception with its time, so that the worker that failed first is told from those that merely
lost their connection to it.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import runpy
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from laconic.lab.links import Lab

PARENT = "LACONIC_PARENT"
DEFAULTS = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONFAULTHANDLER": "1"}
GRACE = 15.0  # seconds that workers have to end by themselves after one has failed
PAUSE = 0.05
PATIENCE = 3.0  # seconds from asking a process to end to killing it
FALLOUT = re.compile(
    "Connection (closed|reset) by peer|Connection refused|Broken pipe|remote process exited"
    "|DistNetworkError|DistStoreError|RendezvousConnectionError"
    r"|worker \d+ of \d+: (workers? \d|a connection is broken|the others took)"
)


class WorkerError(RuntimeError):
    """A worker failed: the message names the first that did and gives its own traceback."""


class Job:
    """One torchrun per worker of `lab`, each running `target`: a module's name or a script's path.

    A module is one that is installed, or in PYTHONPATH: nothing is imported from the working directory, which may be
    anybody's, while labs are often root's.

    The workers live no longer than the thread that makes the job. What worker i prints is in
    `log_directory`/worker<i>.log.
    """

    def __init__(
        self,
        lab: Lab,
        target: str | Path,
        arguments: Sequence[str] = (),
        *,
        log_directory: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        log_directory.mkdir(parents=True, exist_ok=True)
        self.logs = [log_directory / f"worker{worker}.log" for worker in range(len(lab.rates))]
        self._errors = [log.with_suffix(".error") for log in self.logs]
        self._scratch = log_directory / "torchrun"
        self._nodes: list[Popen[bytes]] = []
        ours = {**lab.environment(), PARENT: str(os.getpid())}
        variables = {**DEFAULTS, **os.environ, **(environment or {}), **ours}
        rendezvous = f"--master-addr {lab.address(0)} --master-port {lab.port()}".split()
        try:
            for worker, error in enumerate(self._errors):
                error.unlink(missing_ok=True)
                program = [__file__, str(error), str(target), *arguments]
                command = [*self._torchrun(worker), *rendezvous, *program]
                self._nodes.append(_start(lab.command(worker, command), self.logs[worker], variables))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, poll: Callable[[], None] | None = None) -> None:
        """Every worker has ended well, or `WorkerError` says how the first one failed.

        `poll` is called several times a second until then, or until a worker fails.
        """
        try:
            self.wait_for(lambda: False, poll)
        finally:
            self.close()

    def wait_for(self, reached: Callable[[], bool], poll: Callable[[], None] | None = None) -> None:
        """It is `reached`, or every worker has ended well, or `WorkerError` says how the first one failed."""
        while self._is_running() and not self._failures():
            if poll:
                poll()
            if reached():
                return
            time.sleep(PAUSE)
        self._give(GRACE)
        failures = self._failures()
        if failures:
            first = min(failures)
            log = self.logs[first.worker]
            who = f"worker {first.worker} of {len(self.logs)}"
            raise WorkerError(f"{who}: {first.text.rstrip()}\n(the whole log is {log})")

    def close(self) -> None:
        """No process of this job is running; a second call changes nothing."""
        try:
            for node in self._nodes:
                node.terminate()
            self._give(PATIENCE)
        finally:
            for node in self._nodes:
                node.kill()
                node.wait()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _torchrun(self, worker: int) -> list[str]:
        nodes = f"--nnodes {len(self.logs)} --node-rank {worker} --nproc-per-node 1 --max-restarts 0"
        command = [sys.executable, __file__, "", "torch.distributed.run", "--log-dir", str(self._scratch)]
        return [*command, *nodes.split()]

    def _is_running(self) -> bool:
        return any(node.poll() is None for node in self._nodes)

    def _give(self, seconds: float) -> None:
        """All nodes have ended, or `seconds` have passed."""
        deadline = time.monotonic() + seconds
        while self._is_running() and time.monotonic() < deadline:
            time.sleep(PAUSE)

    def _failures(self) -> list[_Failure]:
        failures = []
        for worker, (node, error, log) in enumerate(zip(self._nodes, self._errors, self.logs, strict=True)):
            if error.exists():
                failures.append(_failure(worker, **json.loads(error.read_text())))
            elif node.poll():
                failures.append(_failure(worker, log.stat().st_mtime, _last_words(log)))
        return failures


class _Failure(NamedTuple):
    """What became of one worker; the least of several is the first that is not another's doing."""

    is_fallout: bool
    time: float
    worker: int
    text: str


def _failure(worker: int, time: float, text: str) -> _Failure:
    return _Failure(FALLOUT.search(text) is not None, time, worker, text)


def _last_words(log: Path) -> str:
    """What a worker that left no traceback said last, without torchrun's own long report."""
    text = log.read_text(errors="replace")
    said = re.split(r"^E[0-9]{4} .*torch/distributed/elastic/", text, maxsplit=1, flags=re.MULTILINE)[0]
    code = re.search(r"exitcode: (-?[0-9]+)", text)
    ending = f"it ended with exit code {code[1]}" if code else "its torchrun failed"
    return f"{ending}, and no traceback; it said last:\n" + "\n".join(said.splitlines()[-20:])


def _start(command: list[str], log: Path, variables: dict[str, str]) -> Popen[bytes]:
    # In a session of its own: Ctrl-C is for the launcher, which ends the workers in order.
    with log.open("wb") as output:
        return Popen(
            command, stdin=DEVNULL, stdout=output, stderr=STDOUT, env=variables, start_new_session=True
        )


def _run(error_file: str, target: str, *arguments: str) -> int:
    """`target` has run as the main program, bound to its parent; 1 if it raised."""
    end_with_parent()
    sys.argv = [target, *arguments]
    is_script = target.endswith(".py")
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this file's own place
    try:
        if is_script:
            sys.path.insert(0, str(Path(target).resolve().parent))
            runpy.run_path(target, run_name="__main__")
        else:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
    except Exception as error:
        _tell(_without_our_frames(error), error_file)
        return 1
    return 0


def end_with_parent() -> None:
    """The kernel kills this process as soon as its parent ends, or it has ended already."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != int(os.environ[PARENT]):
        sys.exit("the launcher is gone")
    os.environ[PARENT] = str(os.getpid())


def _without_our_frames(error: Exception) -> Exception:
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    return error.with_traceback(trace)


def _tell(error: Exception, error_file: str) -> None:
    """The exception is printed, and in `error_file`, unless that is empty, with its time."""
    if error_file:
        text = "".join(traceback.format_exception(error))
        draft = Path(f"{error_file}.draft")
        draft.write_text(json.dumps({"time": time.time(), "text": text}))
        draft.replace(error_file)  # at once, for the launcher reads it while we write
    sys.excepthook(type(error), error, error.__traceback__)


if __name__ == "__main__":
    sys.exit(_run(*sys.argv[1:]))
