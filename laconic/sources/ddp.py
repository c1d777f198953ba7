"""DDP's buckets as a source of gradients, the hook that brings them, and where in them gradients and results lie.

PyTorch allows one hook in the life of a DDP model, so the hook stays and the attachment behind it comes and goes;
without one it averages, as DDP does by itself.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from laconic.core import streams
from laconic.core.technique import Bucket
from laconic.sources import wrappers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import torch.distributed as dist

    from laconic.engine.reducer import Reducer
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


def views(bucket: dist.GradBucket, name: Callable[[torch.Tensor], str]) -> dict[str, torch.Tensor]:
    """The gradients in the bucket, by parameters' names.

    DDP lays a gradient out as its parameter is, and `GradBucket.gradients` takes all for contiguous.
    """
    pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
    return {
        name(parameter): flat.as_strided(parameter.shape, parameter.stride())
        if _is_permuted(parameter)
        else flat
        for parameter, flat in pairs
    }


def _is_permuted(parameter: torch.Tensor) -> bool:
    """Whether it lies in memory without gaps, and not in its own order."""
    if parameter.is_contiguous():
        return False
    order = sorted(range(parameter.dim()), key=parameter.stride, reverse=True)
    return parameter.permute(order).is_contiguous()


def places(
    bucket: dist.GradBucket,
    own: dict[str, torch.Tensor],
    name: Callable[[torch.Tensor], str],
    left_out: Collection[torch.Tensor],
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Where a bucket's results go, and each parameter's.

    That is the bucket itself, from which DDP copies them to where gradients are. What backward left out is nowhere
    yet: these gradients lie among the results, and DDP finds nothing to copy.
    """
    buffer = bucket.buffer()
    missing = [
        parameter
        for parameter in bucket.parameters()
        if parameter in left_out and parameter.dtype == buffer.dtype
    ]
    if not missing or buffer.device.type != "cpu":
        return buffer, own
    results = torch.empty_like(buffer)
    start = buffer.storage_offset()
    theirs = {
        each: results.as_strided(view.shape, view.stride(), view.storage_offset() - start)
        for each, view in own.items()
    }
    for parameter in missing:
        parameter.grad = theirs[name(parameter)]
    return results, theirs


def joined(own: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """These gradients of one bucket as the vector that they are, if they lie one behind the other in their order."""
    place = own[0].storage_offset()
    for view in own:
        if view.storage_offset() != place or not view.is_contiguous():
            return None
        place += view.numel()
    return own[0].as_strided((place - own[0].storage_offset(),), (1,))


def complete(pending: Sequence[Result], buffer: torch.Tensor, engine: Reducer) -> Result:
    """A future of the buffer, once all that is pending has been done to it by the engine."""
    result = streams.future(buffer.device)

    def settle(everything: torch.futures.Future[Any]) -> None:
        try:
            everything.value()  # raises what went wrong, while others may still be under way
            for each in pending:
                each.wait()  # it is there, but for what its device still does
        except Exception as error:  # DDP must learn of it, and without the futures on its way
            result.set_exception(engine.explained() or error)
        else:
            result.set_result(buffer)

    torch.futures.collect_all(list(pending)).then(settle)
    return result.then(lambda done: done.value())  # raises what `set_exception` only stores


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
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

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
    wrappers.refuse(ddp)
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
