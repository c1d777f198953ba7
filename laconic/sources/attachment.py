"""A technique at work on a model: its statistics, its state, and its end."""

from __future__ import annotations

import functools
import os
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from laconic.engine.janitor import janitor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    import torch.distributed as dist
    from torch import nn

    from laconic.core.meter import Stats
    from laconic.core.place import Seat
    from laconic.core.technique import Technique
    from laconic.engine.alarm import Quiet
    from laconic.layers.catalog import Choice
    from laconic.sources.replicas import Replicas
    from laconic.sources.watch import Watch


KEYS = frozenset({"technique", "step", "worker", "workers"})
"""Of a state, whatever the technique."""


class Source(Protocol):
    """Where gradients come from; its hooks come and go with it."""

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """A future of the bucket's gradients as all workers have them."""

    def state(self) -> Mapping[str, Any]:
        """What of a state is the source's own."""

    def load(self, state: Mapping[str, Any]) -> None:
        """The source goes on where `state` was taken."""

    def disconnect(self) -> None:
        """The model is as it was."""


class Engine(Protocol):
    """What takes gradients, or parameters, to all workers: a reducer, or a gossiper."""

    keys: ClassVar[frozenset[str]]
    """What of a state is the engine's own, and must be there."""
    seat: Seat
    step: int
    alarm: Quiet
    listeners: list[Callable[[int, Stats], None]]

    @property
    def error(self) -> BaseException | None:
        """What has gone wrong, if anything has; nothing more is exchanged then."""

    @property
    def closer(self) -> Callable[[], None]:
        """Ends it, and knows nothing else of it."""

    def stats(self) -> Stats:
        """Steps, bytes sent and received, and seconds by phase."""

    def state(self) -> Mapping[str, Any]:
        """What of a state is the engine's own."""

    def check(self, state: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        """`state` can be loaded into a model with parameters of these sizes."""

    def load(self, state: Mapping[str, Any]) -> None:
        """The engine goes on where `state` was taken."""


class Attachment:
    """What `laconic.attach` returns: a source, and the engine that serves it."""

    def __init__(
        self,
        technique: Technique,
        source: Source,
        engine: Engine,
        watch: Watch,
        replicas: Replicas | None = None,
        sizes: Mapping[str, int] | None = None,
        detached: Callable[[], None] = lambda: None,
    ) -> None:
        self.technique: Any = technique
        self.source, self.engine = source, engine
        self._watch = watch
        self._replicas, self._sizes, self._detached = replicas, sizes, detached
        self._close = functools.partial(_close, os.getpid(), engine.alarm, engine.closer)
        self._forgotten = weakref.finalize(self, janitor(os.getpid()).close, self._close)

    @property
    def step(self) -> int:
        """How many steps have begun."""
        return self.engine.step

    @property
    def patience(self) -> float:
        """Seconds without a sign of life after which a worker is gone."""
        return self.engine.alarm.patience

    @property
    def choices(self) -> list[Choice] | None:
        """How each layer travels, of a technique for layers, from the second step on."""
        return getattr(self.source, "choices", None)

    @property
    def drifts(self) -> bool:
        """Whether workers have parameters of their own between mixings."""
        return self.technique.reads == "parameters"

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """A future of the bucket's gradients as all workers have them."""
        try:
            return self.source.reduce(bucket)
        except BaseException as error:  # whatever it is, the others must learn of it
            self.engine.alarm.verdict(error)
            raise

    def stats(self) -> Stats:
        """Steps, bytes sent and received, and seconds by phase since attaching."""
        return self.engine.stats()

    def on_step(self, listener: Callable[[int, Stats], None]) -> None:
        """`listener(step, stats)` is called after each step with what that step added.

        In the lane's thread where gradients are exchanged, and after the optimizer's step where parameters are.
        """
        self.engine.listeners.append(listener)

    def average(self) -> nn.Module:
        """A copy of the model with the mean of all workers' parameters and buffers; all workers must call it."""
        with self.engine.alarm.telling():
            return self._known_replicas().average()

    def consensus(self, average: nn.Module | None = None) -> float:
        """How far apart workers are: the mean of |own - mean|², over |mean|²; all workers must call it.

        With the `average` at hand, as `average()` gave it to all of them since the last step, one number travels.
        """
        with self.engine.alarm.telling():
            return self._known_replicas().consensus(average)

    def land(self) -> None:
        """What was under way, if anything, is part of the parameters; all workers must call it."""
        if self.drifts:
            self.engine.land()  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs to go on; save it on every worker, as what it remembers is its own.

        With Crossover a mixing under way is brought to its end, so all workers must call it, before saving the model.
        """
        if self.engine.error is not None:
            raise RuntimeError(f"a step has failed, so there is no state to save: {self.engine.error}")
        return {
            "technique": type(self.technique).__name__,
            **self.engine.seat._asdict(),
            **self.engine.state(),
            **self.source.state(),
            "step": self.engine.step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The run goes on where `state` was taken; memory of another worker is dropped with a warning."""
        technique = type(self.technique).__name__
        if missing := (KEYS | self.engine.keys) - state.keys():
            raise ValueError(f"this is no state of an attachment: it has no {', '.join(sorted(missing))}")
        if state["technique"] != technique:
            raise ValueError(f"this checkpoint is of {state['technique']}, but {technique} is attached")
        self.source.load(state)  # what is kept of a layer depends on its rows
        if self._sizes is not None:
            self.engine.check(state, self._sizes)
        self.engine.load(state)

    def detach(self) -> None:
        """The model is plain DDP again; with Crossover, workers' parameters stay as different as they are."""
        if self._forgotten.alive:
            if self.engine.error is None:
                self.land()
            self.source.disconnect()
            self._watch.stop()
            self._detached()
            self._forgotten.detach()
            self._close()

    def _known_replicas(self) -> Replicas:
        if self._replicas is None:
            raise ValueError("a hook does not know the model; use laconic.attach")
        return self._replicas


def _close(process: int, alarm: Quiet, engine: Callable[[], None]) -> None:
    if os.getpid() == process:  # connections are the parent's, where a program has forked
        alarm.close()
        engine()
