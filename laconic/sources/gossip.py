"""Parameters as a source: they are mixed with peers' after the optimizer's step; gradients stay in their group."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from laconic.engine.flat_view import FlatView
from laconic.engine.gossiper import Gossiper, Layout
from laconic.numerics import topology
from laconic.sources.ddp import Buckets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from laconic.core.place import Place
    from laconic.engine.alarm import Quiet
    from laconic.techniques.crossover import Crossover


class Gossip:
    """A DDP model's parameters and its optimizer; `engine` mixes what they hold."""

    def __init__(
        self,
        technique: Crossover,
        ddp: DistributedDataParallel,
        optimizer: torch.optim.Optimizer,
        named: Mapping[str, nn.Parameter],
        place: Place,
        alarm: Quiet,
    ) -> None:
        self._model: Callable[[], DistributedDataParallel | None] = weakref.ref(ddp)
        self._optimizer, self._momentum = optimizer, technique.momentum
        self._parameters = [parameter for parameter in named.values() if parameter.requires_grad]
        self._frozen = {name: value for name, value in named.items() if not value.requires_grad}
        topology.segments(sum(parameter.numel() for parameter in self._parameters), technique.segments)
        names = {id(parameter): name for name, parameter in named.items()}
        device = self._parameters[0].device
        self.engine = Gossiper(technique, ddp.process_group, device, place, self._flat, alarm)
        self._buckets = Buckets(self.engine, lambda parameter: names[id(parameter)])
        self._hook = optimizer.register_step_post_hook(lambda *_: self._after_step())
        self._sent_buffers = ddp.broadcast_buffers
        ddp.broadcast_buffers = False  # worker 0's would reach everybody before each forward

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """A future of the bucket's gradients as the worker's group has them."""
        return self._buckets.reduce(bucket)

    def state(self) -> dict[str, Any]:
        """The optimizer keeps what is its own."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """The optimizer loads what is its own."""

    def disconnect(self) -> None:
        """Nothing is mixed any more, and buffers travel as they did."""
        self._hook.remove()
        model = self._model()
        if model is not None:
            model.broadcast_buffers = self._sent_buffers

    def _after_step(self) -> None:
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise RuntimeError(
                    f"{name} was frozen when Crossover was attached, so nobody would hear of it; attach again"
                )
        with self.engine.alarm.telling():
            self.engine.mix(self._mixed())

    def _mixed(self) -> Layout:
        """Parameters, and with momentum "mixed" what the optimizer keeps for each of their numbers."""
        kept = [
            (n, name) for n, parameter in enumerate(self._parameters) for name in self._kept_for(parameter)
        ]
        return [*((n, None) for n in range(len(self._parameters))), *kept]

    def _kept_for(self, parameter: nn.Parameter) -> list[str]:
        if self._momentum == "local":
            return []
        return [
            name
            for name, value in sorted(self._optimizer.state[parameter].items())
            if isinstance(value, torch.Tensor)
            and value.shape == parameter.shape
            and value.device == parameter.device
            and name != "step"  # as many as the parameter of one number has
        ]

    def _flat(self, layout: Layout) -> FlatView:
        """What is mixed, where it lies."""
        state = self._optimizer.state
        tensors = ((self._parameters[n], name) for n, name in layout)
        return FlatView(value if name is None else state[value][name] for value, name in tensors)
