"""A preset's full trainings, many at a time: python -m benchmarks.trainings RUNS --preset paper --device cuda

A training on the bare machine shows what is learned, not how long it takes, so that runs may share cores and a GPU.
Workers are forked from a process that has imported everything and read the data, which saves most of a short run's
time. What RUNS has is not run again; what `--seconds` cuts leaves no record. The records are those of
`python -m benchmarks.compare --preset … --device …`, and may be put among others of that preset. Fashion-MNIST is
where LACONIC_DATA says, or Debian's.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import functools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook  # imported once, for all workers

from benchmarks.presets import PRESETS
from laconic.cli.compare import lines_of
from laconic.lab import tasks
from laconic.lab import worker as training
from laconic.lab.compare import is_complete
from laconic.lab.worker import Settings

GLANCE = 0.3
LAST_START = 40
"""Seconds before the end from which no run begins, as none would finish."""
BLOCKING = 4
"""cudaDeviceScheduleBlockingSync: whoever waits for the GPU leaves the core to others."""


class Bare:
    """Where workers share the loopback."""

    isolated, interface, shaped, note = False, "lo", False, ""


class Running:
    """A training under way, each worker a process of its own."""

    def __init__(self, settings: Settings, port: int) -> None:
        self.settings, self.record, self.start = settings, Path(settings.record), time.monotonic()
        self.record.parent.mkdir(parents=True, exist_ok=True)
        file = settings.save(self.record.with_suffix(".json"))
        self.codes: dict[int, int | None] = {}
        for rank in range(settings.workers):
            sys.stdout.flush()
            worker = os.fork()
            if worker == 0:
                _work(settings, file, rank, port)
            self.codes[worker] = None

    @property
    def name(self) -> str:
        return f"{self.record.parent.name}/{self.record.stem}"

    def ended(self) -> bool:
        """Whether all workers have, or one has failed."""
        for worker in [worker for worker, code in self.codes.items() if code is None]:
            pid, status = os.waitpid(worker, os.WNOHANG)
            self.codes[worker] = os.waitstatus_to_exitcode(status) if pid else None
        codes = self.codes.values()
        return None not in codes or any(code not in (None, 0) for code in codes)

    def end(self) -> str:
        """What became of it; no worker is left, and no record that is not complete."""
        failed = any(code not in (None, 0) for code in self.codes.values())
        for worker in [worker for worker, code in self.codes.items() if code is None]:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
            self.codes[worker] = -signal.SIGKILL
        seconds = f"{time.monotonic() - self.start:.0f} s"
        if is_complete(self.settings):
            for leftover in (
                self.record.with_suffix(".json"),
                *self.record.parent.glob(f"{self.record.stem}.log*"),
            ):
                leftover.unlink()
            last = json.loads(self.record.read_text().splitlines()[-2])
            return f"{self.name}: {seconds}, {last.get('accuracy', last['loss']):.4f}"
        self.record.unlink(missing_ok=True)
        logs = [
            path.read_text(errors="replace") for path in self.record.parent.glob(f"{self.record.stem}.log*")
        ]
        why = next((log[-900:] for log in logs if failed and "Error" in log), "")
        return f"{self.name}: {'failed' if failed else 'cut'} after {seconds} {why}"


def _work(settings: Settings, file: Path, rank: int, port: int) -> None:
    """The forked process is this worker, and ends."""
    log = os.open(Path(settings.record).with_suffix(f".log{rank}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(settings.workers), **rendezvous)
    code = 1
    try:
        torch.set_num_threads(1)
        torch.set_num_threads = lambda _: None  # evaluation would take all cores
        if settings.device == "cuda":
            ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}").cudaSetDeviceFlags(BLOCKING)
        training.main(str(file))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def trainings(options: argparse.Namespace) -> Iterator[Settings]:
    """Those that RUNS does not have, all of a seed before the next."""
    chosen = [line for line in lines_of(PRESETS, options.preset, options.only) if _learns(line.plan.base)]
    runs = [run for line in chosen for run in line.plan.runs(options.runs / line.name, Bare())]
    for run in sorted(runs, key=lambda run: run.seed):
        data = options.text if run.task == "text" else None
        settings = dataclasses.replace(run, device=options.device, data=data)
        if not is_complete(settings):
            yield settings


def _learns(base: Settings) -> bool:
    return base.link == "none" and base.eval_every < base.steps


def main() -> None:
    """As many as there is time for."""
    parser = argparse.ArgumentParser(description="A preset's full trainings, many at a time.")
    parser.add_argument("runs", type=Path, metavar="RUNS")
    parser.add_argument("--preset", choices=PRESETS, default="paper")
    parser.add_argument("--only", metavar="TEXT", help="only lines with this in their name, as fashion-8")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--at-once", type=int, default=os.cpu_count(), metavar="WORKERS")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument(
        "--text", metavar="DIR", help="a directory of *.py files for text (default: Python's own)"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    tasks.load = functools.lru_cache(tasks.load)
    begin, running, ports = time.monotonic(), [], iter(range(21000, 30000))
    waiting = list(trainings(options))
    for settings in {settings.task: settings for settings in waiting}.values():
        settings.load_task()
    while (waiting or running) and time.monotonic() - begin < options.seconds:
        for run in [run for run in running if run.ended()]:
            running.remove(run)
            print(run.end(), flush=True)
        free = options.at_once - sum(run.settings.workers for run in running)
        late = time.monotonic() - begin > options.seconds - LAST_START
        fitting = next((settings for settings in waiting if settings.workers <= free), None)
        if fitting is not None and not late:
            waiting.remove(fitting)
            running.append(Running(fitting, next(ports)))
        elif late and not running:
            break
        else:
            time.sleep(GLANCE)
    for run in running:
        print(run.end(), flush=True)
    print(f"{len(waiting)} trainings are left")


if __name__ == "__main__":
    main()
