"""Taps in compiled code, in which tensors have no hooks: an op behind a layer, whose backward is another op.

    tapped      the layer's output, as it is
    returned    its delta, as it is; whoever listens to the layer is told, with what the layer was given

Both copy, as an op must. A graph can hold no object, so listeners have keys; a graph of a listener who is gone tells
nobody.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_LISTENERS: weakref.WeakValueDictionary[str, Listener] = weakref.WeakValueDictionary()
_numbers = itertools.count()


class Listener:
    """Who is told of one module's calls."""

    def __init__(
        self, fed: Callable[[], None], returned: Callable[[torch.Tensor, torch.Tensor], None]
    ) -> None:
        self.fed, self.returned = fed, returned
        self.key = str(next(_numbers))
        _LISTENERS[self.key] = self

    def tap(self, output: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """The output, to be used in its place."""
        tapped: torch.Tensor = torch.ops.laconic.tapped(
            output, inputs.detach(), self.key, not inputs.requires_grad
        )
        return tapped


def _tapped(output: torch.Tensor, _inputs: torch.Tensor, key: str, fed: bool) -> torch.Tensor:
    listener = _LISTENERS.get(key)
    if fed and listener is not None:
        listener.fed()
    return output.clone()


def _returned(delta: torch.Tensor, inputs: torch.Tensor, key: str) -> torch.Tensor:
    listener = _LISTENERS.get(key)
    if listener is not None:
        listener.returned(inputs, delta)
    return delta.clone()


def _remember(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001  # torch names it
    _, given, ctx.key, _ = inputs
    ctx.save_for_backward(given)


def _tell(ctx: Any, delta: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
    return torch.ops.laconic.returned(delta, *ctx.saved_tensors, ctx.key), None, None, None


_LIBRARY = torch.library.Library("laconic", "FRAGMENT")
_LIBRARY.define("tapped(Tensor output, Tensor inputs, str key, bool fed) -> Tensor")
_LIBRARY.define("returned(Tensor delta, Tensor inputs, str key) -> Tensor")
_LIBRARY.impl("tapped", _tapped, "CompositeExplicitAutograd")
_LIBRARY.impl("returned", _returned, "CompositeExplicitAutograd")
torch.library.register_fake("laconic::tapped", lambda output, *_: output.clone(), lib=_LIBRARY)
torch.library.register_fake("laconic::returned", lambda delta, *_: delta.clone(), lib=_LIBRARY)
torch.library.register_autograd("laconic::tapped", _tell, setup_context=_remember, lib=_LIBRARY)
