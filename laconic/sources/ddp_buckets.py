"""Where the gradients of a DDP bucket lie, where its results go, and when these are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from laconic.core import streams

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import torch.distributed as dist

    Name = Callable[[torch.Tensor], str]
    Result = torch.futures.Future[torch.Tensor]


def views(bucket: dist.GradBucket, name: Name) -> dict[str, torch.Tensor]:
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
    bucket: dist.GradBucket, own: dict[str, torch.Tensor], name: Name, left_out: Collection[torch.Tensor]
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


def settled(pending: Sequence[Result], buffer: torch.Tensor) -> Result:
    """A future of the buffer, once all that is pending has been done to it."""
    result = streams.future(buffer.device)

    def settle(everything: torch.futures.Future[Any]) -> None:
        try:
            everything.value()  # raises what went wrong, while others may still be under way
            for each in pending:
                each.wait()  # it is there, but for what its device still does
        except Exception as error:  # DDP must learn of it
            result.set_exception(error)
        else:
            result.set_result(buffer)

    torch.futures.collect_all(list(pending)).then(settle)
    return result.then(lambda done: done.value())  # raises what `set_exception` only stores
