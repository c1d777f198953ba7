"""How a technique for layers would serve a model: which layers share what, and what that saves.

laconic.explain(model, laconic.RankDAD(rank=4), rows=32, workers=4)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from laconic.core.technique import Technique

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from laconic.layers.catalog import Choice, Found, Layer
    from laconic.layers.taps import Taps

HEADINGS = ("layer", "weight", "travels", "numbers", "gradient", "saves")


class LayerTechnique(Technique, Protocol):
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


def explain(model: nn.Module, technique: LayerTechnique, *, rows: int, workers: int | None = None) -> str:
    """A table of the model's layers, for `rows` rows a worker (batch times positions) and so many workers.

    Everything that is not in it travels as `Dense`, or stays where it is private. Training makes the same choice,
    with the rows of its first step; which layers are given the data, for `skip_inputs`, shows only there.
    """
    if technique.reads != "layers":
        raise TypeError(f"{technique!r} serves gradients, not layers: there is nothing to choose")
    if rows < 1:
        raise ValueError(f"rows is {rows}; use the rows that a worker has in a step, 1 or more")
    if workers is None:
        workers = dist.get_world_size() if dist.is_initialized() else 1
    plain = model.module if isinstance(model, DistributedDataParallel) else model
    trained = {name: value for name, value in plain.named_parameters() if value.requires_grad}
    return table([technique.choose(layer, rows, workers) for layer in shareable(technique, plain, trained)])


def table(choices: Sequence[Choice]) -> str:
    """A line for every layer."""
    lines = [HEADINGS, *(cells(**choice.described()) for choice in choices)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < 3 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def cells(
    layer: str, shape: Sequence[int], way: str, numbers: int, gradient: int, saves: float
) -> tuple[str, ...]:
    """One layer's line."""
    outputs, inputs = shape
    return layer, f"{outputs}×{inputs}", way, f"{numbers:,}", f"{gradient:,}", f"{saves:.1f}×"


def shareable(technique: LayerTechnique, model: nn.Module, trained: Mapping[str, nn.Parameter]) -> Found:
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
