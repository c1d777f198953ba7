"""Run records: JSON lines files, one for each training run, read into small values.

The first line is the header, then come steps and evaluations as they happened, with a line that says how layers
travel where they are shared, and the last line is the end. Every line is read in one way (`Record.add`): of a file
that is whole or was cut (`read`), of many files and packs (`find`), and of one that still grows (`Growing`).
A record that was cut is read as far as it got; lines and fields that this version does not know are left out.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from laconic.lab import typed, unpacking
from laconic.lab.typed import Amount, Count, Ordinal, Shape, Time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

VERSION = 1
PACKED = ".tar.xz"
"""How the name of a pack of records ends."""
HEADLESS = "does not begin with a header line"

Item = TypeVar("Item")
Line = dict[str, Any]
Moment = TypeVar("Moment", "Step", "Eval")
Key = TypeVar("Key")


class RecordError(ValueError):
    """The file has something that Laconic did not write."""


@dataclass(frozen=True)
class Setting:
    """What two runs must share to be compared."""

    task: str
    split: str
    link: str
    shaped: bool
    workers: Count
    batch: Count
    parameters: Count
    metric: str
    higher_is_better: bool


@dataclass(frozen=True)
class Header(Setting):
    """What was run: a setting, the technique, and the software and machine it ran on."""

    label: str
    spec: str
    technique: str
    family: str
    note: str
    seed: int
    steps: Count
    lr: Amount
    optimizer: str
    versions: dict[str, str]
    kernels: str
    machine: str
    started: Time
    version: int = VERSION
    warning: str = ""
    """What whoever uses the technique must beware of."""
    momentum: Amount | None = None
    eval_every: Count | None = None
    size: str = "default"
    device: str = "cpu"
    commit: str | None = None
    """What Laconic's own source was at, if it ran from a repository."""
    patience: Amount | None = None
    """Seconds without a sign of life after which a worker was gone; PyTorch's own way has none."""
    projected: bool = False
    """Whether seconds and bytes are those of other, shorter runs, multiplied."""


@dataclass(frozen=True)
class Step:
    """One training step of worker 0; `tx` and `rx` are the interface's bytes, the others the meter's."""

    step: Ordinal
    seconds: Amount
    loss: float | None
    phases: dict[str, Amount]
    tx: Count | None = None
    rx: Count | None = None
    sent: Count | None = None
    received: Count | None = None
    readings: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Eval:
    """One evaluation: the task's metric after so many steps, training seconds and bytes.

    Of gossip it is that of the workers' mean, and `consensus` says how far apart they were.
    """

    step: Count
    seconds: Amount
    value: float
    tx: Count | None = None
    sent: Count | None = None
    consensus: float | None = None


@dataclass(frozen=True)
class End:
    """How a finished run ended."""

    seconds: Amount
    checksum: str
    replicas_equal: bool
    consensus: float | None = None


@dataclass(frozen=True)
class Travel:
    """How a layer travels, with about how many numbers, and how many its gradient would be."""

    layer: str
    shape: Shape
    """Outputs and inputs."""
    way: str
    numbers: Count
    gradient: Count
    saves: Amount


@dataclass(frozen=True)
class _Layers:
    """A line of them."""

    layers: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """One record as it was read; `end` is None while the run is unfinished."""

    path: Path
    header: Header
    steps: tuple[Step, ...]
    evals: tuple[Eval, ...]
    end: End | None
    layers: tuple[Travel, ...] = ()


class Record:
    """What has been read of a record so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: Header | None = None
        self.steps: list[Step] = []
        self.evals: list[Eval] = []
        self.layers: list[Travel] = []
        self.end: End | None = None
        self._lines = 0

    def add(self, text: str) -> None:
        """One more line of the file has been read."""
        self._lines += 1
        if text.strip():
            where, line = f"{self.path}, line {self._lines},", _object(text)
            if line is None:
                raise _not_ours(where, "is not a JSON object")
            self._take(line, where)

    def _take(self, line: Line, where: str) -> None:
        kind = line.get("kind")
        if self.header is None:
            self.header = self._checked_header(line, where)
        elif kind == "header":
            self._resume(self._checked_header(line, where), where)
        elif kind == "step":
            _put(self.steps, _filled(Step, line, where))
        elif kind == "eval":
            _put(self.evals, _filled(Eval, _valued(line, self.header.metric), where))
        elif kind == "layers":
            self.layers += [_filled(Travel, layer, where) for layer in _filled(_Layers, line, where).layers]
        elif kind == "end":
            self.end = _filled(End, line, where)

    def _checked_header(self, line: Line, where: str) -> Header:
        if line.get("kind") != "header":
            raise _not_ours(self.path, HEADLESS)
        header = _filled(Header, line, where)
        if header.version > VERSION:
            raise ValueError(
                f"{self.path} has record version {header.version}, not {VERSION}; update laconic"
            )
        return replace(header, label=_label(header.label))

    def _resume(self, header: Header, where: str) -> None:
        """The run was resumed: how it ended and how layers travel will be said again."""
        assert self.header is not None
        if _of_one_run(header) != _of_one_run(self.header):
            raise _not_ours(where, "is the header of another run than line 1; a file has one run")
        self.layers, self.end = [], None

    def run(self) -> Run:
        """The run, as far as it got."""
        if self.header is None:
            raise _not_ours(self.path, HEADLESS)
        steps, evals, layers = tuple(self.steps), tuple(self.evals), tuple(self.layers)
        return Run(self.path, self.header, steps, evals, self.end, layers)


class Growing(Record):
    """The record of a run that has not begun, or goes on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._bytes = 0

    def look(self) -> None:
        """All lines that are complete by now have been read."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._bytes)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._bytes += len(whole)
        for line in whole.splitlines():
            self.add(line.decode())


def read(path: Path) -> Run:
    """The run that this file records, as far as it got."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; give a run record or a directory of run records")
    return _run(path, path.read_text(encoding="utf-8", errors="replace"))  # it may be cut inside a character


def _run(path: Path, text: str) -> Run:
    """The run that this text records; its last line may have been cut, and is left out then."""
    record = Record(path)
    *lines, last = text.rstrip().split("\n")
    for line in lines:
        record.add(line)
    if _object(last) is not None:
        record.add(last)
    return record.run()


def outgoing(record: Step | Eval) -> int | None:
    """Bytes that worker 0 sent: by its network interface where it has its own, else by Laconic's meter."""
    return record.sent if record.tx is None else record.tx


def find(paths: Iterable[Path]) -> list[Run]:
    """The runs in these files, packs and, recursively, in the *.jsonl files of these directories.

    Each once, also where a pack has a finished run that is in a directory as well.
    """
    given = [Path(path) for path in paths]
    found = [file for path in given for file in (sorted(path.rglob("*.jsonl")) if path.is_dir() else [path])]
    if not found:
        names = ", ".join(map(str, given))
        raise ValueError(f"no *.jsonl file in {names or 'an empty list of paths'}; name run records")
    files = {file.resolve(): file for file in found}.values()
    runs = [run for file in files for run in _runs(file)]
    return list({repr((run.header, run.end or run.path)): run for run in reversed(runs)}.values())[::-1]


def _runs(path: Path) -> list[Run]:
    """The run that is in the file, or those that are in the pack."""
    if not path.name.endswith(PACKED):
        return [read(path)]
    return [_run(name, text) for name, text in unpacking.texts(path).items()]


def _object(text: str) -> Line | None:
    """The JSON object written in the text, or None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _not_ours(where: object, problem: str) -> RecordError:
    return RecordError(f"{where} {problem}; give a record that laconic train or laconic compare wrote")


def _label(label: str) -> str:
    """As it is written today: SignVote's left its density out, where that was the default of then."""
    said_all = not label.startswith("SignVote") or "density=" in label
    return label if said_all else label.replace("SignVote", "SignVote density=0.01")


def _valued(line: Line, metric: str) -> Line:
    """The line with its metric under the name `value`, not a number where it was recorded as null."""
    return {**line, "value": math.nan if line[metric] is None else line[metric]} if metric in line else line


def _filled(kind: type[Item], line: Line, where: str) -> Item:
    """The line as a value of this kind; what the kind does not know is left out."""
    try:
        return typed.filled(kind, line)
    except TypeError as error:
        raise _not_ours(where, f"says too little ({error})") from None
    except ValueError as error:
        raise _not_ours(where, str(error)) from None


def _put(known: list[Moment], new: Moment) -> None:
    """The new step or evaluation comes after all that were before it; a resumed run takes some of them again."""
    while known and known[-1].step >= new.step:
        known.pop()
    known.append(new)


def _of_one_run(header: Header) -> Header:
    """What does not change when a run is resumed elsewhere, or later."""
    return replace(header, versions={}, kernels="", machine="", started="", commit=None, note="")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items by key, keys and items in the order of their first appearance."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
