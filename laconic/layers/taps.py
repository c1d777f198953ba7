"""What a layer was given and what came back: the rows whose product is its gradient.

A linear layer y = x·Wᵀ + b has the gradient ΔᵀA, with A its inputs and Δ the loss's gradient at its outputs, a row
for every sample, or for every position of one. A convolution is a linear layer on patches of its input.

A tap is a hook on a layer. It keeps the input of every call, and with it the gradient that comes back for that very
call, so that a layer may be called several times, and backward several times, before rows are taken. Rows count once
the layer's weight has got their gradient: those of `torch.autograd.grad`, which gives it none, never do. Rows whose
delta is all zero (padding, samples without loss) say nothing and are dropped. So are those of gradients that were
cleared without having been exchanged.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from laconic.core import streams
from laconic.layers.bypass import is_beside
from laconic.layers.compiled import Listener
from laconic.layers.hooks import Hook

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


NONE = -1
"""No backward."""


class Rows(NamedTuple):
    """Inputs (N, h_in) and deltas (N, h_out), in float32: the gradient is deltasᵀ·inputs."""

    inputs: torch.Tensor
    deltas: torch.Tensor
    gradient: torch.Tensor | None = None
    """As backward has made it, where that is of more use than its rows."""


class Call(NamedTuple):
    """The rows of one call, in the backward with this number; whether the weight was spared its gradient."""

    rows: Rows
    backward: int
    spared: bool


class Taps:
    """Hooks on the modules of some layers, by the layers' names; several modules may share a layer's weight.

    Of `watched` layers no rows are kept; only who is fed by the data is seen.
    """

    def __init__(
        self,
        modules: Mapping[str, Iterable[nn.Module]],
        watched: Mapping[str, Iterable[nn.Module]] | None = None,
    ) -> None:
        self._calls: defaultdict[str, list[Call]] = defaultdict(list)
        self._loose: defaultdict[str, list[Call]] = defaultdict(list)
        """Those whose gradient the weight has not got, or not yet."""
        self._cleared: dict[str, bool] = {}
        """Whether the gradient that a weight had from a backward before had been cleared when the next one began."""
        self._marks: dict[str, streams.Mark | None] = {}
        self.fed: set[str] = set()
        """Layers that were given something no gradient goes back to: the data."""
        self.eps = 0.0
        """Of the coarsest type in which deltas came back."""
        self._done: set[str] = set()
        tapped = {**modules, **(watched or {})}
        self._handles = [
            module.register_forward_hook(self._tap(name, module), with_kwargs=True)
            for name, shared in tapped.items()
            for module in shared
        ]
        self._always_watched = self._watched = frozenset(watched or ())
        self._summed: frozenset[str] = frozenset()

    def narrow(self, watched: Iterable[str] = (), summed: Iterable[str] = ()) -> None:
        """Of these layers nothing is kept from now on, or the sum of deltas alone, as one row; of others, rows."""
        self._watched, self._summed = self._always_watched.union(watched), frozenset(summed)

    def take(self, name: str) -> Rows | None:
        """The rows of all calls since they were last taken, or None if nothing came back."""
        own, _ = self._of_this_backward(name)
        calls = [*self._calls.pop(name, ()), *own]
        self._loose.pop(name, None)
        if not calls:
            return None
        streams.after(self._marks.pop(name, None))
        if len(calls) == 1:
            return _spoken(calls[0].rows)
        inputs, deltas = [call.rows.inputs for call in calls], [call.rows.deltas for call in calls]
        return _spoken(Rows(torch.cat(inputs), torch.cat(deltas)))

    def done(self, name: str) -> None:
        """The layer's weight has its gradient of the backward that is under way."""
        cleared = self._cleared.pop(name, None)
        if cleared:
            self._calls.pop(name, None)
        elif cleared is not None and not self._calls[name]:
            raise RuntimeError(
                f"{name} still has the gradient of the last exchange, to which another cannot be added; "
                "call zero_grad() before the next backward"
            )
        own, self._loose[name] = self._of_this_backward(name)
        self._calls[name] += own
        self._done.add(name)

    def spared(self, name: str) -> bool:
        """Whether the weight should have no gradient of its own: no call was to give it one."""
        calls = self._calls[name]
        return bool(calls) and all(call.spared for call in calls)

    def drop(self) -> None:
        """What was kept is forgotten."""
        self._calls.clear()
        self._loose.clear()
        self._marks.clear()

    def _of_this_backward(self, name: str) -> tuple[list[Call], list[Call]]:
        """Of the loose calls those of the backward that is under way, or all if none is; and the others."""
        now, calls = _backward(), self._loose[name]
        own = [call for call in calls if now in (call.backward, NONE)]
        return own, [call for call in calls if now not in (call.backward, NONE)]

    def remove(self) -> None:
        """The modules are as they were."""
        for handle in self._handles:
            handle.remove()

    def _tap(self, name: str, module: nn.Module) -> Hook:
        listener = Listener(
            functools.partial(self.fed.add, name), functools.partial(self._heard, name, module)
        )
        return Hook(functools.partial(self._called, name, listener))

    def _called(
        self,
        name: str,
        listener: Listener,
        module: nn.Module,
        arguments: tuple[torch.Tensor, ...],
        named: Mapping[str, torch.Tensor],
        output: torch.Tensor,
    ) -> torch.Tensor | None:
        if not output.requires_grad:
            return None
        (inputs,) = (*arguments, *named.values())
        if torch.compiler.is_compiling():
            needless = inputs.requires_grad and name in self._always_watched
            return None if needless else listener.tap(output, inputs)
        if not inputs.requires_grad:
            self.fed.add(name)
        if name not in self._watched:
            given, spared = inputs.detach(), is_beside(inputs)
            _hookable(output).register_hook(lambda delta: self._returned(name, module, given, spared, delta))
        return None

    def _heard(self, name: str, module: nn.Module, inputs: torch.Tensor, delta: torch.Tensor) -> None:
        """In compiled code, where nothing is spared, and what is watched may change later."""
        if name not in self._watched:
            self._returned(name, module, inputs, False, delta)

    def _returned(
        self, name: str, module: nn.Module, inputs: torch.Tensor, spared: bool, delta: torch.Tensor | None
    ) -> None:
        if delta is None:  # of an output that no loss uses
            return
        now, loose = _backward(), self._loose[name]
        if name in self._done and not any(call.backward == now for call in loose):
            self._cleared[name] = _is_clear(module.weight)  # type: ignore[arg-type]
        self.eps = max(self.eps, torch.finfo(delta.dtype).eps)
        loose.append(Call(self._rows(name, module, inputs, delta.detach()), now, spared))
        self._marks[name] = streams.mark()  # a weight without a gradient of its own waits for no stream

    def _rows(self, name: str, module: nn.Module, inputs: torch.Tensor, delta: torch.Tensor) -> Rows:
        if name in self._summed:
            return Rows(delta.new_empty(1, 0, dtype=torch.float32), _flat(delta.float()).sum(0, keepdim=True))
        return rows_of(module, inputs, delta)


def _backward() -> int:
    """The number of the backward that is under way, or NONE."""
    return torch._C._current_graph_task_id()


def _is_clear(weight: torch.Tensor) -> bool:
    return weight.grad is None or not bool(weight.grad.any())


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
