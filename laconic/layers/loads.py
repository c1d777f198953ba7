"""A layer's turn: what its rows are, and its gradients as products of what was heard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from laconic.core.technique import Setting, Turn
from laconic.layers.catalog import Layer
from laconic.layers.products import Product
from laconic.layers.taps import Rows


@dataclass(eq=False)
class LayerTurn(Turn):
    """One layer in one step on one worker."""

    rows: Rows | None = None
    """What it was given and what came back."""
    products: Mapping[str, Product] = field(default_factory=dict)
    """What `decode` has found: its gradients, by parameter, not yet multiplied."""


@dataclass(frozen=True)
class LayerSetting(Setting):
    """What a technique for layers is bound to: those that may share, and how many rows each has, once known."""

    layers: tuple[Layer, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)
    """By the layers' names; the most that any worker has."""
