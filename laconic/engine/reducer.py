"""Takes a worker's buckets through encode, exchange, combine and decode, and gives each back as a future.

It holds what belongs to one attachment: the lane, the state, the meter and the step. A step begins with the
first bucket and ends when all its buckets are done. If a technique remembers something, the step's memory is
committed only if every result is finite; results are the same on all workers, so all decide alike.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from laconic.core import streams
from laconic.core.memory import State
from laconic.core.meter import Meter, Stats
from laconic.core.technique import Bucket, Gather, Messages, Piece, Reading, Surveyor, Technique, Turn
from laconic.engine.lane import InterleavedLane, Lane, StreamLane
from laconic.kernels import plain
from laconic.places.peers import Transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from laconic.engine.lane import Journey
    from laconic.layers.products import Product
    from laconic.layers.taps import Rows


@dataclass
class _Step:
    """Pieces are counted by the thread that submits them and by the lane, each its own count: no lock is needed."""

    number: int
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


@dataclass
class _Passage:
    """A bucket or a layer under way: it has arrived when no piece is missing."""

    arriving: torch.Tensor | Sequence[tuple[Turn, torch.Tensor]]
    """A bucket's gradient, or layers' turns, whose products are the result, and other turns with their gradients."""
    future: torch.futures.Future[Any]
    step: _Step
    missing: int

    @property
    def result(self) -> torch.Tensor | Mapping[str, Product]:
        """What the future is of."""
        if isinstance(self.arriving, torch.Tensor):
            return self.arriving
        return {name: product for turn, _ in self.arriving for name, product in turn.products.items()}

    def finite(self) -> bool:
        """Whether all of the result is."""
        if isinstance(self.arriving, torch.Tensor):
            return plain.all_finite(self.arriving)
        return all(
            all(product.finite(turn.piece.bucket.dtype) for product in turn.products.values())
            if turn.products
            else plain.all_finite(grad)
            for turn, grad in self.arriving
        )


class Load(NamedTuple):
    """A layer's piece and rows, or a bucket's only piece.

    `grad` is this worker's gradient, flat: a bucket's becomes the result, a layer's is only given to measure errors.
    """

    piece: Piece
    rows: Rows | None
    grad: torch.Tensor


class Exchange:
    """One technique at work on one process group."""

    def __init__(
        self, technique: Technique, group: dist.ProcessGroup, device: torch.device, measure_error: bool
    ) -> None:
        self.worker, self.workers = dist.get_rank(group), dist.get_world_size(group)
        self.step = 0
        self.state = State.of(technique, self.worker, self.workers)
        self.listeners: list[Callable[[int, Stats], None]] = []
        self.technique = technique
        self.device = device
        self.measure_error = measure_error
        self._pieces = functools.cache(lambda bucket: tuple(technique.cut(bucket, self.workers)))
        rounds = technique.place.rounds(technique.varies) + isinstance(technique, Surveyor) + measure_error
        self._groups, self._carrier = channels(group, device, rounds)
        self.meter = Meter(on_stream=self._carrier.type == "cuda")
        self._reported = Stats()
        self._current: _Step | None = None
        self._lane: Lane = (
            StreamLane(self._groups[0], device, self.meter)
            if self._carrier.type == "cuda"
            else InterleavedLane(self._groups, device, self.meter)
        )

    def reduce(self, grad: torch.Tensor, bucket: Bucket, last: bool) -> torch.futures.Future[torch.Tensor]:
        """A future of `grad`, which will then hold the technique's result for all workers.

        Buckets come in order, the same on all workers; `last` says that the step has no more.
        """
        step = self._begun()
        turns = self._turns(bucket, self._pieces(bucket), step)
        journeys = [self._travel(turn, grad[turn.piece.start : turn.piece.stop], step) for turn in turns]
        return self._submit(journeys, grad, step, last)

    def share(self, loads: Sequence[Load]) -> torch.futures.Future[Mapping[str, Product]]:
        """A future of some layers' gradients for all workers, by parameter, from everybody's rows.

        Loads of which everybody hears messages of a known size may travel together, if no errors are measured.
        """
        step = self._begun()
        turns = []
        for load in loads:
            (turn,) = self._turns(load.piece.bucket, [load.piece], step)
            turn.rows = load.rows
            turns.append((turn, load.grad))
        journey = self._travel(*turns[0], step) if len(turns) == 1 else self._travel_together(turns, step)
        return self._submit([journey], turns, step, last=False)

    def pieces(self, bucket: Bucket) -> Sequence[Piece]:
        """The bucket as it travels."""
        return self._pieces(bucket)

    def end_step(self) -> torch.futures.Future[torch.Tensor] | None:
        """The step, if one has begun, has no more buckets; a future of nothing, when it has ended."""
        if self._current is None:
            return None
        return self._submit([], torch.empty(0), self._current, last=True)

    def _begun(self) -> _Step:
        self._current = self._current or _Step(self.step)
        return self._current

    def _turns(self, bucket: Bucket, pieces: Sequence[Piece], step: _Step) -> list[Turn]:
        memory = self.state.memory(bucket, self.device, self._carrier) if bucket.names else {}
        tallies = self.state.tallies
        return [
            Turn(piece, step.number, self.worker, self.state.part(memory, piece), tallies=tallies)
            for piece in pieces
        ]

    def _submit(
        self,
        journeys: Sequence[Journey],
        arriving: torch.Tensor | Sequence[tuple[Turn, torch.Tensor]],
        step: _Step,
        last: bool,
    ) -> torch.futures.Future[Any]:
        journeys = journeys or [_stay()]  # a bucket of empty parameters
        self._count(step, len(journeys), last)
        passage = _Passage(arriving, streams.future(self.device), step, len(journeys))
        arrive, fail = functools.partial(self._arrive, passage), functools.partial(self._fail, passage)
        for journey in journeys:
            self._lane.submit(journey, arrive, fail)
        return passage.future.then(lambda settled: settled.value())  # raises what `set_exception` only stores

    def agree_on_step(self) -> None:
        """All workers are at the same step, the last one that any of them was at; all must call it, before the first.

        A worker that begins where others go on has nothing to remember, but must count as they do.
        """
        last = torch.tensor([self.step], device=self._carrier)
        dist.all_reduce(last, dist.ReduceOp.MAX, self._groups[0])
        self.step = int(last)

    @property
    def closer(self) -> Callable[[], None]:
        """Ends the lane, and its process groups; it knows nothing else of what is here."""
        return functools.partial(_close, self._lane, self._groups)

    def _count(self, step: _Step, journeys: int, last: bool) -> None:
        step.submitted += journeys
        if last:
            step.closed = self.meter.mark()
            self._current = None
            self.step += 1

    def _travel(self, turn: Turn, grad: torch.Tensor, step: _Step) -> Journey:
        streams.borrow((grad, *(turn.rows or ())))
        exact = grad.to(torch.float32, copy=True) if self.measure_error else None
        if exact is not None:
            yield _sum(exact)
        if isinstance(self.technique, Surveyor):
            turn.agreed = yield from self._survey(self.technique, turn, grad)
        with self.meter.phase("encode"):
            messages = _move(self.technique.encode(turn, grad), self._carrier)
        replies = yield from self._deliver(turn, messages)
        with self.meter.phase("decode"):
            self.technique.decode(turn, _move(replies, self.device), grad)
        if exact is not None:
            exact /= self.workers
            turn.readings["error"] = Reading((grad - exact).square().sum(), exact.square().sum())
        for name, reading in turn.readings.items():
            step.readings[name].append(reading)

    def _travel_together(self, turns: Sequence[tuple[Turn, torch.Tensor]], step: _Step) -> Journey:
        for turn, grad in turns:
            streams.borrow((grad, *(turn.rows or ())))
        with self.meter.phase("encode"):
            messages = [self.technique.encode(turn, grad)[0] for turn, grad in turns]
            joined = torch.cat(messages).to(self._carrier)
        heard = yield from self.technique.place.gather(joined, self.workers, Gather(len(joined)))
        assert isinstance(heard, torch.Tensor)
        with self.meter.phase("decode"):
            parts = heard.to(self.device).split([len(message) for message in messages], dim=1)
            for (turn, grad), part in zip(turns, parts, strict=True):
                self.technique.decode(turn, part, grad)
                for name, reading in turn.readings.items():
                    step.readings[name].append(reading)

    def _deliver(self, turn: Turn, messages: Messages) -> Generator[Transfer, None, Messages]:
        place = self.technique.place
        if turn.piece.gather is not None:
            return (yield from place.gather(messages[0], self.workers, turn.piece.gather))
        combine = functools.partial(self._combine, turn)
        if turn.piece.relay is not None:
            return (yield from place.relay(messages[0], self.worker, self.workers, turn.piece.relay, combine))
        return (yield from place.exchange(messages, self.worker, combine))

    def _survey(
        self, technique: Surveyor, turn: Turn, grad: torch.Tensor
    ) -> Generator[Transfer, None, torch.Tensor]:
        with self.meter.phase("encode"):
            numbers = technique.survey(turn, grad).to(self._carrier)
        yield from self.technique.place.agree(numbers, self.workers)
        return numbers.to(self.device)

    def _combine(self, turn: Turn, messages: Messages) -> torch.Tensor:
        with self.meter.phase("combine"):
            return self.technique.combine(turn, messages)

    def _arrive(self, passage: _Passage) -> None:
        step = passage.step
        step.finished += 1
        passage.missing -= 1
        if passage.missing == 0 and self.state.remembers:
            step.finite &= passage.finite()
        if step.closed is not None and step.finished == step.submitted:
            self._finish(step)
        if passage.missing == 0:
            passage.future.set_result(passage.result)

    def _fail(self, passage: _Passage, error: BaseException) -> None:
        if passage.future.done():
            return
        story = "".join(traceback.format_exception(error))
        passage.future.set_exception(  # torch annotates its argument as a result
            RuntimeError(f"worker {self.worker} of {self.workers}: {type(error).__name__}: {error}\n{story}")
        )

    def _finish(self, step: _Step) -> None:
        if step.finite:
            self.state.commit()
        else:
            self.state.rollback()
        assert step.closed is not None
        self.meter.add("waiting", step.closed)
        self.meter.steps += 1
        self.meter.readings = step.read()
        if self.listeners:
            stats = self.meter.stats(wait=False)
            for listener in self.listeners:
                listener(step.number, stats.since(self._reported))
            self._reported = stats


def _close(lane: Lane, groups: Sequence[dist.ProcessGroup]) -> None:
    lane.close()
    for group in groups:
        dissolve(group)


def channels(
    group: dist.ProcessGroup, device: torch.device, rounds: int
) -> tuple[list[dist.ProcessGroup], torch.device]:
    """Groups for a lane's transfers, and the device on which messages must lie."""
    ranks = dist.get_process_group_ranks(group)
    if device.type == "cuda" and "nccl" in dist.get_backend_config(group):
        return [like(group, device, device, ranks)], device
    cpu = torch.device("cpu")
    return [like(group, device, cpu, ranks) for _ in range(rounds)], cpu


def like(
    group: dist.ProcessGroup, device: torch.device, carrier: torch.device, ranks: Sequence[int]
) -> dist.ProcessGroup:
    """A group of some of the workers, with the same patience, for messages on `carrier`."""
    timeout = group._get_backend(device).options._timeout
    everybody = len(ranks) == dist.get_world_size()
    backend = "nccl" if carrier.type == "cuda" else "gloo"
    return dist.new_group(list(ranks), timeout, backend, use_local_synchronization=not everybody)


def dissolve(group: dist.ProcessGroup) -> None:
    """The group is gone, if it is everybody's.

    One of some workers stays: torch would give its name, under which addresses are still stored, to the next one of
    the same workers, who would then wait for each other in vain.
    """
    # The program may have ended torch.distributed before.
    with contextlib.suppress(AssertionError, ValueError):
        if dist.get_world_size(group) == dist.get_world_size():
            dist.destroy_process_group(group)


def _stay() -> Journey:
    """A journey that goes nowhere."""
    yield from ()


def _move(messages: Messages, device: torch.device) -> Messages:
    if isinstance(messages, torch.Tensor):
        return messages.to(device)
    return [message.to(device) for message in messages]


def _sum(values: torch.Tensor) -> Transfer:
    """Replaces `values` by their sum over workers; a measurement, so its bytes are not the technique's."""
    return Transfer("measure", lambda group: dist.all_reduce(values, group=group, async_op=True), 0, 0)
