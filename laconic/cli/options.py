"""What commands share: the options of a training run, the settings they make, and where results go."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    import torch

    from laconic.lab.worker import Settings

DATA = "where fashion's files are, or a directory of *.py files for text"
TUNED = ("steps", "batch", "lr", "momentum", "optimizer", "eval_every")


def describe_run(parser: argparse.ArgumentParser) -> None:
    """The parser takes what a run of several workers can be told."""
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--link", default="100mbit", help="none, a rate, or one rate a worker: 1gbit,100mbit")
    parser.add_argument("--eval-every", type=int, metavar="STEPS")
    parser.add_argument("--split", default="iid", help="iid, labels:2 or dirichlet:0.3")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where workers train")
    describe_training(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where records and the report go")


def describe_training(parser: argparse.ArgumentParser) -> None:
    """The parser takes what training can be told."""
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int, help="samples of one worker")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--momentum", type=float)
    parser.add_argument("--optimizer", choices=["sgd", "adam"])
    parser.add_argument("--size", help="the model's, for tasks that have several")
    parser.add_argument("--data", help=DATA)


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings that these options describe, which can be trained with."""
    from laconic.lab import tasks
    from laconic.lab.worker import Settings, check_training

    check_positive(options, "workers", "steps", "batch", "eval_every")
    check_training(vars(options))
    device_at(options.device)  # fails now, if at all
    size = options.size or "default"
    task = tasks.load(options.task, data=Path(options.data) if options.data else None, size=size)
    split = tasks.parse_split(options.split)
    tuned = {name: _given(options, name, getattr(task.defaults, name)) for name in TUNED}
    next(task.batches(0, options.workers, batch=tuned["batch"], seed=0, split=split))  # fails now, if at all
    return Settings(
        task=options.task,
        spec="",
        workers=options.workers,
        record="",
        split=str(split),
        size=size,
        data=options.data,
        link=options.link,
        device=options.device,
        **tuned,
    )


def check_positive(options: argparse.Namespace, *names: str) -> None:
    """The named options, where they are given, are above zero."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; it must be above zero")


def directory_at(path: Path) -> Path:
    """The directory, which exists and can be written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / ".writable").touch()
        (path / ".writable").unlink()
    except OSError as error:
        raise OSError(f"cannot write to {path}: {error.strerror}; choose another --out") from error
    return path


def device_at(name: str) -> torch.device:
    """The device of that name, which can be used."""
    import torch

    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r} cannot be used here; use cpu") from error


def fresh(name: str) -> Path:
    """A directory that no other run has."""
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def _given(options: argparse.Namespace, name: str, default: Any) -> Any:
    value = getattr(options, name)
    return default if value is None else value
