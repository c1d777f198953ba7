"""All workers' copies of one model: their mean, and how far apart they are."""

from __future__ import annotations

import copy
import functools
import weakref
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from laconic.core.meter import Meter
from laconic.core.place import Label, Seat, Shards
from laconic.messages.seals import Envelopes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from laconic.core.place import Messages


class Replicas:
    """The copies of a DDP model; `parameters` are those of them that are compared."""

    def __init__(self, ddp: DistributedDataParallel, parameters: Sequence[nn.Parameter]) -> None:
        self._model: Callable[[], DistributedDataParallel | None] = weakref.ref(ddp)
        self._group, self._parameters = ddp.process_group, parameters
        self._seat = Seat(dist.get_rank(self._group), dist.get_world_size(self._group))
        self._means = 0
        device = parameters[0].device
        on_device = device.type == "cuda" and "nccl" in dist.get_backend_config(self._group)
        self._carrier = device if on_device else torch.device("cpu")

    def average(self) -> nn.Module:
        """A copy of the model with the mean of all workers' parameters and buffers; all workers must call it."""
        averaged = copy.deepcopy(self._module())
        everything = [*averaged.parameters(), *averaged.buffers()]
        with torch.no_grad():
            for kind in (torch.float32, torch.float64):
                values = [v for v in everything if v.is_floating_point() and _travels_as(v) == kind]
                mean = self._mean(_flat(values, kind)) if values else torch.empty(0)
                for value, part in zip(values, mean.split([value.numel() for value in values]), strict=True):
                    value.copy_(part.view_as(value))
        return averaged

    def consensus(self, average: nn.Module | None = None) -> float:
        """The mean of |own - mean|², over |mean|²; all workers must call it, with their average or without."""
        with torch.no_grad():
            own = _flat(self._parameters)
            mean = self._mean(own) if average is None else _flat(self._counterparts(average))
            apart = (own - mean).double().square().sum().to(self._carrier)
            dist.all_reduce(apart, group=self._group)
            return float(apart / self._seat.workers / mean.double().square().sum().to(self._carrier))

    def _module(self) -> nn.Module:
        model = self._model()
        assert model is not None
        return model.module

    def _counterparts(self, copied: nn.Module) -> list[torch.Tensor]:
        """The parameters of a copy of the model that are compared in the model itself."""
        theirs = dict(zip(self._module().parameters(), copied.parameters(), strict=True))
        return [theirs[parameter] for parameter in self._parameters]

    def _mean(self, own: torch.Tensor) -> torch.Tensor:
        """All workers' vectors' mean, each worker a part of it: exact where all have the same; sealed on its way."""
        self._means += 1
        label = Label(self._means, about=0, most=0)
        envelopes = Envelopes(Shards(), self._seat, label, Meter())
        size = 2 * -(-own.numel() // self._seat.workers // 2)  # whole words
        whole = own.new_zeros(self._seat.workers, size, device=self._carrier)
        whole.view(-1)[: own.numel()] = own
        parts = envelopes.sealed(whole.view(torch.uint8))
        assert isinstance(parts, torch.Tensor)
        arrived = torch.empty_like(parts)
        dist.all_to_all_single(arrived, parts, group=self._group)
        reply = envelopes.combining(functools.partial(_averaged, kind=own.dtype))(arrived)
        dist.all_gather(list(parts), reply, group=self._group)
        heard = envelopes.opened(parts)
        assert isinstance(heard, torch.Tensor)
        return heard.view(own.dtype).flatten()[: own.numel()].to(own.device)


def _averaged(messages: Messages, kind: torch.dtype) -> torch.Tensor:
    assert isinstance(messages, torch.Tensor)
    return messages.view(kind).double().mean(0).to(kind).view(torch.uint8)


def _flat(values: Iterable[torch.Tensor], kind: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.cat([value.detach().flatten().to(kind) for value in values])


def _travels_as(value: torch.Tensor) -> torch.dtype:
    return torch.promote_types(value.dtype, torch.float32)
