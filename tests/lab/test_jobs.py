"""Jobs of several nodes on one machine: that they talk over their links, fail clearly and end together."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from laconic.lab import jobs
from laconic.lab.jobs import GRACE, PATIENCE, Job, WorkerError
from laconic.lab.links import DISABLE, Lab
from tests.support.processes import members

PACKAGES = str(Path(jobs.__file__).parents[2])

WORKER = """
import os, signal, sys, time

def fail():
    raise ValueError(f"the batch of worker {rank} is empty")

def average():
    import torch, torch.distributed
    torch.distributed.init_process_group("gloo")
    if how == "raise" and rank == 1:
        fail()
    total = torch.full((1000,), rank + 1.0)
    torch.distributed.all_reduce(total)
    print("average", total.mean().item() / torch.distributed.get_world_size())
    torch.distributed.destroy_process_group()

def fail_in_turn():
    time.sleep((0, 2, 1)[rank])
    if rank == 0:
        raise RuntimeError("Connection reset by peer")
    fail()

def die():
    if rank == 0:
        raise RuntimeError("Connection closed by peer")
    time.sleep(1)
    print("the disk is full", file=sys.stderr)
    sys.exit(2) if how == "exit" else os.kill(os.getpid(), signal.SIGSEGV)

def refuse_to_end():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("refusing", flush=True)
    time.sleep(600)

def fail_beside_a_stubborn_worker():
    fail() if rank == 1 else refuse_to_end()

how = sys.argv[1]
rank = int(os.environ["RANK"])
print("threads", os.environ["OMP_NUM_THREADS"], "arguments", sys.argv[1:])
{
    "average": average,
    "raise": average,
    "in turn": fail_in_turn,
    "exit": die,
    "crash": die,
    "stubborn": refuse_to_end,
    "stubborn beside": fail_beside_a_stubborn_worker,
}[how]()
"""
LAUNCHER = """
import sys
from pathlib import Path
from laconic.lab.links import Lab
from laconic.lab.jobs import Job
with Lab([None, None]) as lab:
    print(lab.name, flush=True)
    Job(lab, sys.argv[1], ["stubborn"], log_directory=Path(sys.argv[2])).wait()
"""


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    path = tmp_path / "program" / "worker.py"
    path.parent.mkdir()
    path.write_text(WORKER)
    return path


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab([10**9, None]) as lab:
        yield lab


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def error_of(lab: Lab, worker: Path, how: str, tmp_path: Path) -> str:
    """What a job that must fail says; afterwards only the lab's own processes are left."""
    before = members(lab.name)
    with pytest.raises(WorkerError) as caught:
        Job(lab, worker, [how], log_directory=tmp_path).wait()
    wait_for(lambda: members(lab.name) == before, 2)
    return str(caught.value)


def seconds_since_the_error(log_directory: Path) -> float:
    return time.time() - json.loads((log_directory / "worker1.error").read_text())["time"]


def test_workers_average_over_their_links(worker: Path, tmp_path: Path) -> None:
    with Lab([10**8, 10**9]) as lab:
        if not lab.isolated:
            pytest.skip(str(lab.note))
        polls: list[float] = []
        job = Job(lab, worker, ["average", "--of", "two"], log_directory=tmp_path / "logs")
        job.wait(lambda: polls.append(time.monotonic()))
        for number, log in enumerate(job.logs):
            assert log == tmp_path / "logs" / f"worker{number}.log"
            assert "threads 1 arguments ['average', '--of', 'two']" in log.read_text()
            assert "average 1.5" in log.read_text()
            assert min(lab.counters(number)) > 4000  # the tensor alone
        assert len(polls) > 10
        assert sorted((tmp_path / "logs").iterdir()) == job.logs


def _with_a_torch_of_its_own(directory: Path) -> Path:
    """A working directory from which nothing should be imported."""
    directory.mkdir()
    for name in ("torch", "typing_extensions", "worker"):
        (directory / f"{name}.py").write_text("raise SystemExit('imported from the working directory')")
    return directory


def test_a_module_runs_without_namespaces_in_the_callers_environment_and_not_from_its_directory(
    tmp_path: Path, worker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DISABLE, "1")
    monkeypatch.setenv("PYTHONPATH", str(worker.parent))
    monkeypatch.chdir(_with_a_torch_of_its_own(tmp_path / "here"))
    with Lab([None, None]) as lab:
        variables = {"OMP_NUM_THREADS": "2"}
        job = Job(lab, "worker", ["average"], log_directory=tmp_path / "new" / "logs", environment=variables)
        job.wait()
    for log in job.logs:
        assert "threads 2 arguments ['average']" in log.read_text()
        assert "average 1.5" in log.read_text()


def test_the_traceback_of_the_worker_that_raised_comes_first(lab: Lab, worker: Path, tmp_path: Path) -> None:
    message = error_of(lab, worker, "raise", tmp_path)
    assert message.startswith(f'worker 1 of 2: Traceback (most recent call last):\n  File "{worker}", line')
    assert "in fail\n" in message
    assert "\nValueError: the batch of worker 1 is empty\n" in message
    assert message.endswith(f"(the whole log is {tmp_path / 'worker1.log'})")
    assert "Connection closed by peer" in (tmp_path / "worker0.log").read_text()
    assert seconds_since_the_error(tmp_path) < 30


def test_the_first_error_that_is_not_a_lost_connection_is_told(worker: Path, tmp_path: Path) -> None:
    with Lab([None] * 3) as lab:
        message = error_of(lab, worker, "in turn", tmp_path)
    assert message.startswith("worker 2 of 3: Traceback")
    assert "the batch of worker 2 is empty" in message


@pytest.mark.parametrize(("how", "code"), [("exit", 2), ("crash", -signal.SIGSEGV)])
def test_a_worker_without_a_traceback_is_told_by_its_exit_code_and_last_words(
    lab: Lab, worker: Path, tmp_path: Path, how: str, code: int
) -> None:
    message = error_of(lab, worker, how, tmp_path)
    assert message.startswith(f"worker 1 of 2: it ended with exit code {code}, and no traceback")
    assert "\nthe disk is full\n" in message
    assert "torch/distributed/elastic" not in message


def test_workers_that_will_not_end_are_killed_after_the_grace(
    lab: Lab, worker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert GRACE + PATIENCE < 20  # so that a job ends well within 30 seconds of the first failure
    monkeypatch.setattr(jobs, "GRACE", 1.0)
    message = error_of(lab, worker, "stubborn beside", tmp_path)
    assert "ValueError: the batch of worker 1 is empty" in message
    assert seconds_since_the_error(tmp_path) < 1 + PATIENCE + 2  # which a busy machine may need


def test_a_program_that_is_not_there_is_named(lab: Lab, tmp_path: Path) -> None:
    message = error_of(lab, Path("laconic_has_no_such_module"), "", tmp_path)
    assert re.match("worker [01] of 2: .*No module named laconic_has_no_such_module", message)


def test_an_exception_in_the_poll_ends_all(lab: Lab, worker: Path, tmp_path: Path) -> None:
    def give_up() -> None:
        raise ZeroDivisionError

    before = members(lab.name)
    with pytest.raises(ZeroDivisionError):
        Job(lab, worker, ["stubborn"], log_directory=tmp_path).wait(give_up)
    wait_for(lambda: members(lab.name) == before, 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_launcher_takes_even_stubborn_workers_with_it(
    worker: Path, tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", LAUNCHER, str(worker), str(tmp_path)]
    logs = [tmp_path / "worker0.log", tmp_path / "worker1.log"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=PACKAGES) as launcher:
        assert launcher.stdout
        name = launcher.stdout.readline().strip()
        wait_for(lambda: all(log.exists() and "refusing" in log.read_text() for log in logs), 60)
        assert len(members(name)) >= 4
        launcher.send_signal(number)
        _, said = launcher.communicate(timeout=PATIENCE + 5)
    assert launcher.returncode == -number
    assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)
    wait_for(lambda: members(name) == [], 2)
