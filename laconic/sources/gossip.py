"""Crossover attached to a model: gradients stay in their group, parameters are mixed after the optimizer's step."""

from __future__ import annotations

import copy
import functools
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from laconic.core import streams
from laconic.core.meter import Meter
from laconic.engine.flat_view import Vector
from laconic.engine.mixer import Mixer
from laconic.engine.reducer import Exchange, channels, dissolve, like
from laconic.messages.crossover import Modular
from laconic.numerics import topology
from laconic.places.peers import Transfer
from laconic.sources.attachment import Attachment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from laconic.core.meter import Stats
    from laconic.techniques.crossover import Crossover


class GossipAttachment(Attachment):
    """What `laconic.attach` returns for Crossover.

    Workers of a group have equal parameters. Its root, the first of them, gossips for all, and tells them.
    """

    def __init__(
        self,
        technique: Crossover,
        ddp: DistributedDataParallel,
        optimizer: torch.optim.Optimizer,
        named: Mapping[str, nn.Parameter],
        detached: Callable[[], None],
    ) -> None:
        self.technique: Any = technique
        self._layers = None
        self._model: Callable[[], DistributedDataParallel | None] = weakref.ref(ddp)
        self._optimizer, self._everybody, self._detached = optimizer, ddp.process_group, detached
        self._parameters = [parameter for parameter in named.values() if parameter.requires_grad]
        self._frozen = {name: value for name, value in named.items() if not value.requires_grad}
        self._layout: list[tuple[int, str | None]] = []
        """What is mixed: parameters by their number, or what the optimizer keeps for one of them, by name."""
        self._device = self._parameters[0].device
        topology.segments(sum(parameter.numel() for parameter in self._parameters), technique.segments)
        self._workers = dist.get_world_size(self._everybody)
        self._worker = dist.get_rank(self._everybody)
        nodes = technique.nodes(self._workers)
        size = self._workers // nodes
        node, place = divmod(self._worker, size)
        everybody = dist.get_process_group_ranks(self._everybody)
        (group,), self._carrier = channels(self._everybody, self._device, 1)
        if self._carrier.type == "cuda":  # NCCL wants all of a group in its first call
            dist.all_reduce(torch.zeros(1, device=self._carrier), group=group)
        self._meter = Meter()
        self._gossips = nodes > 1
        self._mixer = Mixer(technique, group, everybody[::size], node, self._carrier, self._meter)
        self._root = place == 0
        members = everybody[node * size : (node + 1) * size]
        self._group = like(self._everybody, self._device, self._carrier, members) if size > 1 else None
        self._reducer = self._within(technique, named) if self._group is not None else None
        self.step = 0
        self._airborne = False
        self._listeners: list[Callable[[int, Stats], None]] = []
        self._reported = self._meter.stats()
        self._hook = optimizer.register_step_post_hook(lambda *_: self._after_step())
        self._sent_buffers = ddp.broadcast_buffers
        ddp.broadcast_buffers = False  # worker 0's would reach everybody before each forward
        self._close = weakref.finalize(
            self, functools.partial(_destroy, self._mixer, [group, self._group], self._reducer)
        )
        if not self._gossips:
            warnings.warn(_alone(self._workers), stacklevel=4)  # at the line that attaches

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """A future of the bucket's gradients as the worker's group has them."""
        if self._reducer is not None:
            return self._reducer.reduce(bucket)
        buffer = bucket.buffer()
        own: torch.futures.Future[torch.Tensor] = streams.future(buffer.device)
        own.set_result(buffer)
        return own

    def average(self) -> nn.Module:
        """A copy of the model with the mean of all workers' parameters and buffers; all workers must call it."""
        model = self._model()
        assert model is not None
        averaged = copy.deepcopy(model.module)
        everything = [*averaged.parameters(), *averaged.buffers()]
        with torch.no_grad():
            for kind in (torch.float32, torch.float64):
                values = [v for v in everything if v.is_floating_point() and _travels_as(v) == kind]
                mean = self._mean(_flat(values, kind)) if values else torch.empty(0)
                for value, part in zip(values, mean.split([value.numel() for value in values]), strict=True):
                    value.copy_(part.view_as(value))
        return averaged

    def consensus(self, average: nn.Module | None = None) -> float:
        """How far apart workers are: the mean of |own - mean|², over |mean|²; all workers must call it.

        With the `average` at hand, as `average()` gave it to all of them since the last step, one number travels.
        """
        with torch.no_grad():
            own = _flat(self._parameters)
            mean = self._mean(own) if average is None else _flat(self._counterparts(average))
            apart = (own - mean).double().square().sum().to(self._carrier)
            dist.all_reduce(apart, group=self._everybody)
            return float(apart / self._workers / mean.double().square().sum().to(self._carrier))

    def stats(self) -> Stats:
        """Steps, bytes sent and received, and seconds by phase since attaching; groups' gradients included."""
        own = self._meter.stats()
        return own if self._reducer is None else own.plus(self._reducer.stats())

    def on_step(self, listener: Callable[[int, Stats], None]) -> None:
        """`listener(step, stats)` is called after each optimizer's step with what it added."""
        self._listeners.append(listener)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs to go on; save it on every worker, and before the model.

        A mixing under way is brought to its end, so all workers must call it.
        """
        self.land()
        codec = self._mixer.codec
        return {
            "technique": type(self.technique).__name__,
            "step": self.step,
            "worker": self._worker,
            "workers": self._workers,
            "codec": {"before": codec.before.clone(), "apart": codec.apart.clone()} if codec else {},
            "inner": self._reducer.state_dict() if self._reducer is not None else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The run goes on where `state` was taken; all workers must call it."""
        kind = type(self.technique).__name__
        if state.get("technique") != kind:
            raise ValueError(f"this checkpoint is of {state.get('technique')}, but {kind} is attached")
        seat = (self._worker, self._workers)
        if (state["worker"], state["workers"]) != seat:
            raise ValueError(
                f"this checkpoint is of worker {state['worker']} of {state['workers']} and this is worker {seat[0]} "
                f"of {seat[1]}; start from attachment.average() instead"
            )
        if self._airborne and self._root:
            self._mixer.forget()
        self._airborne = False
        self.step = state["step"]
        if self._reducer is not None and state["inner"]:
            self._reducer.load_state_dict(state["inner"])
        codec = state["codec"] if self.technique.codec is not None else {}
        known = {name: value.to(self._device, copy=True) for name, value in codec.items()}
        self._mixer.codec = Modular(**known) if known else None

    def detach(self) -> None:
        """The model is plain DDP again; workers' parameters are as different as they are."""
        if self._close.alive:
            self.land()
            self._hook.remove()
            model = self._model()
            if model is not None:
                model.broadcast_buffers = self._sent_buffers
            self._detached()
            self._close()

    def _within(self, technique: Crossover, named: Mapping[str, nn.Parameter]) -> Attachment:
        """The technique inside groups."""
        assert self._group is not None
        names = {id(parameter): name for name, parameter in named.items()}
        sizes = {name: parameter.numel() for name, parameter in named.items()}
        exchange = Exchange(technique.inner, self._group, self._device, measure_error=False)
        name = lambda parameter: names[id(parameter)]  # noqa: E731
        return Attachment(technique.inner, exchange, name, sizes, lambda: None)

    def _after_step(self) -> None:
        self._check_frozen()
        mixes = self._gossips and (self.step + 1) % self.technique.every == 0
        with torch.no_grad():
            if mixes and self._airborne and self._layout == self._mixed():
                self._relay()
            else:
                self.land()
                if mixes:
                    self._depart()
        if not self.technique.overlap:
            self.land()
        self.step += 1
        self._meter.steps += 1
        if self._listeners:
            stats = self.stats()
            for listener in self._listeners:
                listener(self.step - 1, stats.since(self._reported))
            self._reported = stats

    def _check_frozen(self) -> None:
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise RuntimeError(
                    f"{name} was frozen when Crossover was attached, so nobody would hear of it; attach again"
                )

    def _depart(self) -> None:
        """Parameters are on their way."""
        self._airborne, self._layout = True, self._mixed()
        if self._root:
            self._mixer.depart(self._vector(), self.step)

    def land(self) -> None:
        """What was under way, if anything, is part of the parameters; all workers must call it."""
        if not self._airborne:
            return
        self._airborne = False
        with torch.no_grad():
            self._settle(self._mixer.arrive)

    def _relay(self) -> None:
        """What was under way is part of the parameters, and they are on their way again."""
        self._settle(lambda vector: self._mixer.relay(vector, self.step))

    def _settle(self, change: Callable[[Vector], None]) -> None:
        """The root has changed its parameters so, and its group has them, too."""
        vector = self._vector()
        if self._root:
            change(vector)
        if self._group is not None:
            self._tell(vector)
        vector.settle()

    def _tell(self, vector: Vector) -> None:
        """Everybody in the group has the root's numbers."""
        assert self._group is not None
        whole = slice(0, len(vector))
        with self._meter.phase("tell"):
            room = torch.empty(len(vector), dtype=torch.float32, device=self._device)
            numbers = vector.read(whole, room).to(self._carrier)
            size = dist.get_world_size(self._group)
            sent = numbers.nbytes * (size - 1) * self._root
            received = numbers.nbytes * (not self._root)
            root = dist.get_process_group_ranks(self._group)[0]
            tell = Transfer("tell", lambda group: dist.broadcast(numbers, root, group, True), sent, received)
            self._meter.count(tell)
            tell.start(self._group).wait()
            if not self._root:
                vector.write(whole, numbers.to(self._device))

    def _counterparts(self, copied: nn.Module) -> list[torch.Tensor]:
        """The parameters of a copy of the model that are mixed in the model itself."""
        model = self._model()
        assert model is not None
        theirs = dict(zip(model.module.parameters(), copied.parameters(), strict=True))
        return [theirs[parameter] for parameter in self._parameters]

    def _mean(self, own: torch.Tensor) -> torch.Tensor:
        """Of all workers' vectors, each worker a part of it: exact where all have the same."""
        size = -(-own.numel() // self._workers)
        whole = own.new_zeros(self._workers * size, device=self._carrier)
        whole[: own.numel()] = own
        parts = torch.empty_like(whole)
        dist.all_to_all_single(parts, whole, group=self._everybody)
        mean = parts.view(self._workers, size).double().mean(0).to(own.dtype)
        dist.all_gather(list(whole.split(size)), mean, group=self._everybody)
        return whole[: own.numel()].to(own.device)

    def _mixed(self) -> list[tuple[int, str | None]]:
        """Parameters, and with momentum "mixed" what the optimizer keeps for each of their numbers."""
        kept = [
            (n, name) for n, parameter in enumerate(self._parameters) for name in self._kept_for(parameter)
        ]
        return [*((n, None) for n in range(len(self._parameters))), *kept]

    def _kept_for(self, parameter: nn.Parameter) -> list[str]:
        if self.technique.momentum == "local":
            return []
        return [
            name
            for name, value in sorted(self._optimizer.state[parameter].items())
            if isinstance(value, torch.Tensor)
            and value.shape == parameter.shape
            and value.device == parameter.device
            and name != "step"  # as many as the parameter of one number has
        ]

    def _vector(self) -> Vector:
        """What is mixed, as it departed; the optimizer may keep more by now."""
        state = self._optimizer.state
        tensors = ((self._parameters[n], name) for n, name in self._layout)
        return Vector(value if name is None else state[value][name] for value, name in tensors)


def _flat(values: Iterable[torch.Tensor], kind: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.cat([value.detach().flatten().to(kind) for value in values])


def _travels_as(value: torch.Tensor) -> torch.dtype:
    return torch.promote_types(value.dtype, torch.float32)


def _destroy(mixer: Mixer, groups: list[dist.ProcessGroup | None], reducer: Attachment | None) -> None:
    mixer.close()
    if reducer is not None:
        reducer.detach()
    for group in groups:
        if group is not None:
            dissolve(group)


def _alone(workers: int) -> str:
    if workers == 1:
        return "Crossover has no peers in a world of one worker, and does nothing"
    return (
        f"all {workers} workers are one group, whose gradients are averaged, and there is nobody to gossip with; "
        f"groups={workers} lets every worker gossip"
    )
