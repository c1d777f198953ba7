"""Techniques for layers, as `attach` and sources/layers.py know them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from laconic.layers.catalog import Choice, Found, Layer
    from laconic.layers.taps import Taps
    from laconic.techniques.dad_scheme import Sharing


@runtime_checkable
class Sharer(Protocol):
    """A technique for layers."""

    private: tuple[str, ...]
    skip_inputs: bool
    serves: str
    """The kind of layers."""

    def find(self, model: nn.Module, public: Mapping[str, nn.Parameter]) -> Found:
        """The layers that may share, with their modules; `public` are the parameters that are exchanged."""

    def tap(self, found: Found) -> Taps:
        """Hooks that keep these layers' rows."""

    def choose(self, layer: Layer, rows: int, workers: int) -> Choice:
        """How a layer travels that has so many rows on a worker."""

    def bind(self, layers: Sequence[Layer], workers: int) -> Sharing:
        """The technique for these layers."""


def shareable(technique: Sharer, model: nn.Module, trained: Mapping[str, nn.Parameter]) -> Found:
    """The layers that may share, with their modules."""
    for start in technique.private:
        if not any(name.startswith(start) for name in trained):
            raise ValueError(f"private has {start!r}, but no trained parameter's name begins so")
    public = {name: value for name, value in trained.items() if not name.startswith(technique.private)}
    found = technique.find(model, public)
    if not found:
        raise ValueError(
            f"no {technique.serves} of this model can share; use laconic.Dense() or another technique"
        )
    return found
