"""A technique at work on a model: its statistics, its state, and its end."""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING, Any

from laconic.core.memory import State
from laconic.core.technique import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    import torch.distributed as dist

    from laconic.core.meter import Stats
    from laconic.core.technique import Technique
    from laconic.engine.reducer import Exchange
    from laconic.layers.catalog import Choice
    from laconic.sources.layers import SharedLayers


KEYS = {"technique", "step", "worker", "workers", "memory"}
"""Of a state."""


class Attachment:
    """What `laconic.attach` returns."""

    def __init__(
        self,
        technique: Technique,
        exchange: Exchange,
        name: Callable[[torch.Tensor], str],
        sizes: Mapping[str, int] | None,
        detached: Callable[[], None],
        layers: SharedLayers | None = None,
    ) -> None:
        self.technique = technique
        self._exchange = exchange
        self._name = name
        self._sizes = sizes
        self._detached = detached
        self._layers = layers
        self._close = weakref.finalize(self, exchange.closer)
        self._begun = False
        self._seen: set[str] = set()
        """Of the step that is under way, the first parameters of buckets."""

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """A future of the bucket's gradients as all workers have them."""
        if not self._begun:
            self._begun = True
            self._exchange.agree_on_step()
        if self._layers is not None:
            return self._layers.reduce(bucket)
        parameters = bucket.parameters()
        grad = bucket.buffer()
        layout = Bucket(tuple(map(self._name, parameters)), tuple(p.numel() for p in parameters), grad.dtype)
        self._end_before(layout)
        if bucket.is_last():
            self._seen.clear()
        return self._exchange.reduce(grad, layout, bucket.is_last())

    def _end_before(self, bucket: Bucket) -> None:
        """A step has ended whose last bucket did not say so, as in the first one of a static graph with two types."""
        first = bucket.names[0] if bucket.names else ""
        if first in self._seen:
            ended = self._exchange.end_step()
            if ended is not None:
                ended.wait()
            self._seen.clear()
        self._seen.add(first)

    @property
    def choices(self) -> list[Choice] | None:
        """How each layer travels, of a technique for layers, from the second step on."""
        return self._layers.choices if self._layers is not None else None

    def stats(self) -> Stats:
        """Steps, bytes sent and received, and seconds by phase since attaching."""
        return self._exchange.meter.stats()

    def on_step(self, listener: Callable[[int, Stats], None]) -> None:
        """`listener(step, stats)` is called after each step with what that step added, in the lane's thread."""
        self._exchange.listeners.append(listener)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs to go on; save it on every worker, as what it remembers is its own."""
        return {
            "technique": type(self.technique).__name__,
            "step": self._exchange.step,
            "worker": self._exchange.worker,
            "workers": self._exchange.workers,
            "memory": self._exchange.state.values(),
            "tallies": {name: tally.old.clone() for name, tally in self._exchange.state.tallies.items()},
            "rows": self._layers.state() if self._layers is not None else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The run goes on where `state` was taken; memory of another worker is dropped with a warning."""
        technique = type(self.technique).__name__
        if missing := KEYS - state.keys():
            raise ValueError(f"this is no state of an attachment: it has no {', '.join(sorted(missing))}")
        if state["technique"] != technique:
            raise ValueError(f"this checkpoint is of {state['technique']}, but {technique} is attached")
        if self._layers is not None:
            self._layers.load(state.get("rows", {}))  # what is kept of a layer depends on them
        if self._sizes is not None:
            taken = State.of(self._exchange.technique, state["worker"], state["workers"])
            taken.check(state["memory"], self._sizes)
        self._exchange.step = state["step"]
        seat = (self._exchange.worker, self._exchange.workers)
        if (state["worker"], state["workers"]) == seat:
            self._exchange.state.load(state["memory"])
            self._exchange.state.load_tallies(state.get("tallies", {}))
        else:
            if any(state["memory"].values()) or state.get("tallies"):
                warnings.warn(
                    f"this checkpoint is of worker {state['worker']} of {state['workers']} and this is worker "
                    f"{seat[0]} of {seat[1]}: what it remembers is dropped, so the first steps lose what was held "
                    "back",
                    stacklevel=2,
                )
            self._exchange.state.load({})
            self._exchange.state.load_tallies({})

    def detach(self) -> None:
        """The model is plain DDP again."""
        if self._close.alive:
            if self._layers is not None:
                self._layers.remove()
            self._detached()
            self._close()
