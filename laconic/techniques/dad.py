"""DAD and RankDAD: share the factors of a layer's gradient instead of the gradient (Baker, Calhoun, Pearlmutter and
Plis, "Efficient distributed auto-differentiation", arXiv 2102.09631).

The gradient of a linear layer is ΔᵀA, of its inputs A and of what came back to its outputs Δ, a row a sample each
(taps.py). With S workers:

    DAD        everybody's rows to everybody; Σ_s Δ_sᵀ A_s / S, which is exactly the average
    RankDAD    every worker's best factors P Qᵀ ≈ ΔᵀA of rank r (lowrank.py); what they leave is kept for the next
               step. One way: everybody's factors to everybody, and their sum. Two ways: to the layer's owner, who
               factors their sum again, and keeps what that leaves; everybody has the reply

A bias is the sum of Δ's rows, and is always exact. A layer shares what takes fewer bytes, its gradient included
(layers/catalog.py); all else travels as `Dense`. A message (dad_scheme.py) has rows of Δ and of A in float32; or
the bias in float32, and P's and Q's columns, in 16 bits if so chosen.

Rows are the data, or nearly so: what the first layer is given travels unless `skip_inputs`, and factors are
combinations of it. Where data are private, use another technique.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from laconic.core import checks
from laconic.core.place import Capability
from laconic.core.technique import Setting
from laconic.layers.catalog import Layer, choose, find
from laconic.layers.loads import LayerSetting
from laconic.layers.taps import Taps
from laconic.techniques.dad_scheme import DADScheme
from laconic.techniques.dense import FORMATS, Dense

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from laconic.layers.catalog import Choice, Found

FEW = 8
"""Workers who may all hear all factors."""


@dataclass(frozen=True)
class DAD:
    """Rows of inputs and deltas where these are fewer numbers than a gradient; the result is the exact average.

    `private` are beginnings of names of parameters that are not exchanged at all. `skip_inputs` keeps layers that are
    given the data itself out of it.
    """

    private: tuple[str, ...] = ()
    skip_inputs: bool = False

    needs: ClassVar[Capability] = Capability.COMBINE
    reads: ClassVar[str] = "layers"
    serves: ClassVar[str] = "linear layer"
    warning: ClassVar[str] = (
        "DAD is not private: rows of what layers are given travel to all other workers, and the first layer's are "
        "the data itself unless skip_inputs=True; where data must not leave a worker, use that or another technique."
    )

    def __post_init__(self) -> None:
        checks.names("private", self.private)
        checks.flag("skip_inputs", self.skip_inputs)

    def find(self, model: nn.Module, public: Mapping[str, nn.Parameter]) -> Found:
        """The linear layers."""
        return {layer: modules for layer, modules in find(model, public).items() if not layer.convolution}

    def tap(self, found: Found) -> Taps:
        """Hooks on the layers."""
        return Taps({layer.name: modules for layer, modules in found.items()})

    def choose(self, layer: Layer, rows: int, workers: int) -> Choice:
        """How a layer travels that has so many rows on a worker."""
        return choose(layer, ["rows"], rows, rows, workers)

    def bind(self, setting: Setting) -> DADScheme:
        """The technique for a model's layers."""
        known = layers_of(self, setting)
        by_weight = {layer.weight: layer for layer in known.layers}
        return DADScheme(self, known.workers, by_weight, known.rows, Dense().bind(setting))


@dataclass(frozen=True)
class RankDAD:
    """The best factors of a layer's gradient: r columns instead of a matrix.

    `energy` is the share of a gradient's energy to keep, by as few columns as that takes, up to `rank`. `method`
    "power" is the paper's iteration, with `sweeps` for each column. `two_way` lets a layer's owner factor the sum
    again, so that replies do not grow with the number of workers; None does so where there are more than `FEW`, since
    one way takes one transfer instead of two and cuts once. `error_feedback` keeps what factors leave. `dtype` is
    that of factors and of all else on the wire: "bf16" is half the bytes, and rounds off a thousandth.
    """

    rank: int = 4
    energy: float | None = None
    method: str = "qr"
    sweeps: int = 10
    two_way: bool | None = None
    private: tuple[str, ...] = ()
    skip_inputs: bool = False
    error_feedback: bool = True
    dtype: str = "fp32"

    needs: ClassVar[Capability] = Capability.COMBINE
    reads: ClassVar[str] = "layers"
    serves: ClassVar[str] = "linear layer or convolution"
    warning: ClassVar[str] = (
        "RankDAD is not private: combinations of rows of what layers are given travel to other workers, and the "
        "first layer's rows are the data itself unless skip_inputs=True; where data must not leave a worker, use "
        "that or another technique."
    )

    def __post_init__(self) -> None:
        checks.count("rank", self.rank)
        checks.count("sweeps", self.sweeps)
        if self.energy is not None and not 0 < checks.number("energy", self.energy) <= 1:
            raise ValueError(f"energy is {self.energy}; use a share above 0, up to 1")
        checks.choice("method", self.method, "qr", "block", "power")
        checks.choice("dtype", self.dtype, *FORMATS)
        for name in ("skip_inputs", "error_feedback"):
            checks.flag(name, getattr(self, name))
        if self.two_way is not None:
            checks.flag("two_way", self.two_way)
        checks.names("private", self.private)

    def find(self, model: nn.Module, public: Mapping[str, nn.Parameter]) -> Found:
        """The linear layers and convolutions."""
        return find(model, public)

    def tap(self, found: Found) -> Taps:
        """Hooks on linear layers' rows; of convolutions only what they are fed is of interest."""
        linear = {layer.name: modules for layer, modules in found.items() if not layer.convolution}
        others = {layer.name: modules for layer, modules in found.items() if layer.convolution}
        return Taps(linear, others)

    def choose(self, layer: Layer, rows: int, workers: int) -> Choice:
        """How a layer travels that has so many rows on a worker."""
        way = "two ways" if self.goes_two_ways(workers) else "one way"
        return choose(layer, [way], rows, self.rank, workers)

    def bind(self, setting: Setting) -> DADScheme:
        """The technique for a model's layers."""
        known = layers_of(self, setting)
        settled = replace(self, two_way=self.goes_two_ways(known.workers))
        by_weight = {layer.weight: layer for layer in known.layers}
        rest = Dense(self.dtype).bind(setting)
        return DADScheme(self, known.workers, by_weight, known.rows, rest, settled)

    def goes_two_ways(self, workers: int) -> bool:
        """Whether factors go to owners and back."""
        return workers > FEW if self.two_way is None else self.two_way


def layers_of(technique: object, setting: Setting) -> LayerSetting:
    """The setting, which has layers."""
    if not isinstance(setting, LayerSetting):
        raise TypeError(f"{technique!r} needs the model, and a hook sees buckets alone; use laconic.attach")
    return setting
