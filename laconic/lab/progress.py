"""What a person sees while runs go on: one table, a row a run, with the time left; silence off a terminal."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from laconic.lab import contestants
from laconic.lab.records import Growing, outgoing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laconic.lab.worker import Settings


class RunView:
    """How far one run is."""

    def __init__(self, settings: Settings, link: str = "") -> None:
        self.settings, self.link = settings, link
        self.state = "queued"
        self.record = Growing(Path(settings.record))
        self.step_seconds = 0.0
        """The median step so far."""

    def look(self) -> None:
        """What the record says now is taken in."""
        self.record.look()
        if self.record.steps:
            self.step_seconds = statistics.median(step.seconds for step in self.record.steps)

    @property
    def label(self) -> str:
        """The technique, the link if it is not the table's, and the seed where it is not the first."""
        label = ", ".join(filter(None, [contestants.parse(self.settings.spec).label, self.link]))
        return f"{label} (seed {self.settings.seed})" if self.settings.seed else label

    @property
    def left(self) -> float:
        """Seconds to the last step, at the pace so far."""
        return (self.settings.steps - len(self.record.steps)) * self.step_seconds

    def cells(self) -> list[str]:
        """The run's row."""
        steps, evals = self.record.steps, self.record.evals
        sent = sum(outgoing(step) or 0 for step in steps)
        done = f"{len(steps)}/{self.settings.steps}"
        pace = f"{self.step_seconds * 1000:.0f} ms" if self.step_seconds else ""
        size = f"{sent / len(steps) / 1e6:.2f} MB" if sent else ""
        loss = f"{steps[-1].loss:.3f}" if steps and steps[-1].loss is not None else ""
        metric = f"{evals[-1].value:.3f}" if evals else ""
        return [self.label, self.state, done, pace, size, loss, metric]


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
        if self._current.record.steps:
            self._current.state = _duration(self._current.left) + " left"

    def finish(self) -> None:
        """The row says that the run is done."""
        assert self._current is not None
        self._current.look()
        self._current.state = "done"

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
