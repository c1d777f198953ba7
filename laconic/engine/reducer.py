"""Takes a worker's gradients to all workers' result, and gives each back as a future.

It holds what belongs to one attachment: the lane, the memory, the meter and the step. A step begins with the
first bucket and ends when all its buckets are done. If a scheme remembers something, the step's memory is
committed only if every result is finite; results are the same on all workers, so all decide alike.
"""

from __future__ import annotations

import functools
import math
import traceback
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from laconic.core import checks, streams
from laconic.core.memory import Memory
from laconic.core.meter import Meter, Stats
from laconic.core.technique import Bucket, Desk, Piece, Reading, Scaler, Scheme, Turn
from laconic.engine.alarm import PeerError, Quiet
from laconic.engine.journey import Load, Vehicle
from laconic.engine.lane import Lane, lane_for
from laconic.kernels import plain
from laconic.layers.loads import LayerTurn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from laconic.core.place import Post
    from laconic.engine.lane import Journey
    from laconic.engine.likeness import Likeness
    from laconic.layers.products import Product
    from laconic.layers.taps import Rows

NEVER = 1 << 62
"""The step of a worker that goes on from none."""

WIRE = 1 << 19
"""Bytes of a piece: large enough to amortize a round trip, small enough to keep both directions busy."""


@dataclass(eq=False)
class _Step:
    """Journeys are counted by the thread that submits them and by the lane, each its own count: no lock is needed."""

    number: int
    scale: float = 1.0
    submitted: int = 0
    finished: int = 0
    closed: float | torch.cuda.Event | None = None
    finite: bool = True
    readings: defaultdict[str, list[Reading]] = field(default_factory=lambda: defaultdict(list))

    def read(self) -> dict[str, Reading]:
        """All pieces' readings together; they were taken on several streams, which are one when the step ends."""
        return {
            name: Reading(sum(r.amount for r in pieces), sum(r.of for r in pieces))
            for name, pieces in self.readings.items()
        }


@dataclass(eq=False)
class _Passage:
    """What a future is of, under way: it has arrived when no journey is missing."""

    loads: Sequence[Load]
    bucket: torch.Tensor | None
    """Its whole gradient; of layers, their products are the result."""
    future: torch.futures.Future[Any]
    step: _Step
    missing: int

    @property
    def result(self) -> torch.Tensor | Mapping[str, Product]:
        """What the future is of."""
        return self.bucket if self.bucket is not None else _products(self.loads)

    def finite(self) -> bool:
        """Whether all of the result is."""
        return plain.all_finite(self.bucket) if self.bucket is not None else all(map(_finite, self.loads))


class Reducer:
    """One scheme at work at one post."""

    keys: ClassVar[frozenset[str]] = frozenset({"memory"})

    def __init__(
        self,
        scheme: Scheme,
        post: Post,
        device: torch.device,
        measures: bool = False,
        alarm: Quiet | None = None,
        likeness: Likeness | None = None,
    ) -> None:
        self.seat = post.seat
        self.alarm, self._likeness = alarm or Quiet(), likeness
        self.step = 0
        self.memory = Memory(scheme.memory, post.seat.worker)
        self.listeners: list[Callable[[int, Stats], None]] = []
        self.device = device
        self.measures = measures
        self.meter = Meter(on_stream=post.carrier.type == "cuda")
        self.wire = wire_for(post.channels - measures)
        self._cuts: dict[tuple[Bucket, int], tuple[Piece, ...]] = {}
        self._vehicle = Vehicle(scheme, post, self.meter, device, measures)
        self._reported = Stats()
        self._current: _Step | None = None
        self._scaler: Scaler | None = None
        self._saves: Counter[int] = Counter()
        self._begun = self._loaded = False
        self._lane = lane_for(post, device, self.meter, self.alarm)

    @property
    def scheme(self) -> Scheme:
        """The technique, bound."""
        return self._vehicle.scheme

    def rebind(self, scheme: Scheme) -> None:
        """`scheme`, of the same technique, takes over; what is remembered stays where it is of the same size."""
        self._vehicle = replace(self._vehicle, scheme=scheme)
        self.memory.rebind(scheme.memory)
        self._cuts.clear()

    @property
    def directs(self) -> bool:
        """Whether results are directions."""
        return self.scheme.directs

    def scaled(self, scaler: Scaler | None) -> None:
        """Gradients are those of a loss that `scaler` multiplies, if any does, as in the last step."""
        if scaler is None and self.scheme.has_units:
            raise RuntimeError(
                "a GradScaler took the steps before this one, and what is remembered is in its scale; to go on "
                "without it, attach again and load the state_dict() from before this step"
            )
        if scaler is not self._scaler:
            self._scaler = scaler
            self.memory.scale = scaler.get_scale() if scaler is not None else None

    def reduce(self, grad: torch.Tensor, bucket: Bucket, last: bool) -> torch.futures.Future[torch.Tensor]:
        """A future of `grad`, which will then hold the scheme's result for all workers.

        Buckets come in order, the same on all workers; `last` says that the step has no more.
        """
        step, memory = self._now(), self.memory.of(bucket, self.device, self._vehicle.post.carrier)
        loads = [
            self._load(Turn, piece, memory, grad[piece.start : piece.stop]) for piece in self.pieces(bucket)
        ]
        return self._submit([[load] for load in loads], grad, step, last)

    def layer(self, piece: Piece, rows: Rows | None, grad: torch.Tensor) -> Load:
        """A layer's piece in this step, or with no rows a bucket's only piece, to be shared."""
        self._now()
        memory = self.memory.of(piece.bucket, self.device, self._vehicle.post.carrier)
        load = self._load(LayerTurn, piece, memory, grad)
        assert isinstance(load.turn, LayerTurn)
        load.turn.rows = rows
        return load

    def share(self, loads: Sequence[Load]) -> torch.futures.Future[Mapping[str, Product]]:
        """A future of some layers' gradients for all workers, by parameter, from everybody's rows.

        Loads of which everybody hears messages of a known size may travel together, if no errors are measured.
        """
        return self._submit([loads], None, self._now(), last=False)

    def pieces(self, bucket: Bucket) -> Sequence[Piece]:
        """The bucket as it travels."""
        if (bucket, self.wire) not in self._cuts:
            self._cuts[bucket, self.wire] = tuple(self.scheme.cut(bucket, self.wire))
        return self._cuts[bucket, self.wire]

    def end_step(self) -> torch.futures.Future[Any] | None:
        """The step, if one has begun, has no more buckets; a future of nothing, when it has ended."""
        return None if self._current is None else self._submit([], None, self._current, last=True)

    def largest(self, numbers: torch.Tensor) -> torch.Tensor:
        """The largest of all workers' numbers, one by one; all must ask."""
        everybodys = numbers.to(self._vehicle.post.carrier, copy=True)
        future: torch.futures.Future[None] = torch.futures.Future()
        self._lane.submit(
            self._vehicle.post.latest(everybodys),
            lambda: future.set_result(None),
            lambda error: future.set_exception(self._explain(error)),  # type: ignore[arg-type]
        )
        future.wait()
        return everybodys

    @property
    def error(self) -> BaseException | None:
        """What has gone wrong, if anything has."""
        return self._lane.error

    def explained(self) -> RuntimeError | None:
        """What has gone wrong, if anything has, with its worker, and where it happened if that was here."""
        return None if self.error is None else self._explain(self.error)

    def state(self) -> dict[str, Any]:
        """What is remembered, of a loss that nothing multiplies; only the same worker of as many can go on."""
        memory = self.memory
        memory.rescale(1.0)
        if self._likeness is not None:
            self._saves[self.step] += 1
            self._likeness.saved(self.step, self._saves[self.step], self.alarm, self.seat)
        return {"memory": memory.values(), "tallies": memory.tallies(), "scale": 1.0}

    def check(self, state: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        """`state` is of a model with parameters of these sizes."""
        if (scale := state.get("scale")) is not None and not 0 < checks.number("scale", scale) < math.inf:
            raise ValueError(f"the checkpoint's scale is {scale}; load one that Laconic saved")
        theirs = replace(self.scheme, workers=state["workers"])  # type: ignore[type-var]  # a dataclass
        Memory(theirs.memory, state["worker"]).check(state["memory"], sizes)

    def load(self, state: Mapping[str, Any]) -> None:
        """The run goes on where `state` was taken; memory of another worker is dropped with a warning."""
        self.step, self._loaded = state["step"], True
        if (state["worker"], state["workers"]) == self.seat:
            self.memory.load(state["memory"], state.get("tallies"), state.get("scale"))
            return
        if any(state["memory"].values()) or state.get("tallies"):
            warnings.warn(
                f"this checkpoint is of worker {state['worker']} of {state['workers']} and this is {self.seat}: "
                "what it remembers is dropped, so the first steps lose what was held back",
                stacklevel=3,
            )
        self.memory.load({})

    @property
    def closer(self) -> Callable[[], None]:
        """Ends the lane, and the post; it knows nothing else of what is here."""
        return functools.partial(_close, self._lane, self._vehicle.post)

    def stats(self) -> Stats:
        """Steps, bytes sent and received, and seconds by phase."""
        return self.meter.stats()

    def _now(self) -> _Step:
        """The step that is under way; before the first, all workers agree which it is."""
        if not self._begun:
            self._begun = True
            self.step = self._agreed_step()
        if self._current is None:
            self._current = _Step(self.step, self._settle())
            self.alarm.begin(self.step)
        return self._current

    def _settle(self) -> float:
        """The scale of gradients from now on, which is also that of what is remembered."""
        scale = self._scaler.get_scale() if self._scaler and self.scheme.has_units else None
        self.memory.rescale(scale)
        return scale or 1.0

    def _agreed_step(self) -> int:
        """Where all who go on from a state go on.

        A worker that has loaded none has nothing to remember, but must count as the others do.
        """
        first = -self.step if self._loaded else -NEVER
        latest, earliest = self.largest(torch.tensor([self.step, first])).tolist()
        if -earliest not in (NEVER, latest):
            raise ValueError(
                f"{self.seat} goes on from step {self.step}, but workers loaded checkpoints of steps {-earliest} "
                f"and {latest}; load those of one step on all workers"
            )
        return int(latest)

    def _load(self, kind: type[Turn], piece: Piece, memory: Mapping[str, Any], grad: torch.Tensor) -> Load:
        own, theirs = self.memory.part(memory, piece)
        step, worker = self._now(), self.seat.worker
        turn = kind(piece, step.number, worker, own, scale=step.scale)
        return Load(turn, Desk(piece, step.number, worker, theirs, scale=step.scale), grad)

    def _submit(
        self, journeys: Sequence[Sequence[Load]], bucket: torch.Tensor | None, step: _Step, last: bool
    ) -> torch.futures.Future[Any]:
        loads = [load for journey in journeys for load in journey]
        travels = [self._vehicle.travel(journey) for journey in journeys]
        if last and self._likeness is not None and self._likeness.due(step.number):
            travels.append(self._likeness.travel(step.number, self._vehicle.post, self.meter))
        travels = travels or [_stay()]
        step.submitted += len(travels)
        passage = _Passage(loads, bucket, streams.future(self.device), step, len(travels))
        if last:
            step.closed = self.meter.mark()
            self._current = None
            self.step += 1
            self.alarm.complete()
        arrive, fail = functools.partial(self._arrive, passage), functools.partial(self._fail, passage)
        for journey in travels:
            self._lane.submit(journey, arrive, fail)
        return passage.future.then(lambda settled: settled.value())  # raises what `set_exception` only stores

    def _arrive(self, passage: _Passage) -> None:
        step = passage.step
        step.finished += 1
        passage.missing -= 1
        if passage.missing == 0:
            _read(passage.loads, step)
            if self.memory:
                step.finite &= passage.finite()
        if step.closed is not None and step.finished == step.submitted:
            self._finish(step)
        if passage.missing == 0:
            passage.future.set_result(passage.result)

    def _fail(self, passage: _Passage, error: BaseException) -> None:
        if passage.future.done():
            return
        passage.future.set_exception(self._explain(error))

    def _explain(self, error: BaseException) -> RuntimeError:
        if isinstance(error, PeerError):
            return RuntimeError(f"{self.seat}: {error}")
        story = "".join(traceback.format_exception(error))
        return RuntimeError(f"{self.seat}: {type(error).__name__}: {error}\n{story}")

    def _finish(self, step: _Step) -> None:
        if step.finite:
            self.memory.commit()
        else:
            self.memory.rollback()
        assert step.closed is not None
        self.meter.add("waiting", step.closed)
        self.meter.steps += 1
        self.meter.readings = step.read()
        if self.listeners:
            stats = self.meter.stats(wait=False)
            for listener in self.listeners:
                listener(step.number, stats.since(self._reported))
            self._reported = stats


def wire_for(transfers: int) -> int:
    """Bytes of a piece that takes so many transfers: each costs something, so more of them want larger pieces."""
    return WIRE << max(0, transfers - 2)


def _close(lane: Lane, post: Post) -> None:
    post.close()  # first: it ends what the lane's threads wait for
    lane.close()


def _stay() -> Journey:
    """A journey that goes nowhere."""
    yield from ()


def _read(loads: Sequence[Load], step: _Step) -> None:
    for load in loads:
        for name, reading in (*load.turn.readings.items(), *load.desk.readings.items()):
            step.readings[name].append(reading)


def _products(loads: Sequence[Load]) -> dict[str, Product]:
    turns = [load.turn for load in loads if isinstance(load.turn, LayerTurn)]
    return {name: product for turn in turns for name, product in turn.products.items()}


def _finite(load: Load) -> bool:
    products = load.turn.products if isinstance(load.turn, LayerTurn) else {}
    if not products:
        return plain.all_finite(load.grad)
    return all(product.finite(load.turn.piece.bucket.dtype) for product in products.values())
