"""Which layers share rows or factors, and which their gradient: whatever takes fewer bytes.

A layer is one weight and the modules that use it, all linear, or all convolutions of one kind. A convolution has so
many rows, one for every place, that its gradient is smaller: it is factored as backward made it. With S workers, N
rows each and r columns of factors, for h_out × h_in weights, a worker sends and receives about, in numbers:

    dense       2 · h_in · h_out             the gradient up, the mean down
    rows        S · N · (h_in + h_out)       everybody's rows to everybody
    one way     S · r · (h_in + h_out)       everybody's factors to everybody
    two ways    2 · r · (h_in + h_out)       factors up, those of the mean down

and for the bias h_out more. What is chosen depends on numbers that all workers share, so they choose alike.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from laconic.layers.products import Product
from laconic.layers.taps import eligible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from laconic.layers.taps import Rows


class Layer(NamedTuple):
    """A weight whose gradient is a product of rows: the names of the layer and its parameters, and its shape."""

    name: str
    weight: str
    bias: str | None
    outputs: int
    inputs: int
    convolution: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all parameters that it covers."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Their coordinates."""
        return (self.outputs * self.inputs, *((self.outputs,) if self.bias is not None else ()))

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weight."""
        return self.outputs, self.inputs

    @property
    def width(self) -> int:
        """Numbers of one row, or one column of factors."""
        return self.inputs + self.outputs

    @property
    def depth(self) -> int:
        """Layers that follow each other."""
        return 1

    @property
    def weights(self) -> tuple[str, ...]:
        """The names of its weights."""
        return (self.weight,)

    def products(self, rows: Rows) -> dict[str, Product]:
        """The gradients of its parameters, by name."""
        weight = {self.weight: Product(rows.deltas, rows.inputs)}
        return weight if self.bias is None else {**weight, self.bias: Product.of_bias(rows.deltas)}


Found = dict[Layer, list[nn.Module]]


def find(model: nn.Module, trained: Mapping[str, nn.Parameter]) -> Found:
    """The layers of a model, in order, with their modules; `trained` are the parameters that are exchanged.

    A weight that some other kind of module uses too, such as an embedding, is no layer's.
    """
    names = {id(parameter): name for name, parameter in trained.items()}
    users: defaultdict[str, list[tuple[str, nn.Module]]] = defaultdict(list)
    for path, module in model.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None and id(parameter) in names:
                users[names[id(parameter)]].append((bare(path), module))
    found: Found = {}
    for weight, using in users.items():
        layer = _layer(weight, using, names)
        if layer is not None and all(len(users[name]) == len(using) for name in layer.parameters):
            found[layer] = [module for _, module in using]
    return found


def bare(path: str) -> str:
    """A module's path in the model, whatever of it is compiled."""
    return ".".join(part for part in path.split(".") if part != "_orig_mod")


def _layer(weight: str, using: Sequence[tuple[str, nn.Module]], names: Mapping[int, str]) -> Layer | None:
    """The layer of a weight, if all modules that use it are of one kind and have the same bias."""
    path, first = using[0]
    if not all(type(module) is type(first) and eligible(module) for _, module in using):
        return None
    assert isinstance(first, nn.Linear | nn.Conv2d)
    biases = {id(module.bias) for _, module in using}
    if names.get(id(first.weight)) != weight or len(biases) > 1:
        return None
    convolution = isinstance(first, nn.Conv2d)
    # Of a gradient that is there already rows would only be needed for the bias, which is small.
    bias = names.get(id(first.bias)) if first.bias is not None and not convolution else None
    outputs = first.weight.shape[0]
    inputs = first.weight.numel() // max(1, outputs)
    return Layer(path, weight, bias, outputs, inputs, convolution)


def multiplied(layer: Layer, products: Mapping[str, Product]) -> Tensor:
    """A layer's gradients, flat, one parameter after another."""
    flat = products[layer.weight].deltas.new_empty(sum(layer.sizes))
    for name, part in zip(layer.parameters, flat.split(layer.sizes), strict=True):
        products[name].into(part)
    return flat


class Choice(NamedTuple):
    """How a layer travels: "dense", "rows", "one way" or "two ways", and about how many numbers each way takes."""

    layer: Layer
    way: str
    numbers: Mapping[str, int]

    @property
    def saves(self) -> float:
        """How many times fewer numbers travel than with the gradient itself."""
        return self.numbers["dense"] / max(1, self.numbers[self.way])

    def described(self) -> dict[str, Any]:
        """The choice in plain values, as a record has it."""
        return {
            "layer": self.layer.name,
            "shape": [self.layer.outputs, self.layer.inputs],
            "way": self.way,
            "numbers": self.numbers[self.way],
            "gradient": self.numbers["dense"],
            "saves": self.saves,
        }


def choose(layer: Layer, ways: Sequence[str], rows: int, rank: int, workers: int) -> Choice:
    """The cheapest of the ways, and of "dense"."""
    columns = min(rank, rows, layer.outputs, layer.inputs)
    extra = layer.outputs * (layer.bias is not None)
    every = {
        "dense": 2 * sum(layer.sizes),
        "rows": workers * rows * layer.width,
        "one way": workers * (columns * layer.width + extra),
        "two ways": 2 * (columns * layer.width + extra),
    }
    numbers = {way: every[way] for way in ("dense", *ways)}
    return Choice(layer, min(numbers, key=lambda way: numbers[way]), numbers)
