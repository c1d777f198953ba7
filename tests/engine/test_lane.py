import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import laconic
from laconic.core.meter import Meter
from laconic.core.place import Transfer
from laconic.engine.lane import InterleavedLane
from tests.support.altered import Altered
from tests.support.toys import flat, loss, network, parallel
from tests.support.workers import WorkerError, run


class _Work:
    """A transfer that completes when the test says so."""

    def __init__(self):
        self.future = torch.futures.Future()

    def is_completed(self):
        return self.future.done()

    def wait(self, _timeout=None):
        self.future.wait()


class _Group:
    def __init__(self):
        self.issued = []

    def issue(self, number):
        work = _Work()
        self.issued.append((number, work))
        return work


def _journey(number, rounds, log, groups):
    for r in range(rounds):
        log.append(("asks", number, r))
        yield Transfer("up", r, lambda r=r: groups[r].issue(number), 1, 1)
    log.append(("ends", number))


def _until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the lane did not get there"
        time.sleep(0.002)


def _complete(group, number):
    next(work for n, work in group.issued if n == number).future.set_result(None)


def test_each_channel_issues_in_submission_order_whatever_completes_first():
    groups, log = [_Group(), _Group()], []
    lane = InterleavedLane(2, torch.device("cpu"), Meter())
    for number in range(3):
        lane.submit(_journey(number, 2, log, groups), lambda: None, lambda error: None)
    _until(lambda: len(groups[0].issued) == 3)
    for number in (2, 1):
        _complete(groups[0], number)
    _until(lambda: ("asks", 1, 1) in log and ("asks", 2, 1) in log)
    assert groups[1].issued == []
    _complete(groups[0], 0)
    _until(lambda: len(groups[1].issued) == 3)
    lane.close()
    assert [number for number, _ in groups[1].issued] == [0, 1, 2]


def test_a_journey_without_a_transfer_on_a_channel_holds_nobody_up():
    groups, log, done = [_Group(), _Group()], [], []
    lane = InterleavedLane(2, torch.device("cpu"), Meter())
    lane.submit(_journey(0, 1, log, groups), lambda: done.append(0), lambda error: None)
    lane.submit(_journey(1, 2, log, groups), lambda: done.append(1), lambda error: None)
    _until(lambda: len(groups[0].issued) == 2)
    _complete(groups[0], 1)
    _until(lambda: ("asks", 1, 1) in log)
    assert groups[1].issued == []
    _complete(groups[0], 0)
    _until(lambda: len(groups[1].issued) == 1)
    _complete(groups[1], 1)
    _until(lambda: done == [0, 1])
    lane.close()


def test_an_error_reaches_those_under_way_and_all_who_come_later():
    def broken():
        raise ValueError("spilled")
        yield

    errors = []
    lane = InterleavedLane(1, torch.device("cpu"), Meter())
    lane.submit(_journey(0, 1, [], [_Group()]), lambda: None, errors.append)
    lane.submit(broken(), lambda: None, errors.append)
    lane.submit(_journey(2, 1, [], [_Group()]), lambda: None, errors.append)
    _until(lambda: len(errors) == 3)
    lane.close()
    assert all(str(error) == "spilled" for error in errors)


class _Dawdle(torch.autograd.Function):
    """Backward takes a random while, so that workers' buckets become ready at different times."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(random.random() * 0.001)
        return grad


def _dawdling_network():
    model = network()
    for layer in model:
        layer.register_forward_hook(lambda _, __, output: _Dawdle.apply(output))
    return model


def _stress(steps):
    random.seed(dist.get_rank())
    model = parallel(_dawdling_network())
    attachment = laconic.attach(model, laconic.Dense())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    buckets = set()
    attachment.on_step(lambda step, stats: buckets.add(step))
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, step).backward()
        optimizer.step()
    return flat(model), attachment.stats().steps


@pytest.mark.timeout(170)
def test_300_steps_with_random_delays_in_backward_neither_mismatch_nor_deadlock():
    results = run(4, _stress, 300, seconds=160)
    assert all(steps == 300 and torch.equal(weights, results[0][0]) for weights, steps in results)


def _fails_in_encode():
    model = parallel()
    laconic.attach(model, Altered(laconic.Dense(), _Failing) if dist.get_rank() == 1 else laconic.Dense())
    loss(model, 0).backward()


class _Failing:
    def encode(self, turn, grad):
        raise ArithmeticError("cannot encode this")


def test_an_error_in_the_lane_is_raised_by_backward_with_its_worker_and_traceback():
    with pytest.raises(WorkerError, match=r"worker 1 of 2: ArithmeticError: cannot encode this") as caught:
        run(2, _only_worker_1_tells)
    assert "in encode" in str(caught.value)


def _only_worker_1_tells():
    try:
        _fails_in_encode()
    except RuntimeError:
        if dist.get_rank() == 1:
            raise


SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
sys.path.insert(0, {root!r})
from tests.support.toys import parallel, loss
import laconic
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = parallel()
laconic.attach(model, laconic.Dense())
for step in range(10**9):
    if step == 5:
        print("running", flush=True)
    if {raises} and step == 7 and dist.get_rank() == 1:
        raise ValueError("worker one gives up")
    loss(model, step).backward()
"""


def _torchrun(tmp_path, raises):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(root=str(Path(__file__).parents[2]), raises=raises))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        str(script),
    ]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=variables,
        start_new_session=True,
    )


def test_ctrl_c_ends_a_job_on_all_workers(tmp_path):
    with _torchrun(tmp_path, raises=False) as job:
        while "running" not in (line := job.stdout.readline()):
            assert line, "the job ended too early"
        os.killpg(job.pid, signal.SIGINT)
        start = time.monotonic()
        job.communicate(timeout=30)
    assert time.monotonic() - start < 30
    with pytest.raises(ProcessLookupError):
        os.killpg(job.pid, 0)


def test_a_worker_that_raises_ends_the_job_with_its_own_traceback_first(tmp_path):
    with _torchrun(tmp_path, raises=True) as job:
        output, _ = job.communicate(timeout=60)
    first = output.index("Traceback")
    assert "worker one gives up" in output[first : first + 1000]
    assert job.returncode != 0


def test_the_lane_takes_as_many_cores_as_the_program():
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    lane, seen = InterleavedLane(0, torch.device("cpu"), Meter()), []

    def look():
        seen.append(torch.get_num_threads())
        yield from ()

    lane.submit(look(), lambda: None, seen.append)
    lane.close()
    torch.set_num_threads(cores)
    assert seen == [1]
