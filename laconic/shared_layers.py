"""Layers of a DDP model that share rows or factors: what hooks see of them, and what becomes of DDP's buckets.

In the first step everything travels as `Dense`, while every layer's rows are counted and multiplied: a layer whose
gradient is not the product of its rows (a weight that is used in other ways, too) is an error that names it. Then the
workers agree on the largest number of rows, and with it on how each layer travels. From there on a bucket is taken
apart: layers that share do so, what is private stays, and all else is a smaller bucket.

A layer's rows are complete when its weight has its gradient, long before its bucket is. They leave then, as soon as
those of all layers before it have: in the order in which DDP's buckets had them in the two steps before, which is the
same on all workers. Small messages wait for those of the next layers, so that one transfer carries them all; the
last of them takes the last bucket's few other parameters along.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist

from laconic import streams
from laconic.bypass import Bypass
from laconic.exchange import Load
from laconic.layers import multiplied
from laconic.taps import Rows
from laconic.technique import Bucket, Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from laconic.exchange import Exchange
    from laconic.layers import Choice, Found, Layer
    from laconic.products import Product
    from laconic.sharing import Sharing
    from laconic.taps import Taps

Result = torch.futures.Future[torch.Tensor]
Shared = torch.futures.Future["Mapping[str, Product]"]

ROUNDED = 4
"""How far a gradient may be from the product of its rows, relative to it: so many times the last bit of deltas."""
LAST_BIT = 2.0**-9
"""At least; matrix products may have less precision than float32."""


TOGETHER = 1 << 16
"""Bytes of a worker's messages from which on they do not wait for the next layer's."""


@dataclass
class _Step:
    """What has become of layers so far: those that have left, in order, and those of them that wait for company."""

    left: list[Layer] = field(default_factory=list)
    waiting: list[tuple[Shared, Load]] = field(default_factory=list)
    ready: dict[str, torch.Tensor] = field(default_factory=dict)
    """Weights' gradients, or the weights themselves where backward left them out."""
    left_out: set[torch.Tensor] = field(default_factory=set)
    """Weights that have had their turn in backward, without a gradient."""
    results: dict[str, Shared] = field(default_factory=dict)
    products: dict[str, Product] = field(default_factory=dict)


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


class SharedLayers:
    """One model's layers at work."""

    def __init__(
        self,
        ddp: DistributedDataParallel,
        technique: Sharer,
        found: Found,
        exchange: Exchange,
        name: Callable[[torch.Tensor], str],
    ) -> None:
        self._ddp: Callable[[], DistributedDataParallel | None] = weakref.ref(ddp)
        self._group, self._technique, self._exchange, self._name = (
            ddp.process_group,
            technique,
            exchange,
            name,
        )
        self._device = next(ddp.parameters()).device
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
        self._step = _Step()
        self._before: list[Layer] = []
        self._order: list[Layer] = []
        self.choices: list[Choice] | None = None
        """How each layer travels, from the second step on."""

    def reduce(self, bucket: dist.GradBucket) -> Result:
        """A future of the bucket's gradients as all workers have them."""
        if self._counted and self.choices is None:
            self._agree(bucket.buffer().device)
        names = [self._name(parameter) for parameter in bucket.parameters()]
        views = dict(zip(names, bucket.gradients(), strict=True))
        if self.choices is None:
            self._count(views)
        buffer, places = self._places(bucket, views)
        sharing = {layer.weight: layer for layer in self._sharing()}
        self._leave([sharing[name] for name in names if name in sharing], views)
        pending: list[Result] = [
            self._fill(layer, places) for layer in sharing.values() if views.keys() & {*layer.parameters}
        ]
        taken = {name for layer in sharing.values() for name in layer.parameters}
        others = [
            name for name in names if name not in taken and not name.startswith(self._technique.private)
        ]
        if others:
            own, averages = ({name: where[name] for name in others} for where in (views, places))
            pending.append(self._average(own, averages, bucket.is_last()))
        if bucket.is_last():
            self._send()
            pending += self._end_step()
        return _settled(pending, buffer)

    def state(self) -> dict[str, int]:
        """What a resumed run needs to choose as this one did."""
        return dict(self._rows) if self._counted else {}

    def load(self, rows: Mapping[str, int]) -> None:
        """Rows are known from a run before."""
        self._rows, self._counted, self.choices = dict(rows), bool(rows), None
        self._bypass.spare([])
        self._sharing_technique.settle(rows)

    def remove(self) -> None:
        """The model's modules are as they were."""
        self._taps.remove()
        self._bypass.remove()
        for hook in self._ready:
            hook.remove()

    @property
    def _sharing_technique(self) -> Sharing:
        return self._exchange.technique  # type: ignore[return-value]

    def _sharing(self) -> list[Layer]:
        return [choice.layer for choice in self.choices or () if choice.way != "dense"]

    def _places(
        self, bucket: dist.GradBucket, views: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Where a bucket's results go, and each parameter's.

        That is the bucket itself, from which DDP copies them to where gradients are. What backward left out is
        nowhere yet: these gradients lie among the results, and DDP finds nothing to copy.
        """
        buffer, ddp = bucket.buffer(), self._ddp()
        left_out = [
            parameter
            for parameter in bucket.parameters()
            if parameter in self._step.left_out and parameter.dtype == buffer.dtype
        ]
        if not left_out or ddp is None or ddp.gradient_as_bucket_view or buffer.device.type != "cpu":
            return buffer, views
        results = torch.empty_like(buffer)
        start = buffer.storage_offset()
        places = {
            name: results.as_strided(view.shape, view.stride(), view.storage_offset() - start)
            for name, view in views.items()
        }
        for parameter in left_out:
            parameter.grad = places[self._name(parameter)]
        for name in views:
            if name.startswith(self._technique.private):
                places[name].copy_(views[name])
        return results, places

    def _has_gradient(self, layer: Layer, weight: torch.Tensor) -> None:
        """In backward: the layers whose turn it is leave."""
        self._taps.done(layer.name)
        if weight.grad is None:
            self._step.left_out.add(weight)
        ddp = self._ddp()
        if self._order and ddp is not None and ddp.require_backward_grad_sync:
            self._step.ready[layer.weight] = weight if weight.grad is None else weight.grad
            while (upcoming := self._upcoming()) is not None and upcoming.weight in self._step.ready:
                self._share(upcoming, self._step.ready[upcoming.weight])

    def _leave(self, layers: Sequence[Layer], views: Mapping[str, torch.Tensor]) -> None:
        """All layers of a bucket have left, after those that come before them."""
        for layer in layers:
            if layer not in self._step.left:
                expected = self._upcoming()
                if expected is not None and expected != layer:
                    raise RuntimeError(
                        f"DDP's buckets have changed: {layer.name} comes before {expected.name} now"
                    )
                self._share(layer, views[layer.weight])

    def _upcoming(self) -> Layer | None:
        """The layer whose turn it is, once there is an order."""
        left = len(self._step.left)
        return self._order[left] if left < len(self._order) else None

    def _share(self, layer: Layer, weight: torch.Tensor) -> None:
        """The layer's rows are on their way, or its weight's gradient as it is."""
        technique = self._sharing_technique
        piece = technique.piece(layer, weight.dtype)
        rows = self._taps.take(layer.name) or _none(layer, weight)
        if technique.formed.get(layer.weight, layer.convolution):
            gradient = weight.detach().float().reshape(layer.outputs, layer.inputs)
            rows = rows._replace(gradient=gradient)
        own = weight.new_empty(0)
        if self._exchange.measure_error:
            own = weight.flatten().clone() if layer.convolution else multiplied(layer, layer.products(rows))
        self._step.left.append(layer)
        self._step.waiting.append((self._result(layer), Load(piece, rows, own)))
        sizes = [_known(load.piece) for _, load in self._step.waiting]
        if self._exchange.measure_error or sizes[-1] is None or sum(filter(None, sizes)) >= TOGETHER:
            self._send()

    def _send(self) -> None:
        """What waits is on its way."""
        waiting, self._step.waiting = self._step.waiting, []
        if waiting:
            results = [result for result, _ in waiting]
            shared = self._exchange.share([load for _, load in waiting])
            shared.then(lambda done: _pass_on(done, results))

    def _fill(self, layer: Layer, views: Mapping[str, torch.Tensor]) -> Result:
        """A future that the layer's parameters in this bucket have their gradients."""
        mine, filled = views.keys() & {*layer.parameters}, streams.mark()

        def fill(done: Shared) -> torch.Tensor:
            products = done.value()
            streams.after(filled)  # by DDP, with what backward has made
            with self._exchange.meter.phase("decode"):
                for name in mine:
                    products[name].into(views[name])
            return next(iter(views.values()))

        return self._result(layer).then(fill)

    def _average(
        self, views: Mapping[str, torch.Tensor], places: Mapping[str, torch.Tensor], last: bool
    ) -> Result:
        """A future that these parameters have their average gradients; the last ones go with what still waits."""
        sizes = tuple(view.numel() for view in views.values())
        flat = torch.cat([view.flatten() for view in views.values()])
        layout = Bucket(tuple(views), sizes, flat.dtype)

        def back(done: torch.futures.Future[Any]) -> torch.Tensor:
            done.value()  # raises what went wrong
            streams.borrow([flat])
            for place, part in zip(places.values(), flat.split(sizes), strict=True):
                place.copy_(part.view_as(place))
            return flat

        pieces = self._exchange.pieces(layout)
        company = last and bool(self._step.waiting) and not self._exchange.measure_error
        if company and len(pieces) == 1 and _known(pieces[0]) is not None:
            result: Shared = streams.future(flat.device)
            self._step.waiting.append((result, Load(pieces[0], None, flat)))
            return result.then(back)
        return self._exchange.reduce(flat, layout, last=False).then(back)

    def _result(self, layer: Layer) -> Shared:
        """The layer's gradient in this step; its weight and its bias may be in different buckets."""
        if layer.name not in self._step.results:
            self._step.results[layer.name] = streams.future(self._device)
        return self._step.results[layer.name]

    def _end_step(self) -> list[Result]:
        """A future that the step's memory is committed, if one has begun."""
        ended = self._exchange.end_step()
        self._counted = True
        left, self._step = self._step.left, _Step()
        self._order = left if left == self._before else []
        self._before = left
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

    def _agree(self, device: torch.device) -> None:
        """All workers have the same choices."""
        known = [(self._rows.get(layer.name, 0), layer.name in self._taps.fed) for layer in self._layers]
        where = device if "nccl" in dist.get_backend_config(self._group) else torch.device("cpu")
        agreed = torch.tensor(known, dtype=torch.int64, device=where)
        dist.all_reduce(agreed, dist.ReduceOp.MAX, self._group)
        workers = dist.get_world_size(self._group)
        self.choices = []
        self._rows = {
            layer.name: rows for layer, (rows, _) in zip(self._layers, agreed.tolist(), strict=True)
        }
        self._sharing_technique.settle(self._rows)
        for layer, (rows, fed) in zip(self._layers, agreed.tolist(), strict=True):
            choice = self._technique.choose(layer, rows, workers)
            skipped = self._technique.skip_inputs and fed
            self.choices.append(choice._replace(way="dense") if skipped else choice)
        formed = self._sharing_technique.formed
        shared = [layer for layer in self._sharing() if not formed.get(layer.weight, layer.convolution)]
        self._bypass.spare(module for layer in shared for module in self._modules[layer.name])


def _check_product(name: str, product: Product, gradient: torch.Tensor, tolerance: float) -> None:
    exact = torch.empty_like(gradient)
    product.into(exact)
    apart = (gradient - exact).norm()
    if bool(apart > tolerance * gradient.norm()):
        raise ValueError(
            f"the gradient of {name} is not the product of what its layer was given and what came back; "
            "it is used elsewhere, or changed on the way: use another technique"
        )


def _none(layer: Layer, like: torch.Tensor) -> Rows:
    return Rows(
        like.new_empty(0, layer.inputs, dtype=torch.float32),
        like.new_empty(0, layer.outputs, dtype=torch.float32),
    )


def _known(piece: Piece) -> int | None:
    """The bytes of a message that everybody hears and knows the size of."""
    return None if piece.gather is None else piece.gather.message


def _pass_on(done: Shared, results: Sequence[Shared]) -> None:
    """What is done, or went wrong, is the results'."""
    for result in results:
        try:
            result.set_result(done.value())
        except Exception as error:  # whatever it is, those who wait for the result must learn of it
            result.set_exception(error)  # type: ignore[arg-type]


def _settled(pending: Sequence[Result], buffer: torch.Tensor) -> Result:
    """A future of the buffer, once all that is pending has been done to it."""
    settled = streams.future(buffer.device)

    def settle(everything: torch.futures.Future[Any]) -> None:
        try:
            everything.value()  # raises what went wrong, while others may still be under way
            for each in pending:
                each.wait()  # it is there, but for what its device still does
        except Exception as error:  # DDP must learn of it
            settled.set_exception(error)
        else:
            settled.set_result(buffer)

    torch.futures.collect_all(list(pending)).then(settle)
    return settled.then(lambda done: done.value())  # raises what `set_exception` only stores
