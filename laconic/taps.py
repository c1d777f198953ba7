"""What a layer was given and what came back: the rows whose product is its gradient.

A linear layer y = x·Wᵀ + b has the gradient ΔᵀA, with A its inputs and Δ the loss's gradient at its outputs, a row
for every sample, or for every position of one. A convolution is a linear layer on patches of its input.

A tap is a hook on a layer. It keeps the input of every call, and with it the gradient that comes back for that very
call, so that a layer may be called several times, and backward several times, before rows are taken. Rows whose delta
is all zero (padding, samples without loss) say nothing and are dropped.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Rows(NamedTuple):
    """Inputs (N, h_in) and deltas (N, h_out), in float32: the gradient is deltasᵀ·inputs."""

    inputs: torch.Tensor
    deltas: torch.Tensor


class Taps:
    """Hooks on the modules of some layers, by the layers' names; several modules may share a layer's weight."""

    def __init__(self, modules: Mapping[str, Iterable[nn.Module]]) -> None:
        self._calls: defaultdict[str, list[Rows]] = defaultdict(list)
        self.fed: set[str] = set()
        """Layers that were given something no gradient goes back to: the data."""
        self._handles = [
            module.register_forward_hook(functools.partial(self._called, name))
            for name, shared in modules.items()
            for module in shared
        ]

    def take(self, name: str) -> Rows | None:
        """The rows of all calls since they were last taken, or None if nothing came back."""
        calls = self._calls.pop(name, None)
        if not calls:
            return None
        inputs, deltas = (torch.cat(side) for side in zip(*calls, strict=True))
        return _spoken(Rows(inputs, deltas))

    def drop(self) -> None:
        """What was kept is forgotten."""
        self._calls.clear()

    def remove(self) -> None:
        """The modules are as they were."""
        for handle in self._handles:
            handle.remove()

    def _called(
        self, name: str, module: nn.Module, arguments: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> None:
        if output.requires_grad:
            inputs = arguments[0].detach()
            if not arguments[0].requires_grad:
                self.fed.add(name)
            output.register_hook(lambda delta: self._returned(name, module, inputs, delta))

    def _returned(self, name: str, module: nn.Module, inputs: torch.Tensor, delta: torch.Tensor) -> None:
        self._calls[name].append(rows_of(module, inputs, delta.detach()))


def eligible(module: nn.Module) -> bool:
    """Whether a module's gradient is a product of rows."""
    if type(module) is nn.Conv2d:
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return type(module) is nn.Linear


def rows_of(module: nn.Module, inputs: torch.Tensor, delta: torch.Tensor) -> Rows:
    """The rows of one call."""
    if isinstance(module, nn.Conv2d):
        assert not isinstance(module.padding, str)
        patches = nn.functional.unfold(
            inputs.float(), module.kernel_size, module.dilation, module.padding, module.stride
        )
        deltas = delta.float().flatten(2)
        return Rows(patches.transpose(1, 2).flatten(0, 1), deltas.transpose(1, 2).flatten(0, 1))
    return Rows(inputs.float().flatten(0, -2), delta.float().flatten(0, -2))


def _spoken(rows: Rows) -> Rows:
    silent = ~rows.deltas.any(1)
    return Rows(rows.inputs[~silent], rows.deltas[~silent]) if bool(silent.any()) else rows
