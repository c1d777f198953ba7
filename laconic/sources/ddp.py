"""DDP's buckets as a source of gradients, and the hook that brings them.

PyTorch allows one hook in the life of a DDP model, so the hook stays and the attachment behind it comes and goes;
without one it averages, as DDP does by itself.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from laconic.core.technique import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch.distributed as dist

    from laconic.sources.attachment import Attachment

CARRIED = (torch.float32, torch.bfloat16, torch.float16)

Result = torch.futures.Future[torch.Tensor]


class Engine(Protocol):
    """What a bucket is given to."""

    def reduce(self, grad: torch.Tensor, bucket: Bucket, last: bool) -> Result:
        """A future of `grad`, which will then hold the result for all workers."""

    def end_step(self) -> torch.futures.Future[Any] | None:
        """The step, if one has begun, has no more buckets."""


class Buckets:
    """The gradients that DDP hands over, bucket by bucket; parameters have a name each."""

    def __init__(self, engine: Engine, name: Callable[[torch.Tensor], str]) -> None:
        self._engine, self._name = engine, name
        self._seen: set[str] = set()
        """Of the step that is under way, the first parameters of buckets."""

    def reduce(self, bucket: dist.GradBucket) -> Result:
        """A future of the bucket's gradients as all workers have them."""
        parameters, grad = bucket.parameters(), bucket.buffer()
        layout = Bucket(tuple(map(self._name, parameters)), tuple(p.numel() for p in parameters), grad.dtype)
        self._end_before(layout)
        if bucket.is_last():
            self._seen.clear()
        return self._engine.reduce(grad, layout, bucket.is_last())

    def state(self) -> dict[str, Any]:
        """There is nothing to resume."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """There is nothing to resume."""

    def disconnect(self) -> None:
        """The model has no hooks of this source's own."""

    def _end_before(self, bucket: Bucket) -> None:
        """A step has ended whose last bucket did not say so, as in the first one of a static graph with two types."""
        first = bucket.names[0] if bucket.names else ""
        if first in self._seen:
            ended = self._engine.end_step()
            if ended is not None:
                ended.wait()
            self._seen.clear()
        self._seen.add(first)


class Slot:
    """The hook that stays on a DDP model, and the attachment it serves, if any."""

    def __init__(self, model: DistributedDataParallel | None = None) -> None:
        self.__name__ = self.__qualname__ = "laconic"  # DDP reads both
        # Weak, because the model's C++ reducer holds this hook, where Python's collector cannot see it.
        self.model: Callable[[], object] = weakref.ref(model) if model is not None else lambda: None
        self.group: Any = model.process_group if model is not None else None
        self.attachment: Attachment | None = None

    def __call__(self, _state, bucket):  # type: ignore[no-untyped-def]  # DDP misreads postponed annotations
        """A future of the bucket's gradients as all workers have them."""
        if self.attachment is None:
            return allreduce_hook(self.group, bucket)
        return self.attachment.reduce(bucket)

    def __reduce__(self) -> tuple[type[Slot], tuple[()]]:
        return Slot, ()  # a copied model has no hook, and its slot no model

    def clear(self) -> None:
        """DDP averages by itself again."""
        self.attachment = None


def free_slot(ddp: DistributedDataParallel) -> Slot:
    """The model's hook, which serves no attachment yet."""
    slot = _slot(ddp)
    if slot.attachment is not None:
        raise ValueError(f"this model has {slot.attachment.technique!r} attached; call its detach() first")
    return slot


def _slot(ddp: DistributedDataParallel) -> Slot:
    slot = getattr(ddp, "_laconic", None)
    if slot is not None and slot.model() is ddp:
        return slot
    if [hook for hook, _ in ddp._comm_hooks if not isinstance(hook, Slot)]:
        raise ValueError(
            f"this model already has the communication hook {ddp._comm_hooks[0][0].__qualname__}; DDP takes one"
        )
    slot = Slot(ddp)
    ddp.register_comm_hook(None, slot)
    ddp._laconic = slot  # type: ignore[assignment]
    return slot


def unwrapped(model: nn.Module) -> DistributedDataParallel:
    """The DDP model, whatever it is compiled into."""
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


def named(ddp: DistributedDataParallel) -> dict[str, nn.Parameter]:
    """The parameters that DDP may exchange, by the name they have in the model without wrappers."""
    return {
        name.replace("_orig_mod.", ""): parameter
        for name, parameter in ddp.module.named_parameters()
        if name not in ddp.parameters_to_ignore
    }


def trained(ddp: DistributedDataParallel) -> dict[str, nn.Parameter]:
    """The parameters that are trained, each of a type and on a device that can be served."""
    found = {name: parameter for name, parameter in named(ddp).items() if parameter.requires_grad}
    for name, parameter in found.items():
        if parameter.dtype not in CARRIED:
            raise TypeError(
                f"parameter {name} is {parameter.dtype}; Laconic carries float32, bfloat16 and float16"
            )
        if parameter.device != next(iter(found.values())).device:
            raise ValueError(
                f"parameter {name} is on {parameter.device}; all parameters must be on one device"
            )
    for name, module in ddp.module.named_modules():
        if _has_sparse_gradients(module):
            raise TypeError(
                f"{name or type(module).__name__} has sparse gradients, which cannot be carried; "
                "build it with sparse=False"
            )
    return found


def _has_sparse_gradients(module: nn.Module) -> bool:
    if not isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return False
    return module.sparse and module.weight.requires_grad
