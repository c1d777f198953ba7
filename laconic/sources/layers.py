"""Layers of a DDP model that share rows or factors: what hooks see of them, and what becomes of DDP's buckets.

In the first step everything travels as `Dense`, while every layer's rows are counted and multiplied: a layer whose
gradient is not the product of its rows (a weight that is used in other ways, too) is an error that names it. Then the
workers agree on the largest number of rows, and with it on how each layer travels. From there on a bucket is taken
apart: layers that share do so, what is private stays, and all else is a smaller bucket.

A layer's rows are complete when its weight has its gradient, long before its bucket is. They leave then, as soon as
it is their turn (departures.py). Small messages wait for those of the next layers, so that one transfer carries them
all; the last of them takes the last bucket's few other parameters along.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from laconic.core import streams
from laconic.core.place import Everybody
from laconic.core.technique import Bucket, Piece
from laconic.layers.bypass import Bypass
from laconic.layers.catalog import bare, multiplied
from laconic.layers.taps import Rows
from laconic.sources import ddp as ddp_source
from laconic.sources.departures import AVERAGE, Order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.nn.parallel import DistributedDataParallel

    from laconic.engine.journey import Load
    from laconic.engine.reducer import Reducer
    from laconic.layers.catalog import Choice, Found, Layer
    from laconic.layers.products import Product
    from laconic.sources.explain import LayerTechnique
    from laconic.techniques.dad_scheme import DADScheme

Result = torch.futures.Future[torch.Tensor]
Shared = torch.futures.Future["Mapping[str, Product]"]

ROUNDED = 4
"""How far a gradient may be from the product of its rows, relative to it: so many times the last bit of deltas."""
LAST_BIT = 2.0**-9
"""At least; matrix products may have less precision than float32."""


TOGETHER = 1 << 16
"""Bytes of a worker's messages from which on they do not wait for the next layer's."""


@dataclass(eq=False)
class _Step:
    """What has become of layers so far: those of them that have left and wait for company, and what they came to."""

    asked: bool = False
    """Whether workers have been asked how layers travel, where that is not known."""
    waiting: list[tuple[Shared, Load]] = field(default_factory=list)
    ready: dict[str, torch.Tensor] = field(default_factory=dict)
    """Weights' gradients, or the weights themselves where backward left them out."""
    left_out: set[torch.Tensor] = field(default_factory=set)
    """Weights that have had their turn in backward, without a gradient."""
    results: dict[str, Shared] = field(default_factory=dict)
    products: dict[str, Product] = field(default_factory=dict)
    turns: Counter[str] = field(default_factory=Counter)
    """How often weights had theirs in backward; more than once, where a static graph has checkpoints."""


class SharedLayers:
    """One model's layers at work; `bind` gives the scheme for layers with so many rows, once these are known."""

    def __init__(
        self,
        ddp: DistributedDataParallel,
        technique: LayerTechnique,
        found: Found,
        reducer: Reducer,
        bind: Callable[[Mapping[str, int]], DADScheme],
        name: Callable[[torch.Tensor], str],
    ) -> None:
        self._ddp: Callable[[], DistributedDataParallel | None] = weakref.ref(ddp)
        self._group, self._technique, self._reducer = ddp.process_group, technique, reducer
        self._bind, self._name = bind, name
        self._layers = list(found)
        self._modules = {layer.name: modules for layer, modules in found.items()}
        self._taps = technique.tap(found)
        self._bypass = Bypass(ddp)
        self._ready = [
            modules[0].weight.register_post_accumulate_grad_hook(  # type: ignore[operator]
                functools.partial(self._has_gradient, layer)
            )
            for layer, modules in found.items()
        ]
        self._rows: dict[str, int] = {}
        self._counted = False
        self._step, self._order = _Step(), Order()
        self._spared: frozenset[Layer] = frozenset()
        self.choices: list[Choice] | None = None
        """How each layer travels, from the second step on."""

    def reduce(self, bucket: dist.GradBucket) -> Result:
        """A future of the bucket's gradients as all workers have them."""
        if self.choices is None and not self._step.asked:
            self._agree()
        views = ddp_source.views(bucket, self._name)
        if self.choices is None:
            self._count(views)
        buffer, places = self._places(bucket, views)
        sharing = {layer.weight: layer for layer in self._sharing()}
        self._leave([sharing[name] for name in views if name in sharing], views)
        pending: list[Result] = [
            self._fill(layer, places) for layer in sharing.values() if views.keys() & {*layer.parameters}
        ]
        taken = {name for layer in sharing.values() for name in layer.parameters}
        others = [
            name for name in views if name not in taken and not name.startswith(self._technique.private)
        ]
        if others:
            own, averages = ({name: where[name] for name in others} for where in (views, places))
            pending.append(self._average(own, averages, bucket.is_last()))
            self._leave_early()
        if bucket.is_last():
            self._send()
            pending += self._end_step()
        return ddp_source.complete(pending, buffer, self._reducer)

    def state(self) -> dict[str, Any]:
        """The rows, by which a resumed run chooses as this one did."""
        return {"rows": dict(self._rows) if self._counted else {}}

    def load(self, state: Mapping[str, Any]) -> None:
        """Rows are known from a run before."""
        rows = {bare(name): count for name, count in state.get("rows", {}).items()}
        self._rows, self._counted, self.choices = rows, bool(rows), None
        self._step, self._order, self._bypass.prepared = _Step(), Order(), False
        self._spared = frozenset()
        self._bypass.spare([])
        self._taps.narrow()
        self._taps.drop()
        self._reducer.rebind(self._bind(rows))

    def disconnect(self) -> None:
        """The model's modules are as they were."""
        self._taps.remove()
        self._bypass.remove()
        for hook in self._ready:
            hook.remove()

    @property
    def _scheme(self) -> DADScheme:
        return self._reducer.scheme  # type: ignore[return-value]

    def _sharing(self) -> list[Layer]:
        return [choice.layer for choice in self.choices or () if choice.way != "dense"]

    def _places(
        self, bucket: dist.GradBucket, views: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Where a bucket's results go, and each parameter's; what is private is there already."""
        ddp = self._ddp()
        elsewhere = ddp is not None and not ddp.gradient_as_bucket_view
        results, places = ddp_source.places(
            bucket, views, self._name, self._step.left_out if elsewhere else ()
        )
        if places is not views:
            for name in views:
                if name.startswith(self._technique.private):
                    places[name].copy_(views[name])
        return results, places

    def _has_gradient(self, layer: Layer, weight: torch.Tensor) -> None:
        """In backward: the layers whose turn it is leave."""
        self._taps.done(layer.name)
        if weight.grad is None and layer in self._spared and not self._bypass.zeros:
            self._step.left_out.add(weight)
        elif weight.grad is not None and self._taps.spared(layer.name) and bool(weight.grad.any()):
            raise RuntimeError(
                f"{layer.weight} has a gradient that does not come from its layer's rows, such as a penalty's; "
                "let the optimizer decay weights, or use another technique"
            )
        if self._bypass.prepared:
            self._step.turns[layer.weight] += 1
            self._step.ready[layer.weight] = self._own(layer, weight)
            self._leave_early()

    def _own(self, layer: Layer, weight: torch.Tensor) -> torch.Tensor:
        """The weight's gradient; where there is none, the weight itself stands for one that backward left out."""
        if weight.grad is not None:
            return weight.grad
        return weight if layer in self._spared else torch.zeros_like(weight)

    def _leave_early(self) -> None:
        """All layers have left whose turn it is, and that are ready."""
        while (upcoming := self._order.upcoming()) is not None and upcoming.weight in self._step.ready:
            self._share(upcoming, self._step.ready[upcoming.weight])

    def _leave(self, layers: Sequence[Layer], views: Mapping[str, torch.Tensor]) -> None:
        """All layers of a bucket have left, after those that come before them."""
        for layer in layers:
            if not self._order.has_left(layer):
                self._share(layer, views[layer.weight])

    def _share(self, layer: Layer, weight: torch.Tensor) -> None:
        """The layer's rows are on their way, or its weight's gradient as it is."""
        piece = self._scheme.piece(layer, weight.dtype)
        rows = self._taps.take(layer.name) or _none(layer, weight)
        if self._scheme.forms(layer):
            gradient = weight.detach().float().reshape(layer.outputs, layer.inputs)
            rows = rows._replace(gradient=gradient)
        own = _flattened(layer, rows) if self._reducer.measures else weight.new_empty(0)
        self._order.leave(layer)
        self._step.waiting.append((self._result(layer), self._reducer.layer(piece, rows, own)))
        sizes = [load.size for _, load in self._step.waiting]
        if self._reducer.measures or sizes[-1] is None or sum(filter(None, sizes)) >= TOGETHER:
            self._send()

    def _send(self) -> None:
        """What waits is on its way."""
        waiting, self._step.waiting = self._step.waiting, []
        if waiting:
            results = [result for result, _ in waiting]
            shared = self._reducer.share([load for _, load in waiting])
            shared.then(lambda done: _pass_on(done, results))

    def _fill(self, layer: Layer, views: Mapping[str, torch.Tensor]) -> Result:
        """A future that the layer's parameters in this bucket have their gradients."""
        mine, filled = views.keys() & {*layer.parameters}, streams.mark()

        def fill(done: Shared) -> torch.Tensor:
            products = done.value()
            streams.after(filled)  # by DDP, with what backward has made
            with self._reducer.meter.phase("decode"):
                for name in mine:
                    products[name].into(views[name])
            return next(iter(views.values()))

        return self._result(layer).then(fill)

    def _average(
        self, views: Mapping[str, torch.Tensor], places: Mapping[str, torch.Tensor], last: bool
    ) -> Result:
        """A future that these parameters have their average gradients; the last ones go with what still waits."""
        self._order.leave(AVERAGE)
        sizes = tuple(view.numel() for view in views.values())
        in_place = all(places[name] is view for name, view in views.items())
        joined = ddp_source.joined([*views.values()]) if in_place else None
        flat = torch.cat([view.flatten() for view in views.values()]) if joined is None else joined
        layout = Bucket(tuple(views), sizes, flat.dtype)

        def back(done: torch.futures.Future[Any]) -> torch.Tensor:
            done.value()  # raises what went wrong
            if joined is None:
                streams.borrow([flat])
                for place, part in zip(places.values(), flat.split(sizes), strict=True):
                    place.copy_(part.view_as(place))
            return flat

        pieces = self._reducer.pieces(layout)
        company = last and bool(self._step.waiting) and not self._reducer.measures
        if company and len(pieces) == 1 and _goes_to_everybody(pieces[0]):
            result: Shared = streams.future(flat.device)
            self._step.waiting.append((result, self._reducer.layer(pieces[0], None, flat)))
            return result.then(back)
        return self._reducer.reduce(flat, layout, last=False).then(back)

    def _result(self, layer: Layer) -> Shared:
        """The layer's gradient in this step; its weight and its bias may be in different buckets."""
        if layer.name not in self._step.results:
            self._step.results[layer.name] = streams.future(self._reducer.device)
        return self._step.results[layer.name]

    def _end_step(self) -> list[Result]:
        """A future that the step's memory is committed, if one has begun."""
        ended = self._reducer.end_step()
        if self._step.asked and self.choices is not None:
            self._spare()
        self._counted, self._bypass.prepared = True, False
        self._order.end_step(steady=max(self._step.turns.values(), default=1) == 1)
        self._step = _Step()
        self._taps.drop()
        return [] if ended is None else [ended]

    def _count(self, views: Mapping[str, torch.Tensor]) -> None:
        """Rows are counted, and multiplied once to see that they are all there is to a gradient."""
        for layer in self._layers:
            if layer.convolution:
                self._rows[layer.name] = min(layer.outputs, layer.inputs)
            elif layer.weight in views:
                rows = self._taps.take(layer.name) or _none(layer, views[layer.weight])
                self._rows[layer.name] = len(rows.inputs)
                self._step.products |= layer.products(rows)
            tolerance = ROUNDED * max(LAST_BIT, self._taps.eps) * layer.depth
            for name in {*layer.weights} & views.keys() & self._step.products.keys():
                _check_product(name, self._step.products[name], views[name], tolerance)

    def _agree(self) -> None:
        """All workers have the same choices, or none, if one of them has yet to count its rows."""
        self._step.asked = True
        known = [(self._rows.get(layer.name, 0), layer.name in self._taps.fed) for layer in self._layers]
        told = torch.tensor([(not self._counted, False), *known], dtype=torch.int64)
        (uncounted, _), *found = self._reducer.largest(told).tolist()
        if uncounted:
            self._rows = {}
            return
        self._rows = {layer.name: rows for layer, (rows, _) in zip(self._layers, found, strict=True)}
        self._reducer.rebind(self._bind(self._rows))
        self.choices = [
            self._choice(layer, rows, bool(fed))
            for layer, (rows, fed) in zip(self._layers, found, strict=True)
        ]

    def _choice(self, layer: Layer, rows: int, fed: bool) -> Choice:
        choice = self._technique.choose(layer, rows, dist.get_world_size(self._group))
        return choice._replace(way="dense") if self._technique.skip_inputs and fed else choice

    def _spare(self) -> None:
        """Nothing is computed or kept from now on that nobody needs.

        Not in the middle of a step: what one backward of it has kept, others add to.
        """
        sharing = self._sharing()
        formed = [layer for layer in sharing if self._scheme.forms(layer)]
        self._spared = frozenset(layer for layer in sharing if layer not in formed)
        self._bypass.spare(module for layer in self._spared for module in self._modules[layer.name])
        dense = {layer.name for layer in self._layers} - {layer.name for layer in sharing}
        self._taps.narrow(dense, [layer.name for layer in formed])


def _check_product(name: str, product: Product, gradient: torch.Tensor, tolerance: float) -> None:
    exact = torch.empty_like(gradient)
    product.into(exact)
    apart = (gradient - exact).norm()
    if bool(apart > tolerance * gradient.norm()):
        raise ValueError(
            f"the gradient of {name} is not the product of what its layer was given and what came back; "
            "it is used elsewhere, or changed on the way, so use another technique; or it was compiled, and called "
            "before this one was attached"
        )


def _none(layer: Layer, like: torch.Tensor) -> Rows:
    return Rows(
        like.new_empty(0, layer.inputs, dtype=torch.float32),
        like.new_empty(0, layer.outputs, dtype=torch.float32),
    )


def _flattened(layer: Layer, rows: Rows) -> torch.Tensor:
    """The worker's own gradients of the layer's parameters."""
    if rows.gradient is None:
        return multiplied(layer, layer.products(rows))
    bias = [rows.deltas.sum(0)] if layer.bias is not None else []
    return torch.cat([rows.gradient.flatten(), *bias])


def _goes_to_everybody(piece: Piece) -> bool:
    return isinstance(piece.route, Everybody)


def _pass_on(done: Shared, results: Sequence[Shared]) -> None:
    """What is done, or went wrong, is the results'."""
    for result in results:
        try:
            result.set_result(done.value())
        except Exception as error:  # whatever it is, those who wait for the result must learn of it
            result.set_exception(error)  # type: ignore[arg-type]
