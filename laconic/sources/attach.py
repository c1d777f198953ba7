"""The one line: `laconic.attach(ddp_model, technique)`.

`attach` checks what could go wrong later, makes the workers compare what they attached, and puts a communication
hook on the DDP model. PyTorch allows one hook in the life of a DDP model, so the hook stays and the attachment
behind it comes and goes; without one it averages, as DDP does by itself.
"""

from __future__ import annotations

import dataclasses
import re
import weakref
from typing import TYPE_CHECKING, Any, overload

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from laconic.core.technique import Bucket, Settler
from laconic.engine.reducer import Exchange
from laconic.sources.attachment import Attachment
from laconic.sources.gossip import GossipAttachment
from laconic.sources.layers import SharedLayers
from laconic.sources.sharers import Sharer, shareable
from laconic.techniques.crossover import Crossover

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from laconic.core.technique import Technique

CARRIED = (torch.float32, torch.bfloat16, torch.float16)


@overload
def attach(
    model: nn.Module, technique: Crossover, *, optimizer: torch.optim.Optimizer
) -> GossipAttachment: ...


@overload
def attach(
    model: nn.Module,
    technique: Technique,
    *,
    measure_error: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
) -> Attachment: ...


def attach(
    model: nn.Module,
    technique: Technique | Crossover,
    *,
    measure_error: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
) -> Attachment:
    """From the next backward on, the workers of `model`, a DDP model, exchange gradients by `technique`.

    `measure_error` sums the exact gradients too and reports each result's error against their mean: good for a
    study, and as slow as no compression. `optimizer` is needed by Crossover, which mixes parameters after its step.
    """
    ddp = _unwrap(model)
    if isinstance(technique, Crossover):
        return _gossip(ddp, technique, optimizer, measure_error)
    technique = settle(technique, ddp.process_group)
    parameters = _trained(ddp)
    slot = _free_slot(ddp)
    workers = dist.get_world_size(ddp.process_group)
    found = shareable(technique, ddp.module, parameters) if isinstance(technique, Sharer) else {}
    serving = technique.bind(list(found), workers) if isinstance(technique, Sharer) else technique
    _cut_once(serving, parameters, workers)
    described = repr(technique) + (" with measure_error" if measure_error else "")
    _compare_parameters(ddp.process_group, described, parameters)
    exchange = Exchange(serving, ddp.process_group, next(iter(parameters.values())).device, measure_error)
    named = _named(ddp)  # a parameter frozen after DDP was built still lies in its buckets
    names = {id(parameter): name for name, parameter in named.items()}
    sizes = {name: parameter.numel() for name, parameter in named.items()}
    name = lambda parameter: names[id(parameter)]  # noqa: E731
    layers = SharedLayers(ddp, technique, found, exchange, name) if isinstance(technique, Sharer) else None
    slot.attachment = Attachment(technique, exchange, name, sizes, slot.clear, layers)
    return slot.attachment


def _gossip(
    ddp: DistributedDataParallel,
    technique: Crossover,
    optimizer: torch.optim.Optimizer | None,
    measure_error: bool,
) -> GossipAttachment:
    if optimizer is None:
        raise ValueError(
            "Crossover mixes parameters after the optimizer's step; pass it: attach(model, technique, optimizer=…)"
        )
    if measure_error:
        raise ValueError("Crossover exchanges no gradients, so there is no error of theirs to measure")
    if isinstance(technique.inner, Sharer | Crossover):
        raise ValueError(f"{technique.inner!r} cannot serve inside groups; use a technique for gradients")
    parameters = _trained(ddp)
    stepped = {id(value) for group in optimizer.param_groups for value in group["params"]}
    for name, parameter in parameters.items():
        if id(parameter) not in stepped:
            raise ValueError(f"the optimizer does not train {name}; pass the one that trains this model")
    slot = _free_slot(ddp)
    workers = dist.get_world_size(ddp.process_group)
    nodes = technique.nodes(workers)
    size = workers // nodes
    inner = technique.inner
    technique = dataclasses.replace(
        technique, inner=inner.settled(size) if isinstance(inner, Settler) else inner
    )
    _compare_parameters(ddp.process_group, f"{technique!r}, {nodes} of them gossiping", parameters)
    slot.attachment = attachment = GossipAttachment(technique, ddp, optimizer, _named(ddp), slot.clear)
    return attachment


def _compare_parameters(
    group: dist.ProcessGroup, technique: str, parameters: Mapping[str, nn.Parameter]
) -> None:
    shapes = [(name, tuple(parameter.shape), str(parameter.dtype)) for name, parameter in parameters.items()]
    compare(group, technique, shapes)


def settle(technique: Technique, group: dist.ProcessGroup | None) -> Technique:
    """The technique with nothing left open: it is one, its place can serve it, and there is a process group."""
    known = isinstance(technique, Sharer) or hasattr(technique, "encode")
    if not (known and hasattr(technique, "place")) or isinstance(technique, type):
        raise TypeError(f"{technique!r} is not a technique; pass a value such as laconic.Dense()")
    if not technique.needs & technique.place.offers:
        raise ValueError(
            f"{technique.place!r} offers {technique.place.offers}, but {technique!r} needs {technique.needs}"
        )
    if not dist.is_initialized():
        raise RuntimeError("there is no process group; call torch.distributed.init_process_group() first")
    workers = dist.get_world_size(group)
    return technique.settled(workers) if isinstance(technique, Settler) else technique


def compare(group: dist.ProcessGroup, technique: str, parameters: object = None) -> None:
    """All workers of the group gave equal arguments."""
    everybody: list[tuple[str, object]] = [("", None)] * dist.get_world_size(group)
    technique = re.sub(r" at 0x[0-9a-f]+", "", technique)  # of a function, whose address is its worker's own
    dist.all_gather_object(everybody, (technique, parameters), group=group)
    for worker, (other, theirs) in enumerate(everybody):
        who = f"worker {worker} of {len(everybody)}"
        if other != everybody[0][0]:
            raise ValueError(
                f"{who} attached {other} where worker 0 attached {everybody[0][0]}; attach one technique"
            )
        if theirs != everybody[0][1]:
            raise ValueError(
                f"{who} has other trained parameters than worker 0; build the same model on all workers"
            )


class _Slot:
    """The hook that stays on a DDP model, and the attachment it serves, if any."""

    def __init__(self, model: DistributedDataParallel | None = None) -> None:
        self.__name__ = self.__qualname__ = "laconic"  # DDP reads both
        # Weak, because the model's C++ reducer holds this hook, where Python's collector cannot see it.
        self.model: Callable[[], object] = weakref.ref(model) if model is not None else lambda: None
        self.group: Any = model.process_group if model is not None else None
        self.attachment: Attachment | None = None

    def __call__(self, _state, bucket):  # type: ignore[no-untyped-def]  # DDP misreads postponed annotations
        if self.attachment is None:
            return allreduce_hook(self.group, bucket)
        return self.attachment.reduce(bucket)

    def __reduce__(self) -> tuple[type[_Slot], tuple[()]]:
        return _Slot, ()  # a copied model has no hook, and its slot no model

    def clear(self) -> None:
        """DDP averages by itself again."""
        self.attachment = None


def _slot(ddp: DistributedDataParallel) -> _Slot:
    slot = getattr(ddp, "_laconic", None)
    if slot is not None and slot.model() is ddp:
        return slot
    if [hook for hook, _ in ddp._comm_hooks if not isinstance(hook, _Slot)]:
        raise ValueError(
            f"this model already has the communication hook {ddp._comm_hooks[0][0].__qualname__}; DDP takes one"
        )
    slot = _Slot(ddp)
    ddp.register_comm_hook(None, slot)
    ddp._laconic = slot  # type: ignore[assignment]
    return slot


def _free_slot(ddp: DistributedDataParallel) -> _Slot:
    slot = _slot(ddp)
    if slot.attachment is not None:
        raise ValueError(f"this model has {slot.attachment.technique!r} attached; call its detach() first")
    return slot


def _unwrap(model: nn.Module) -> DistributedDataParallel:
    ddp = getattr(model, "_orig_mod", model)  # torch.compile(ddp)
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(
            f"{type(model).__name__} is not a DistributedDataParallel model; wrap it in one first"
        )
    if ddp._use_python_reducer:
        raise ValueError(
            "torch._dynamo.config.optimize_ddp is 'python_reducer', which bypasses DDP's buckets; "
            "set it to 'ddp_optimizer' before building the DDP model"
        )
    return ddp


def _named(ddp: DistributedDataParallel) -> dict[str, nn.Parameter]:
    """The parameters that DDP may exchange, by the name they have in the model without wrappers."""
    return {
        name.replace("_orig_mod.", ""): parameter
        for name, parameter in ddp.module.named_parameters()
        if name not in ddp.parameters_to_ignore
    }


def _trained(ddp: DistributedDataParallel) -> dict[str, nn.Parameter]:
    """The parameters that are trained, each of a type and on a device that can be served."""
    trained = {name: parameter for name, parameter in _named(ddp).items() if parameter.requires_grad}
    for name, parameter in trained.items():
        if parameter.dtype not in CARRIED:
            raise TypeError(
                f"parameter {name} is {parameter.dtype}; Laconic carries float32, bfloat16 and float16"
            )
        if parameter.device != next(iter(trained.values())).device:
            raise ValueError(
                f"parameter {name} is on {parameter.device}; all parameters must be on one device"
            )
    for name, module in ddp.module.named_modules():
        if (
            isinstance(module, nn.Embedding | nn.EmbeddingBag)
            and module.sparse
            and module.weight.requires_grad
        ):
            raise TypeError(
                f"{name or type(module).__name__} has sparse gradients, which cannot be carried; "
                "build it with sparse=False"
            )
    return trained


def _cut_once(technique: Technique, parameters: dict[str, nn.Parameter], workers: int) -> None:
    """`technique` can serve so many workers and the largest parameter, or says now why not."""
    name, largest = max(parameters.items(), key=lambda named: named[1].numel())
    technique.cut(Bucket((name,), (largest.numel(),), largest.dtype), workers)
