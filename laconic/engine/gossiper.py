"""Gossip among groups of workers: gradients stay in their group, parameters are mixed after the optimizer's step.

Workers of a group have equal parameters. Its root, the first of them, gossips for all (mixer.py), and tells them.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
import torch.distributed as dist

from laconic.core import streams
from laconic.core.meter import Meter, Stats
from laconic.core.place import Label, Place, Seat, Traffic, Way
from laconic.core.technique import Bucket, Scaler, Setting
from laconic.engine.alarm import Quiet, linked
from laconic.engine.mixer import Mixer
from laconic.engine.reducer import Reducer
from laconic.messages.crossover import Modular
from laconic.messages.seals import opened, sealed
from laconic.places.peers import dissolve, like, open_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from laconic.engine.flat_view import FlatView
    from laconic.techniques.crossover import Crossover

Layout: TypeAlias = list[tuple[int, str | None]]
"""What is mixed: parameters by their number, or what the optimizer keeps for one of them, by name."""


class Gossiper:
    """One worker of `everybody`; `flat` gives the numbers of a layout as they are now."""

    keys: ClassVar[frozenset[str]] = frozenset({"codec", "inner"})

    def __init__(
        self,
        technique: Crossover,
        everybody: dist.ProcessGroup,
        device: torch.device,
        place: Place,
        flat: Callable[[Layout], FlatView],
        alarm: Quiet,
    ) -> None:
        self._technique, self._device, self._flat = technique, device, flat
        self.seat = Seat(dist.get_rank(everybody), dist.get_world_size(everybody))
        nodes = technique.nodes(self.seat.workers)
        size = self.seat.workers // nodes
        node, member = divmod(self.seat.worker, size)
        ranks = dist.get_process_group_ranks(everybody)
        (group,), self._carrier = open_groups(everybody, device, 1)
        if self._carrier.type == "cuda":  # NCCL wants all of a group in its first call
            dist.all_reduce(torch.zeros(1, device=self._carrier), group=group)
        self.meter = Meter()
        self.gossips = nodes > 1
        self._mixer = Mixer(technique, group, ranks[::size], node, self._carrier, self.meter, alarm)
        self._root = member == 0
        members = ranks[node * size : (node + 1) * size]
        self._group = like(everybody, self._carrier, members) if size > 1 else None
        self._inner = (
            _within(technique, place, self._group, device, alarm) if self._group is not None else None
        )
        self._groups = [group, self._group]
        self.step, self._begun = 0, False
        self.alarm = alarm
        self._layout: Layout = []
        self._airborne = False
        self.listeners: list[Callable[[int, Stats], None]] = []
        self._reported = self.meter.stats()
        if not self.gossips:
            warnings.warn(_alone(self.seat.workers), stacklevel=5)  # at the line that attaches

    @property
    def directs(self) -> bool:
        """Whether gradients of groups are directions."""
        return self._inner is not None and self._inner.directs

    def scaled(self, scaler: Scaler | None) -> None:
        """A scaler at work cannot be served."""
        refuse(scaler)

    def reduce(self, grad: torch.Tensor, bucket: Bucket, last: bool) -> torch.futures.Future[torch.Tensor]:
        """A future of the bucket's gradients as the worker's group has them."""
        if self._inner is not None:
            return self._inner.reduce(grad, bucket, last)
        own: torch.futures.Future[torch.Tensor] = streams.future(grad.device)
        own.set_result(grad)
        return own

    def end_step(self) -> torch.futures.Future[Any] | None:
        """The group's step, if one has begun, has no more buckets."""
        return self._inner.end_step() if self._inner is not None else None

    def mix(self, layout: Layout) -> None:
        """After an optimizer's step: what was under way is part of the parameters, and they are under way again."""
        self._begin()
        mixes = self.gossips and (self.step + 1) % self._technique.every == 0
        with torch.no_grad():
            if mixes and self._airborne and self._layout == layout:
                self._change(lambda flat: self._mixer.relay(flat, self.step))
            else:
                self.land()
                if mixes:
                    self._depart(layout)
        if not self._technique.overlap:
            self.land()
        self._count()

    def land(self) -> None:
        """What was under way, if anything, is part of the parameters; all workers must call it."""
        if self.error is not None:
            raise self.error
        if not self._airborne:
            return
        self._airborne = False
        with torch.no_grad():
            self._change(self._mixer.arrive)

    @property
    def error(self) -> BaseException | None:
        """What has gone wrong, if anything has."""
        return self._mixer.error or (self._inner.error if self._inner is not None else None)

    def stats(self) -> Stats:
        """Steps, bytes sent and received, and seconds by phase; groups' gradients included."""
        own = self.meter.stats()
        return own if self._inner is None else own.plus(self._inner.stats())

    def state(self) -> dict[str, Any]:
        """What a codec knows, and what groups remember; a mixing under way is brought to its end, by all workers."""
        self.land()
        codec = self._mixer.codec
        inner = {} if self._inner is None else {"step": self._inner.step, **self._inner.state()}
        seat = {} if self._inner is None else self._inner.seat._asdict()
        return {
            "codec": {"before": codec.before.clone(), "apart": codec.apart.clone()} if codec else {},
            "inner": {**inner, **seat},
        }

    def check(self, state: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        """`state` is this worker's, and of a model with parameters of these sizes."""
        if (state["worker"], state["workers"]) != self.seat:
            raise ValueError(
                f"this checkpoint is of worker {state['worker']} of {state['workers']} and this is {self.seat}; "
                "start from attachment.average() instead"
            )
        if self._inner is not None and state["inner"]:
            self._inner.check(state["inner"], sizes)

    def load(self, state: Mapping[str, Any]) -> None:
        """The run goes on where `state` was taken; all workers must call it."""
        if self._airborne and self._root:
            self._mixer.forget()
        self._airborne = False
        self.step, self._begun = state["step"], False
        if self._inner is not None and state["inner"]:
            self._inner.load(state["inner"])
        codec = state["codec"] if self._technique.codec is not None else {}
        known = {name: value.to(self._device, copy=True) for name, value in codec.items()}
        self._mixer.codec = Modular(**known) if known else None

    @property
    def closer(self) -> Callable[[], None]:
        """Ends the mixer, the reducer and the groups; it knows nothing else of what is here."""
        inner = self._inner.closer if self._inner is not None else None
        return functools.partial(_close, self._mixer, inner, self._groups)

    def _begin(self) -> None:
        """All workers are at the same step, which is what they draw their peers by."""
        self.alarm.begin(self.step)
        self.alarm.complete()
        if self._begun or not self.gossips:
            return
        self._begun = True
        steps = torch.tensor([self.step, -self.step], device=self._carrier)
        self._wait(lambda: dist.all_reduce(steps, dist.ReduceOp.MAX, self._groups[0], async_op=True))
        latest, earliest = steps.tolist()
        if latest != -earliest:
            raise ValueError(
                f"{self.seat} goes on from step {self.step}, but workers are at steps {-earliest} and {latest}; "
                "load checkpoints of one step on all workers"
            )

    def _wait(self, start: Callable[[], dist.Work]) -> None:
        with linked():
            self._mixer.wait(start())

    def _depart(self, layout: Layout) -> None:
        """Parameters are on their way."""
        self._airborne, self._layout = True, layout
        if self._root:
            self._mixer.depart(self._flat(layout), self.step)

    def _change(self, change: Callable[[FlatView], None]) -> None:
        """The root has changed its parameters so, and its group has them, too."""
        flat = self._flat(self._layout)  # as it departed; the optimizer may keep more by now
        if self._root:
            change(flat)
        if self._group is not None:
            self._tell(flat, self._group)
        flat.settle()

    def _tell(self, flat: FlatView, group: dist.ProcessGroup) -> None:
        """Everybody in the group has the root's numbers."""
        whole = slice(0, len(flat))
        with self.meter.phase("tell"):
            room = torch.empty(len(flat), dtype=torch.float32, device=self._device)
            numbers = flat.read(whole, room).to(self._carrier)
            root, key = dist.get_process_group_ranks(group)[0], Label(self.step, 0, 0).key(Way.REPLY, 0)
            (message,) = sealed([numbers.view(torch.uint8)], [key])
            others = dist.get_world_size(group) - 1
            self.meter.add_bytes(message.nbytes * others * self._root, message.nbytes * (not self._root))
            self._wait(lambda: dist.broadcast(message, root, group, async_op=True))
            if not self._root:
                (content,) = opened([message], [key], [root])
                flat.write(whole, content.view(torch.float32).to(self._device))

    def _count(self) -> None:
        self.step += 1
        self.meter.steps += 1
        if self.listeners:
            stats = self.stats()
            for listener in self.listeners:
                listener(self.step - 1, stats.since(self._reported))
            self._reported = stats


def refuse(scaler: Scaler | None) -> None:
    """There is none, or it is switched off."""
    if scaler is not None and getattr(scaler, "is_enabled", lambda: True)():
        raise ValueError(
            "Crossover's workers share no gradients, so a GradScaler may skip a step on one of them alone, and peers "
            "would wait for it; use bfloat16, which needs no scaler, or float32"
        )


def _within(
    technique: Crossover, place: Place, group: dist.ProcessGroup, device: torch.device, alarm: Quiet
) -> Reducer:
    """The technique inside groups."""
    scheme = technique.bind(Setting(dist.get_world_size(group), place.offers))
    post = place.open(group, device, Traffic(scheme.routes, scheme.surveys))
    return Reducer(scheme, post, device, alarm=alarm)


def _close(mixer: Mixer, inner: Callable[[], None] | None, groups: list[dist.ProcessGroup | None]) -> None:
    for group in groups:
        if group is not None:
            dissolve(group)  # first: it ends what threads wait for
    groups.clear()
    mixer.close()
    if inner is not None:
        inner()


def _alone(workers: int) -> str:
    if workers == 1:
        return "Crossover has no peers in a world of one worker, and does nothing"
    return (
        f"all {workers} workers are one group, whose gradients are averaged, and there is nobody to gossip with; "
        f"groups={workers} lets every worker gossip"
    )
