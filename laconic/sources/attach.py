"""The one line: `laconic.attach(ddp_model, technique)`.

`attach` checks what could go wrong later, makes the workers compare what they attached, and connects a source of
gradients to an engine: DDP's buckets or a model's layers to a reducer, its parameters to a gossiper.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from laconic.core.place import Place, Traffic
from laconic.core.technique import Bucket, Scaler, Scheme, Setting, Technique
from laconic.engine.alarm import PATIENCE, Alarm
from laconic.engine.gossiper import refuse
from laconic.engine.likeness import EVERY, Likeness, checked
from laconic.engine.reducer import WIRE, Reducer
from laconic.layers.loads import LayerSetting
from laconic.places.peers import Peers
from laconic.sources.attachment import Attachment
from laconic.sources.ddp import Buckets, free_slot, named, trained, unwrapped
from laconic.sources.explain import shareable
from laconic.sources.gossip import Gossip
from laconic.sources.layers import SharedLayers
from laconic.sources.replicas import Replicas
from laconic.sources.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch.nn.parallel import DistributedDataParallel


def attach(
    model: nn.Module,
    technique: Technique,
    *,
    place: Place = Peers(),
    measure_error: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: Scaler | None = None,
    patience: float = PATIENCE,
    compare_every: int = EVERY,
    on_drift: str = "raise",
) -> Attachment:
    """From the next backward on, the workers of `model`, a DDP model, exchange gradients by `technique`.

    `place` is where their messages meet. `measure_error` sums the exact gradients too and reports each result's error
    against their mean: good for a study, and as slow as no compression. `optimizer` is needed by Crossover, which
    mixes parameters after its step. `scaler` multiplies the loss: a `GradScaler` is noticed at the first step that it
    takes, but one of your own, or one in a compiled step, must be given. It needs a `get_scale()`. A worker of whom
    nothing was heard for `patience` seconds is gone. Workers' parameters are compared every `compare_every` steps, or
    never if that is 0; where they differ, an error or a warning names those of whom there are fewer, or these get
    the others' parameters: `on_drift` "raise", "warn" or "broadcast".
    """
    with attaching(getattr(model, "process_group", None), patience) as alarm:
        ddp = unwrapped(model)
        check(technique, place)
        slot = free_slot(ddp)
        request = _Request(
            ddp,
            technique,
            place,
            measure_error,
            optimizer,
            scaler,
            trained(ddp),
            named(ddp),
            alarm,
            checked(compare_every, on_drift),
        )
        slot.attachment = _CONNECT[technique.reads](request, slot.clear)
    return slot.attachment


class _Request(NamedTuple):
    """What was asked for, and the model's parameters."""

    ddp: DistributedDataParallel
    technique: Any
    place: Place
    measures: bool
    optimizer: torch.optim.Optimizer | None
    scaler: Scaler | None
    trained: Mapping[str, nn.Parameter]
    named: Mapping[str, nn.Parameter]
    """One frozen after DDP was built still lies in its buckets."""
    alarm: Alarm
    drift: tuple[int, str]
    """How often parameters are compared, and what happens where they differ."""

    @property
    def device(self) -> torch.device:
        """Of all parameters."""
        return next(iter(self.trained.values())).device

    @property
    def workers(self) -> int:
        """Of the model's process group."""
        return dist.get_world_size(self.ddp.process_group)

    @property
    def name(self) -> Callable[[torch.Tensor], str]:
        """Of a parameter."""
        names = {id(parameter): name for name, parameter in self.named.items()}
        return lambda parameter: names[id(parameter)]

    def compare(self, technique: Technique, more: str = "") -> None:
        """All workers asked for the same, for the same model."""
        shapes = [(name, tuple(value.shape), str(value.dtype)) for name, value in self.trained.items()]
        more += " with a scaler" if self.scaler is not None else ""
        compare(self.alarm, f"{technique!r} at {self.place!r}{more}", shapes)

    def reducer(self, scheme: Scheme) -> Reducer:
        """At work for the model's workers, who have compared what they attach."""
        _cut_once(scheme, self.trained)
        self.compare(scheme.technique, " with measure_error" if self.measures else "")
        traffic = Traffic(scheme.routes, scheme.surveys, self.measures)
        post = self.place.open(self.ddp.process_group, self.device, traffic)
        return Reducer(scheme, post, self.device, self.measures, self.alarm, self.likeness)

    @property
    def likeness(self) -> Likeness | None:
        """Of the parameters that all workers are to have alike, if they are compared."""
        private = getattr(self.technique, "private", ())
        alike = [value for name, value in self.trained.items() if not name.startswith(tuple(private))]
        return Likeness(alike, *self.drift) if self.drift[0] else None

    def attachment(self, technique: Technique, source: Any, engine: Any, detached: Any) -> Attachment:
        """Of the source and the engine."""
        replicas = Replicas(self.ddp, list(self.trained.values()))
        sizes = {name: parameter.numel() for name, parameter in self.named.items()}
        if self.scaler is not None:
            engine.scaled(self.scaler)
        ids = frozenset(map(id, self.named.values()))
        watch = Watch(engine, lambda parameter: id(parameter) in ids)
        return Attachment(technique, source, engine, watch, replicas, sizes, detached)


def _connect_gradients(request: _Request, detached: Callable[[], None]) -> Attachment:
    scheme = request.technique.bind(Setting(request.workers, request.place.offers))
    reducer = request.reducer(scheme)
    return request.attachment(scheme.technique, Buckets(reducer, request.name), reducer, detached)


def _connect_layers(request: _Request, detached: Callable[[], None]) -> Attachment:
    technique, ddp = request.technique, request.ddp
    found = shareable(technique, ddp.module, request.trained)
    setting = LayerSetting(request.workers, request.place.offers, tuple(found))
    reducer = request.reducer(technique.bind(setting))
    bind = lambda rows: technique.bind(replace(setting, rows=dict(rows)))  # noqa: E731
    source = SharedLayers(ddp, technique, found, reducer, bind, request.name)
    return request.attachment(technique, source, reducer, detached)


def _connect_parameters(request: _Request, detached: Callable[[], None]) -> Attachment:
    technique, optimizer = request.technique, request.optimizer
    if optimizer is None:
        raise ValueError(
            "Crossover mixes parameters after the optimizer's step; pass it: attach(model, technique, optimizer=…)"
        )
    if request.measures:
        raise ValueError("Crossover exchanges no gradients, so there is no error of theirs to measure")
    refuse(request.scaler)
    stepped = {id(value) for group in optimizer.param_groups for value in group["params"]}
    for name, parameter in request.trained.items():
        if id(parameter) not in stepped:
            raise ValueError(f"the optimizer does not train {name}; pass the one that trains this model")
    nodes = technique.nodes(request.workers)
    inner = technique.bind(Setting(request.workers // nodes, request.place.offers)).technique
    technique = replace(technique, inner=inner)
    request.compare(technique, f", {nodes} of them gossiping")
    source = Gossip(technique, request.ddp, optimizer, request.named, request.place, request.alarm)
    return request.attachment(technique, source, source.engine, detached)


_CONNECT = {
    "gradients": _connect_gradients,
    "layers": _connect_layers,
    "parameters": _connect_parameters,
}


@contextlib.contextmanager
def attaching(group: dist.ProcessGroup | None, patience: float) -> Iterator[Alarm]:
    """The alarm of the group's workers, or everybody's; whoever fails in here says why, and the others fail, too."""
    group = group or dist.group.WORLD
    if group is None:
        raise RuntimeError("there is no process group; call torch.distributed.init_process_group() first")
    sensible = isinstance(patience, int | float) and patience > 0
    alarm = Alarm(group, patience if sensible else PATIENCE)
    try:
        with alarm.telling():
            if not sensible:
                raise ValueError(f"patience is {patience}; it is in seconds, and must be above zero")
            yield alarm
    except BaseException:
        alarm.close()
        raise


def check(technique: Technique, place: Place) -> None:
    """`technique` is one, and `place` can serve it."""
    if isinstance(technique, type) or not (hasattr(technique, "bind") and hasattr(technique, "reads")):
        raise TypeError(f"{technique!r} is not a technique; pass a value such as laconic.Dense()")
    if isinstance(place, type) or not hasattr(place, "offers"):
        raise TypeError(f"{place!r} is not a place; pass a value such as laconic.Peers()")
    if not technique.needs & place.offers:
        raise ValueError(f"{place!r} offers {place.offers}, but {technique!r} needs {technique.needs}")


def compare(alarm: Alarm, technique: str, parameters: object = None) -> None:
    """All workers gave equal arguments; from now on they watch each other."""
    technique = re.sub(r" at 0x[0-9a-f]+", "", technique)  # of a function, whose address is its worker's own
    digest = hashlib.sha256(repr(parameters).encode()).hexdigest()
    (worker, workers), board = alarm.seat, alarm.board
    if worker == 0:
        board.write("technique", f"{digest} {technique}")
    alarm.until(lambda: board.written(["technique"]))
    theirs, _, first = (board.read("technique") or "").partition(" ")
    if technique != first:
        raise ValueError(
            f"{alarm.seat} attached {technique} where worker 0 attached {first}; attach one technique"
        )
    if digest != theirs:
        raise ValueError(
            f"{alarm.seat} has other trained parameters than worker 0; build the same model on all workers"
        )
    board.count("alike", 1)
    alarm.until(lambda: board.count("alike") == workers)
    alarm.watch()


def _cut_once(scheme: Scheme, parameters: Mapping[str, nn.Parameter]) -> None:
    """`scheme` can serve the largest parameter, or says now why not."""
    name, largest = max(parameters.items(), key=lambda named: named[1].numel())
    scheme.cut(Bucket((name,), (largest.numel(),), largest.dtype), WIRE)
