"""One training run: its settings, and what each worker does.

A run is a JSON file of settings; `torchrun … -m laconic.lab.worker FILE` on every node trains it. Worker 0 writes
the record: a header, a line a step, a line an evaluation, one on how layers travel where they are shared, and an end
with the proof that replicas are equal, or with the distance between them. With `-m laconic.lab.worker FILE TURN` it
goes as far as the file TURN says, and waits there until that changes, so that several runs can take turns.

Time: a step's seconds go from taking its batch to the end of the optimizer's step; evaluation stands apart.
`compute` is the median of some steps without exchange, all workers at once; the rest of a step is `waiting`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import json
import math
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # loaded later, as DDP does it, it would hold the group that is there by then
from torch.nn.parallel import DistributedDataParallel

from laconic.core.meter import Stats
from laconic.lab import contestants, tasks
from laconic.lab.links import interface_counters
from laconic.telemetry import JsonLines, header, machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import timedelta

    from torch import nn

    from laconic.lab.datasets import Batch
    from laconic.lab.tasks import Task
    from laconic.sources.attachment import Attachment

OPTIMIZERS = ("sgd", "adam")
PLACES = ("record", "data", "interface")
"""Settings that are of one machine, and not of the run."""
WARM_UP = 3
"""Steps without exchange, to see what computing alone takes."""
GLANCE = 0.01
"""Seconds between two looks at whose turn it is."""
DIGITS = 6
"""Of a step's numbers: more would be noise, and most of the record."""


@dataclass(frozen=True)
class Settings:
    """All that determines a run. `record` is the file that worker 0 writes."""

    task: str
    spec: str
    workers: int
    record: str
    steps: int
    batch: int
    lr: float
    momentum: float
    optimizer: str
    eval_every: int
    seed: int = 0
    split: str = "iid"
    size: str = "default"
    data: str | None = None
    link: str = "none"
    interface: str | None = None
    """The worker's own network interface, where it has one."""
    shaped: bool = False
    note: str = ""
    device: str = "cpu"
    """Where workers train: cpu, or cuda, whose devices they share."""

    def save(self, path: Path) -> Path:
        """The file `path`, from which workers read these settings."""
        path.write_text(self.text())
        return path

    def text(self) -> str:
        """The settings as the file has them."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    def told(self) -> dict[str, Any]:
        """What a record says of these settings: all but where things lie on this machine."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in PLACES}

    def load_task(self) -> Task:
        """The task with its data."""
        return tasks.load(self.task, data=Path(self.data) if self.data else None, size=self.size)


def check_training(settings: Mapping[str, Any]) -> None:
    """The learning rate, momentum and optimizer among `settings` can be trained with."""
    lr, momentum, optimizer = (settings.get(name) for name in ("lr", "momentum", "optimizer"))
    if lr is not None and not lr > 0:
        raise ValueError(f"lr is {lr}; it must be above zero")
    if momentum is not None and not 0 <= momentum < 1:
        raise ValueError(f"momentum is {momentum}; it must be at least 0 and below 1")
    if optimizer not in (None, *OPTIMIZERS):
        raise ValueError(f"optimizer is {optimizer!r}; use {' or '.join(OPTIMIZERS)}")


def main(path: str, turn: str | None = None) -> None:
    """This worker's part of the run in the settings file `path`."""
    settings = Settings(**json.loads(Path(path).read_text()))
    torch.set_num_threads(1)
    with grouped():
        _train(settings, Turns(Path(turn)) if turn is not None else None)


@contextlib.contextmanager
def grouped(timeout: timedelta | None = None) -> Iterator[None]:
    """There is a process group in here, of which no thread is left when it ends; no model may be left by then.

    A thread that lets go of its last tensor when Python has ended ends the process by a signal, and a model that
    outlives its group may wait for the group's threads for ever.
    """
    dist.init_process_group("gloo", timeout=timeout)
    try:
        yield
    finally:
        gc.collect()
        dist.destroy_process_group()


def _train(settings: Settings, turns: Turns | None) -> None:
    worker = Worker(settings, turns)
    worker.run()
    if worker.attachment is not None:
        worker.attachment.detach()


class Worker:
    """One worker of a run."""

    def __init__(self, settings: Settings, turns: Turns | None = None) -> None:
        self.settings, self.turns = settings, turns
        self.task = settings.load_task()
        contestant = contestants.parse(settings.spec)
        model = self.task.model(settings.seed).to(_own_device(settings.device))
        self.model = DistributedDataParallel(model, **contestant.ddp_options)
        self.optimizer = optimizer_for(self.model, settings)
        self.attachment = contestant.apply(self.model, self.optimizer)
        self.batches = self._batches()
        self.record = self._open_record(contestant) if dist.get_rank() == 0 else None
        self.traffic = Traffic(settings.interface, self.attachment)
        self._told_layers = False

    def run(self) -> None:
        """The run is trained, evaluated and recorded."""
        if self.turns is not None:
            self.turns.wait(0)
        compute = self._compute_alone()
        self._evaluate(0, 0.0)
        self.traffic.restart()
        elapsed = 0.0
        for step in range(1, self.settings.steps + 1):
            if self.turns is not None:
                self.turns.wait(step)
            start = time.perf_counter()
            loss = self._step(step, next(self.batches))
            seconds = time.perf_counter() - start
            elapsed += seconds
            self._record_step(step, seconds, loss, compute)
            if step % self.settings.eval_every == 0 or step == self.settings.steps:
                self._evaluate(step, elapsed)
        self._finish(elapsed)

    def _step(self, step: int, batch: Batch) -> float:
        progress = (step - 1) / self.settings.steps
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr * 0.5 * (1 + math.cos(math.pi * progress))
        self.optimizer.zero_grad()
        loss = self.task.loss(self.model, batch)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def _compute_alone(self) -> float:
        batch, times = next(self._batches()), []
        with self.model.no_sync():
            for _ in range(WARM_UP + 1):
                dist.barrier()
                start = time.perf_counter()
                self.task.loss(self.model, batch).backward()
                times.append(time.perf_counter() - start)
        self.optimizer.zero_grad()
        return statistics.median(times[1:])

    def _record_step(self, step: int, seconds: float, loss: float, compute: float) -> None:
        if self.record is None:
            return
        (tx, rx), stats = self.traffic.step()
        phases = {phase: value for phase, value in stats.seconds.items() if phase != "waiting"}
        phases.update(compute=min(compute, seconds), waiting=max(0.0, seconds - compute))
        metered = self.attachment is not None
        self.record.write(
            "step",
            step=step,
            seconds=_short(seconds),
            loss=_short(loss),
            tx=tx,
            rx=rx,
            sent=stats.sent if metered else None,
            received=stats.received if metered else None,
            phases={phase: _short(value) for phase, value in phases.items()},
            readings={name: _short(value) for name, value in stats.readings.items()},
        )
        self._record_layers(self.record)

    def _record_layers(self, record: JsonLines) -> None:
        """How each layer travels is in the record, as soon as it is known."""
        choices = self.attachment.choices if self.attachment is not None else None
        if choices is not None and not self._told_layers:
            record.write("layers", layers=[choice.described() for choice in choices])
            self._told_layers = True

    def _evaluate(self, step: int, elapsed: float) -> None:
        gossip = self.attachment if self.attachment is not None and self.attachment.drifts else None
        shared = gossip.average() if gossip is not None else self.model.module
        apart = {"consensus": gossip.consensus(shared)} if gossip is not None else {}
        if self.record is not None:
            torch.set_num_threads(os.cpu_count() or 1)  # the others are waiting
            values = {**self.task.evaluate(shared), **apart}
            if gossip is not None:
                own = self.task.evaluate(self.model.module)
                values |= {f"own_{name}": value for name, value in own.items()}
            torch.set_num_threads(1)
            tx, sent = self.traffic.total()
            self.record.write("eval", step=step, seconds=elapsed, tx=tx, sent=sent, **values)
        dist.barrier()
        self.traffic.pause()

    def _finish(self, elapsed: float) -> None:
        gossip = self.attachment if self.attachment is not None and self.attachment.drifts else None
        if gossip is not None:
            gossip.land()
        checksums: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(checksums, checksum(self.model))
        apart = {"consensus": gossip.consensus()} if gossip is not None else {}
        if self.record is not None:
            equal = len(set(checksums)) == 1
            self.record.write("end", seconds=elapsed, checksum=checksums[0], replicas_equal=equal, **apart)
            self.record.close()

    def _batches(self) -> Iterator[Batch]:
        settings = self.settings
        return self.task.batches(
            dist.get_rank(),
            settings.workers,
            batch=settings.batch,
            seed=settings.seed,
            split=tasks.parse_split(settings.split),
        )

    def _open_record(self, contestant: contestants.Contestant) -> JsonLines:
        technique = self.attachment.technique if self.attachment is not None else contestant
        return JsonLines(
            self.settings.record,
            header(
                technique,
                label=contestant.label,
                family=contestant.family,
                metric=self.task.metric,
                higher_is_better=self.task.higher_is_better,
                parameters=sum(parameter.numel() for parameter in self.model.parameters()),
                machine=machine(self.settings.device),
                **({"patience": self.attachment.patience} if self.attachment is not None else {}),
                **self.settings.told(),
            ),
        )


class Turns:
    """How far this run may go: the step whose number the file has; worker 0 reads it for all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._allowed = -1

    def wait(self, step: int) -> None:
        """The step may be taken. What is under way meanwhile belongs to it, and so do some bytes of ours."""
        if step <= self._allowed:
            return
        allowed = torch.tensor([-1])
        if dist.get_rank() == 0:
            while allowed < step:
                time.sleep(GLANCE)
                allowed.fill_(int(self._path.read_text()))
        dist.broadcast(allowed, 0)
        self._allowed = int(allowed)


class Traffic:
    """Bytes of this worker: by its interface's own counters and by the meter; what happens in a pause is left out."""

    def __init__(self, interface: str | None, attachment: Attachment | None) -> None:
        self._interface = interface
        self._attachment = attachment
        self.restart()

    def restart(self) -> None:
        """Nothing has been counted yet."""
        self._total = 0
        self._origin = self._stats()
        self.pause()

    def pause(self) -> None:
        """What was sent since the last step does not belong to training."""
        self._last = self._counters()
        self._last_stats = self._stats()

    def step(self) -> tuple[tuple[int | None, int | None], Stats]:
        """Bytes out and in by the interface, and the meter's statistics, since the last step."""
        counters, stats = self._counters(), self._stats()
        added = stats.since(self._last_stats)
        last, self._last, self._last_stats = self._last, counters, stats
        if counters is None or last is None:
            return (None, None), added
        self._total += counters[0] - last[0]
        return (counters[0] - last[0], counters[1] - last[1]), added

    def total(self) -> tuple[int | None, int | None]:
        """Bytes out since the restart, by the interface and by the meter, where there is one."""
        sent = self._stats().since(self._origin).sent
        return (self._total if self._interface else None), (sent if self._attachment else None)

    def _counters(self) -> tuple[int, int] | None:
        return interface_counters(self._interface) if self._interface else None

    def _stats(self) -> Stats:
        return self._attachment.stats() if self._attachment else Stats()


def checksum(model: nn.Module) -> str:
    """A digest of all parameters, bit for bit."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _own_device(device: str) -> torch.device:
    """This worker's device of that kind; fp32 is fp32 there, too."""
    if device == "cuda":
        torch.backends.cudnn.allow_tf32 = False
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    return torch.device(device)


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def optimizer_for(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The optimizer that the settings name."""
    if settings.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=settings.lr)
    return torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum)


if __name__ == "__main__":
    main(*sys.argv[1:])
