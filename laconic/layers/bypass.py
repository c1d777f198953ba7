"""Backward without what nobody needs: layers that share rows get their gradient from everybody's, so their own is
never multiplied.

In a forward of the DDP model whose backward will be exchanged, a module computes with its weight detached, and the
weight hangs beside its input instead: there it gets nothing, for DDP to see that its turn has come. Everywhere else
(`no_sync`, the bare module, a compiled one, a checkpoint that computes again in backward, the data's own layer, a
weight whose gradient a hook wants to see) all is as always.

DDP that looks for unused parameters takes one without a gradient for such a one: there, a weight gets zeros, and the
result overwrites them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from laconic.layers.hooks import Hook

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn
    from torch.nn.parallel import DistributedDataParallel


class Bypass:
    """Hooks on a DDP model and on those of its modules that are to be `spared`."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.prepared = False
        """Whether DDP takes the next backward for one that is exchanged, which it decides in forward."""
        self._exchanged = False
        self.zeros = bool(ddp.find_unused_parameters)
        """Whether a weight gets zeros, and nothing only where its layer was not used."""
        self._aside: dict[nn.Module, nn.Parameter] = {}
        self._handles = [
            ddp.register_forward_pre_hook(Hook(self._begin)),
            ddp.register_forward_hook(Hook(self._end), always_call=True),
        ]
        self._spared: list[Any] = []

    def spare(self, modules: Iterable[nn.Module]) -> None:
        """The weights of these modules, and of no others, need no gradient of their own."""
        for handle in self._spared:
            handle.remove()
        self._spared = [
            handle
            for module in modules
            for handle in (
                module.register_forward_pre_hook(Hook(self._detach)),
                module.register_forward_hook(Hook(self._restore), prepend=True, always_call=True),
            )
        ]

    def remove(self) -> None:
        """All modules are as they were."""
        for handle in (*self._handles, *self._spared):
            handle.remove()

    def _begin(self, ddp: nn.Module, _arguments: tuple[Any, ...]) -> None:
        self._exchanged = bool(ddp.require_backward_grad_sync) and torch.is_grad_enabled()

    def _end(self, _ddp: nn.Module, _arguments: tuple[Any, ...], output: object) -> None:
        self.prepared |= self._exchanged and output is not None  # none is there where forward failed
        self._exchanged = False

    def _detach(
        self, module: nn.Module, arguments: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...] | None:
        if torch.compiler.is_compiling():
            return None
        weight = module._parameters["weight"]
        if not self._exchanged or not arguments or weight is None:
            return None
        if _saves_elsewhere():
            return None
        if not (arguments[0].requires_grad and weight.requires_grad):
            return None  # it would get a gradient that nobody wants
        if weight._backward_hooks or len(weight._post_accumulate_grad_hooks or ()) > 1:
            return None  # one is `SharedLayers`' own
        self._aside[module] = weight
        module._parameters["weight"] = weight.detach()  # type: ignore[assignment]
        return (_Beside.apply(arguments[0], weight, self.zeros), *arguments[1:])

    def _restore(self, module: nn.Module, _arguments: tuple[Any, ...], _output: object) -> None:
        if not torch.compiler.is_compiling() and module in self._aside:
            module._parameters["weight"] = self._aside.pop(module)


class _Beside(torch.autograd.Function):
    """The value, beside which a weight has its turn, with no gradient or with zeros."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, weight: torch.Tensor, zeros: bool) -> torch.Tensor:
        ctx.weight = weight.detach() if zeros else None
        ctx.set_materialize_grads(False)
        return value.view_as(value)

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        nothing = grad is None or ctx.weight is None
        return grad, None if nothing else torch.zeros_like(ctx.weight), None


def is_beside(value: torch.Tensor) -> bool:
    """Whether this is what a spared layer was given."""
    return value.grad_fn is not None and value.grad_fn.name() == "_BesideBackward"


def _saves_elsewhere() -> bool:
    """Whether somebody takes what autograd saves, as a checkpoint does, and will count it; torch 2.6 cannot say."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is None or top(True) is not None
