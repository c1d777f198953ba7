"""What a person sees while runs go on: one table, a row a run, with the time left; silence off a terminal."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from laconic.lab import contestants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laconic.lab.worker import Settings


class Tail:
    """The lines that a growing file of JSON lines has so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self) -> list[dict[str, Any]]:
        """The complete lines since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


class RunView:
    """How far one run is."""

    def __init__(self, settings: Settings, link: str = "") -> None:
        self.settings, self.link = settings, link
        self.state = "queued"
        self.steps: list[float] = []
        self.bytes = 0
        self.loss: float | None = None
        self.metric: float | None = None
        self._tail = Tail(Path(settings.record))

    def look(self) -> None:
        """What the record says now is taken in."""
        for line in self._tail.new():
            if line["kind"] == "step":
                self.steps.append(line["seconds"])
                self.bytes += line["tx"] or line["sent"] or 0
                self.loss = line["loss"]
            elif line["kind"] == "eval":
                self.metric = line.get("accuracy", line["loss"])

    @property
    def label(self) -> str:
        """The technique, the link if it is not the table's, and the seed where it is not the first."""
        label = ", ".join(filter(None, [contestants.parse(self.settings.spec).label, self.link]))
        return f"{label} (seed {self.settings.seed})" if self.settings.seed else label

    @property
    def step_seconds(self) -> float | None:
        """The median step so far."""
        return statistics.median(self.steps) if self.steps else None

    def cells(self) -> list[str]:
        """The run's row."""
        done = f"{len(self.steps)}/{self.settings.steps}"
        step = f"{self.step_seconds * 1000:.0f} ms" if self.step_seconds else ""
        size = f"{self.bytes / len(self.steps) / 1e6:.2f} MB" if self.bytes else ""
        loss = f"{self.loss:.3f}" if self.loss is not None else ""
        metric = f"{self.metric:.3f}" if self.metric is not None else ""
        return [self.label, self.state, done, step, size, loss, metric]


class LiveTable:
    """A watcher that keeps a table on the terminal, or says nothing where there is none."""

    def __init__(self, runs: Sequence[Settings], title: str) -> None:
        several = len({settings.link for settings in runs}) > 1
        self._views = [RunView(settings, settings.link if several else "") for settings in runs]
        self._title = title
        self._began = time.monotonic()
        self._current: RunView | None = None
        console = Console(stderr=True)
        self._live = Live(console=console, get_renderable=self._table, refresh_per_second=4)
        self._show = console.is_terminal

    def __enter__(self) -> LiveTable:
        if self._show:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._show:
            self._live.stop()

    def start(self, settings: Settings) -> None:
        """The run's row says that it runs."""
        self._current = next(view for view in self._views if view.settings.record == settings.record)
        if self._current.state == "queued":
            self._current.state = "starting"

    def look(self) -> None:
        """The row shows what the record has."""
        assert self._current is not None
        self._current.look()
        if self._current.steps:
            self._current.state = _duration(self._left(self._current)) + " left"

    def finish(self) -> None:
        """The row says that the run is done."""
        assert self._current is not None
        self._current.look()
        self._current.state = "done"

    def _left(self, view: RunView) -> float:
        return (view.settings.steps - len(view.steps)) * (view.step_seconds or 0.0)

    def _table(self) -> Table:
        done = sum(view.state == "done" for view in self._views)
        caption = (
            f"{done} of {len(self._views)} runs done, {_duration(time.monotonic() - self._began)} so far"
        )
        table = Table(title=self._title, caption=caption, box=SIMPLE_HEAD, pad_edge=False)
        table.title_justify = table.caption_justify = "left"
        table.add_column("technique")
        for name in ("state", "steps", "a step", "sent", "loss", "metric"):
            table.add_column(name, justify="right", no_wrap=True)
        for view in self._views:
            table.add_row(
                *view.cells(), style="bold" if view is self._current and view.state != "done" else ""
            )
        return table


def _duration(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
