"""What a layer was given and what came back: the rows whose product is its gradient.

A linear layer y = x·Wᵀ + b has the gradient ΔᵀA, with A its inputs and Δ the loss's gradient at its outputs, a row
for every sample, or for every position of one. A convolution is a linear layer on patches of its input.

A tap is a hook on a layer. It keeps the input of every call, and with it the gradient that comes back for that very
call, so that a layer may be called several times, and backward several times, before rows are taken. Rows whose delta
is all zero (padding, samples without loss) say nothing and are dropped. So are those of gradients that were cleared
without having been exchanged.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from laconic import streams

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Rows(NamedTuple):
    """Inputs (N, h_in) and deltas (N, h_out), in float32: the gradient is deltasᵀ·inputs."""

    inputs: torch.Tensor
    deltas: torch.Tensor
    gradient: torch.Tensor | None = None
    """As backward has made it, where that is of more use than its rows."""


class Taps:
    """Hooks on the modules of some layers, by the layers' names; several modules may share a layer's weight.

    Of `watched` layers no rows are kept; only who is fed by the data is seen.
    """

    def __init__(
        self,
        modules: Mapping[str, Iterable[nn.Module]],
        watched: Mapping[str, Iterable[nn.Module]] | None = None,
    ) -> None:
        self._calls: defaultdict[str, list[Rows]] = defaultdict(list)
        self._marks: dict[str, streams.Mark | None] = {}
        self.fed: set[str] = set()
        """Layers that were given something no gradient goes back to: the data."""
        self.eps = 0.0
        """Of the coarsest type in which deltas came back."""
        self._done: set[str] = set()
        self._handles = [
            module.register_forward_hook(functools.partial(self._called, name), with_kwargs=True)
            for name, shared in {**modules, **(watched or {})}.items()
            for module in shared
        ]
        self._watched = frozenset(watched or ())

    def take(self, name: str) -> Rows | None:
        """The rows of all calls since they were last taken, or None if nothing came back."""
        calls = self._calls.pop(name, None)
        if not calls:
            return None
        streams.after(self._marks.pop(name, None))
        if len(calls) == 1:
            return _spoken(calls[0])
        inputs, deltas = [call.inputs for call in calls], [call.deltas for call in calls]
        return _spoken(Rows(torch.cat(inputs), torch.cat(deltas)))

    def done(self, name: str) -> None:
        """The layer's weight has the gradient of one backward."""
        self._done.add(name)

    def drop(self) -> None:
        """What was kept is forgotten."""
        self._calls.clear()

    def remove(self) -> None:
        """The modules are as they were."""
        for handle in self._handles:
            handle.remove()

    def _called(
        self,
        name: str,
        module: nn.Module,
        arguments: tuple[torch.Tensor, ...],
        named: Mapping[str, torch.Tensor],
        output: torch.Tensor,
    ) -> None:
        if output.requires_grad:
            (inputs,) = (*arguments, *named.values())
            if not inputs.requires_grad:
                self.fed.add(name)
            if name not in self._watched:
                given = inputs.detach()
                _hookable(output).register_hook(lambda delta: self._returned(name, module, given, delta))

    def _returned(self, name: str, module: nn.Module, inputs: torch.Tensor, delta: torch.Tensor) -> None:
        if name in self._done:
            self._done.discard(name)
            self._clear(name, module)
        self.eps = max(self.eps, torch.finfo(delta.dtype).eps)
        self._calls[name].append(rows_of(module, inputs, delta.detach()))
        self._marks[name] = streams.mark()  # a weight without a gradient of its own waits for no stream

    def _clear(self, name: str, module: nn.Module) -> None:
        """Another backward begins: what is kept is still part of the gradient, or of none any more."""
        grad = module.weight.grad
        assert grad is None or isinstance(grad, torch.Tensor)
        if grad is None or not bool(grad.any()):
            self._calls.pop(name, None)
        elif name not in self._calls:
            raise RuntimeError(
                f"{name} still has the gradient of the last exchange, to which another cannot be added; "
                "call zero_grad() before the next backward"
            )


def eligible(module: nn.Module) -> bool:
    """Whether a module's gradient is a product of rows."""
    if type(module) is nn.Conv2d:
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return type(module) is nn.Linear


def rows_of(module: nn.Module, inputs: torch.Tensor, delta: torch.Tensor) -> Rows:
    """The rows of one call."""
    inputs, delta = inputs.float(), delta.float()
    if isinstance(module, nn.Conv2d):
        assert not isinstance(module.padding, str)
        patches = nn.functional.unfold(
            inputs.reshape(-1, *inputs.shape[-3:]),
            module.kernel_size,
            module.dilation,
            module.padding,
            module.stride,
        )
        deltas = delta.reshape(-1, *delta.shape[-3:]).flatten(2)
        return Rows(patches.transpose(1, 2).flatten(0, 1), deltas.transpose(1, 2).flatten(0, 1))
    return Rows(_flat(inputs), _flat(delta))


def _flat(values: torch.Tensor) -> torch.Tensor:
    return values.flatten(0, -2) if values.dim() > 1 else values[None]


def _hookable(output: torch.Tensor) -> torch.Tensor:
    """The output, or what it is a view of: an activation that works in place cuts a view's own hooks off."""
    base = output._base
    whole = base is not None and base.shape[-1:] == output.shape[-1:] and base.numel() == output.numel()
    return base if base is not None and whole and base.is_contiguous() and output.is_contiguous() else output


def _spoken(rows: Rows) -> Rows:
    silent = ~rows.deltas.any(1)
    return Rows(rows.inputs[~silent], rows.deltas[~silent]) if bool(silent.any()) else rows
