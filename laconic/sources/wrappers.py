"""What models are wrapped in to train on several workers, other than DDP, and what whoever has one should do.

They are told by the names of their classes, so that nothing has to be imported or installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import nn


class Wrapper(NamedTuple):
    """A class, by the package that it is from and its name, and why what is wrapped in it cannot be served."""

    package: str
    name: str
    refusal: str


WRAPPERS = (
    Wrapper(
        "torch.distributed.fsdp",
        "FullyShardedDataParallel",
        "is sharded by FullyShardedDataParallel, so that no worker has whole gradients to exchange; where the model "
        "fits on every worker, use DistributedDataParallel(model) in its place",
    ),
    Wrapper(
        "torch.distributed._composable",
        "ReplicateModule",
        "is exchanged by replicate(), whose hooks take no other exchange; leave replicate() out and use "
        "DistributedDataParallel(model) in its place",
    ),
    Wrapper(
        "torch.distributed.fsdp",
        "FSDPModule",
        "is sharded by fully_shard(), so that no worker has whole gradients to exchange; where the model fits on "
        "every worker, leave fully_shard() out and use DistributedDataParallel(model) alone",
    ),
    Wrapper(
        "torch.distributed._composable",
        "DDP",
        "is exchanged by replicate(), which keeps its DistributedDataParallel to itself; leave replicate() out and "
        "use DistributedDataParallel(model) in its place",
    ),
    Wrapper(
        "deepspeed",
        "DeepSpeedEngine",
        "is a DeepSpeed engine, which exchanges gradients itself; train without deepspeed.initialize(), "
        "with DistributedDataParallel(model) and an optimizer of your own",
    ),
    Wrapper(
        "torch.nn.parallel",
        "DataParallel",
        "is in DataParallel, one process with several devices; start a process for each with torchrun and use "
        "DistributedDataParallel(model) in its place",
    ),
)


def refuse(model: nn.Module) -> None:
    """No part of the model is wrapped in any of these."""
    for path, module in model.named_modules():
        for wrapper in WRAPPERS:
            if any(_is(kind, wrapper) for kind in type(module).__mro__):
                raise TypeError(f"{path or type(module).__name__} {wrapper.refusal}")


def _is(kind: type, wrapper: Wrapper) -> bool:
    return kind.__name__ == wrapper.name and f"{kind.__module__}.".startswith(f"{wrapper.package}.")
