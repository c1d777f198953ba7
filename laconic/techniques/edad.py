"""EDAD: of a chain of layers, share what goes in and what comes back, and compute all gradients from that (Baker,
Calhoun, Pearlmutter and Plis, "Efficient distributed auto-differentiation", arXiv 2102.09631).

A chain alternates linear layers z_l = A_l W_lᵀ + b_l and activations A_l+1 = φ(z_l). Its weights are the same on all
workers, so whoever has everybody's A_1, and Δ_L, what came back to the last z, has all gradients:

    forward     z_l = A_l W_lᵀ + b_l,  A_l+1 = φ(z_l)
    backward    Δ_l-1 = (Δ_l W_l) ⊙ φ'(z_l-1)
    gradients   Δ_lᵀ A_l for W_l, and for b_l the sum of Δ_l's rows

The paper shares the activations of all layers, and computes the second and third line: S·N·(Σ_l h_l + h_out) numbers.
A_1 and Δ_L are S·N·(h_in + h_out), never more, so nobody shares here what all can compute. The price is that every
worker goes through everybody's passes again. If the gradients of all layers are fewer numbers, they travel instead,
as `Dense`.

All workers do the same with the same rows in the same order, so they have the same result bit for bit: the average
gradient, computed in float32, whatever precision the model itself was run in. Rows leave as soon as Δ_L exists and
the last weight has its gradient, at the beginning of backward.

The first inputs are the data. With `skip_inputs` the chain begins at the second layer, and its inputs travel. Where
data are private, use another technique.

S workers, N rows each, h_l inputs of layer l, h_in of the first, h_out outputs of the last.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from laconic.core.place import Messages
from laconic.core.technique import Setting
from laconic.layers.catalog import Layer
from laconic.layers.hooks import Hook
from laconic.layers.products import Product
from laconic.layers.taps import Rows, Taps
from laconic.techniques.dad import DAD, layers_of
from laconic.techniques.dad_scheme import DADScheme, LayerPiece
from laconic.techniques.dense import Dense

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from laconic.layers.catalog import Found
    from laconic.layers.compiled import Listener


@dataclass(frozen=True)
class EDAD(DAD):
    """A chain's inputs and its last deltas, where these are fewer numbers than its gradients; the exact average.

    For `nn.Sequential`, nested ones included, of Linear, ReLU, Sigmoid, Tanh, GELU and Identity; Flatten may come
    first. `private` are beginnings of names of parameters that are not exchanged at all, and the chain begins after
    them. `skip_inputs` keeps the first layer, which is given the data itself, out of it.
    """

    warning: ClassVar[str] = (
        "EDAD is not private: rows of what the chain is given travel to all other workers, and they are the data "
        "itself unless skip_inputs=True; where data must not leave a worker, use that or another technique."
    )

    def find(self, model: nn.Module, public: Mapping[str, nn.Parameter]) -> Found:
        """The chain, with its last layer."""
        links = _links(model, {id(parameter): name for name, parameter in public.items()})
        ahead = [place for place, link in enumerate(links) if link.local]
        start = max([*ahead, 0 if self.skip_inputs else -1]) + 1
        trained = [place for place, link in enumerate(links) if place >= start and link.weight is not None]
        if not trained:
            return {}
        run = links[trained[0] : trained[-1] + 1]
        return {Chain(run): [run[-1].module]}

    def tap(self, found: Found) -> Taps:
        """Hooks at both ends of the chain."""
        (chain,) = found
        assert isinstance(chain, Chain)
        return ChainTaps(chain)

    def bind(self, setting: Setting) -> ChainScheme:
        """The technique for the chain."""
        known = layers_of(self, setting)
        by_weight = {layer.weight: layer for layer in known.layers}
        return ChainScheme(self, known.workers, by_weight, known.rows, Dense().bind(setting))


class Activation(NamedTuple):
    """φ(z), and the delta before it, from the delta behind it and z."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]


class Link(NamedTuple):
    """A linear layer, the names of those of its parameters that are exchanged, and the activations behind it."""

    path: str
    module: nn.Linear
    weight: str | None
    bias: str | None
    activations: list[Activation]

    @property
    def local(self) -> bool:
        """Whether it is trained, and not as other workers' is."""
        exchanged = self.parameters()
        return any(
            parameter.requires_grad and all(parameter is not other for other in exchanged.values())
            for parameter in self.module.parameters()
        )

    def parameters(self) -> dict[str, Tensor]:
        """Those that are exchanged, by name."""
        both = ((self.weight, self.module.weight), (self.bias, self.module.bias))
        return {name: parameter for name, parameter in both if name is not None}

    def forward(self, values: Tensor) -> Tensor:
        """The layer's outputs."""
        weight, bias = self.module.weight.detach().float(), self.module.bias
        return functional.linear(values, weight, None if bias is None else bias.detach().float())


class Chain(Layer):
    """Links that travel as one layer, with the inputs of the first and the outputs of the last."""

    links: tuple[Link, ...]

    def __new__(cls, links: Sequence[Link]) -> Chain:
        """The first and the last link have weights that are exchanged."""
        first, last = links[0], links[-1]
        assert last.weight is not None
        name = last.path if first is last else f"{first.path} … {last.path}"
        chain = super().__new__(
            cls, name, last.weight, None, last.module.out_features, first.module.in_features
        )
        chain.links = tuple(links)
        return chain

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all parameters that it covers."""
        return tuple(name for link in self.links for name in link.parameters())

    @property
    def sizes(self) -> tuple[int, ...]:
        """Their coordinates."""
        return tuple(value.numel() for link in self.links for value in link.parameters().values())

    @property
    def weights(self) -> tuple[str, ...]:
        """The names of its weights."""
        return tuple(link.weight for link in self.links if link.weight is not None)

    @property
    def depth(self) -> int:
        """Layers that follow each other."""
        return len(self.links)

    def products(self, rows: Rows) -> dict[str, Product]:
        """The gradients of its parameters, by name; in float32, also inside an autocast."""
        with torch.autocast(rows.deltas.device.type, enabled=False):
            return self._products(rows)

    def _products(self, rows: Rows) -> dict[str, Product]:
        given, before = _forward(self.links, rows.inputs)
        found: dict[str, Product] = {}
        delta = rows.deltas
        for place in reversed(range(len(self.links))):
            link = self.links[place]
            if link.weight is not None:
                found[link.weight] = Product(delta, given[place])
            if link.bias is not None:
                found[link.bias] = Product.of_bias(delta)
            if place > 0:
                delta = delta @ link.module.weight.detach().float()
                for activation, z in reversed(before[place - 1]):
                    delta = activation.backward(delta, z)
        return found


class ChainTaps(Taps):
    """Hooks at both ends of a chain: its rows are what the first layer was given and what came back to the last."""

    def __init__(self, chain: Chain) -> None:
        super().__init__({chain.name: [chain.links[-1].module]})
        self._given: tuple[Tensor, ...] = ()
        begins = Hook(self._enter)
        self._handles.append(chain.links[0].module.register_forward_pre_hook(begins, with_kwargs=True))

    def _enter(self, _module: nn.Module, arguments: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> None:
        self._given = (*arguments, *named.values())

    def _called(
        self,
        name: str,
        listener: Listener,
        module: nn.Module,
        _arguments: tuple[Tensor, ...],
        _named: Mapping[str, Tensor],
        output: Tensor,
    ) -> Tensor | None:
        given, self._given = self._given, ()
        if output.requires_grad and not given:
            raise RuntimeError(f"the end of {name} was called without its beginning; EDAD needs all of it")
        return super()._called(name, listener, module, given, {}, output)


class ChainScheme(DADScheme):
    """EDAD at work on a chain, and `Dense` on all else."""

    def _products(self, piece: LayerPiece, heard: Messages) -> dict[str, Product]:
        """The gradients of all parameters of the chain."""
        deltas, inputs, _ = self._told(piece, heard)
        return piece.layer.products(Rows(inputs, deltas))


def _forward(
    links: Sequence[Link], inputs: Tensor
) -> tuple[list[Tensor], list[list[tuple[Activation, Tensor]]]]:
    """What every link is given, and what the activations behind it are, of all but the last."""
    given: list[Tensor] = [inputs]
    before: list[list[tuple[Activation, Tensor]]] = []
    for link in links[:-1]:
        values = link.forward(given[-1])
        before.append([])
        for activation in link.activations:
            before[-1].append((activation, values))
            values = activation.forward(values)
        given.append(values)
    return given, before


def _links(model: nn.Module, names: Mapping[int, str]) -> list[Link]:
    """The links of a model that is a chain."""
    links: list[Link] = []
    for path, module in _steps(model, ""):
        if type(module) is nn.Linear:
            links.append(Link(path, module, names.get(id(module.weight)), names.get(id(module.bias)), []))
        elif links:
            links[-1].activations.extend(_activations(path, module))
        elif type(module) is not nn.Flatten:
            _activations(path, module)
    shared = [id(parameter) for link in links for parameter in link.module.parameters()]
    for link in links:
        if any(shared.count(id(parameter)) > 1 for parameter in link.module.parameters()):
            raise ValueError(f"{link.path} shares parameters with another layer, as EDAD's cannot; use DAD")
    return links


def _steps(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """What a model does, one after another."""
    module = getattr(module, "_orig_mod", module)  # torch.compile(module)
    if type(module) is not nn.Sequential:
        yield path, module
        return
    for name, child in module._modules.items():
        assert child is not None
        yield from _steps(child, f"{path}.{name}" if path else name)


def _activations(path: str, module: nn.Module) -> list[Activation]:
    """The activation, or nothing where a module does nothing."""
    if type(module) is nn.Identity or (isinstance(module, nn.Dropout) and module.p == 0):
        return []
    if type(module) is nn.GELU:
        return [_gelu(module.approximate)]
    if type(module) in ACTIVATIONS:
        return [ACTIVATIONS[type(module)]]
    kind = repr(module) if isinstance(module, nn.Dropout) else type(module).__name__
    raise ValueError(
        f"EDAD serves chains of linear layers and activations, and {path or 'the model'} ({kind}) is neither; use DAD"
    )


def _gelu(approximate: str) -> Activation:
    return Activation(
        functools.partial(functional.gelu, approximate=approximate),
        functools.partial(torch.ops.aten.gelu_backward, approximate=approximate),
    )


ACTIVATIONS = {
    nn.ReLU: Activation(torch.relu, lambda delta, z: torch.where(z > 0, delta, 0)),
    nn.Sigmoid: Activation(torch.sigmoid, lambda delta, z: delta * z.sigmoid() * (1 - z.sigmoid())),
    nn.Tanh: Activation(torch.tanh, lambda delta, z: delta * (1 - z.tanh().square())),
}
