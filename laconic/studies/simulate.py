"""Many virtual workers that train in one process, and what their gossip makes of them.

A node is what gossips: a worker, or a group of workers that average their gradients. Nodes are rows of one matrix of
parameters, so that a step of all of them is a few operations: gradients of all rows (`torch.func`), SGD with momentum
that is each node's own, then one round of the method. Batches and schedule are those of `laconic train`, mixing is
that of real workers (`mixing`).

    allreduce      one node: all workers average their gradients
    crossover      every worker is a node; a fair random peer for every segment and step
    hierarchical   contiguous groups of workers are the nodes of crossover
    sgp            stochastic gradient push (Assran et al. 2019): push-sum on the directed exponential graph
    one_segment    crossover with the whole model as one segment
    unfair         crossover where everyone hears a random other: some are heard twice, some never

N: nodes. D: parameters of one node, flat.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from laconic.lab.datasets import Batch
from laconic.numerics import rng, topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from laconic.lab.tasks import Task

LOOKS = 50
"""At how many steps to look at the consensus distance: enough for a curve."""
AT_ONCE = {"cpu": 512}
"""Samples whose gradients are taken together; on a CPU more of them leave the cache and take twice as long."""
UNFAIR = rng.number("unfair peers")


@dataclass(frozen=True)
class Cell:
    """One simulated run; `batch` is each worker's."""

    task: str
    size: str
    method: str
    workers: int
    nodes: int
    segments: int
    batch: int
    steps: int
    lr: float
    momentum: float
    seed: int


class Moment(NamedTuple):
    """All nodes after a step: their mean loss in it, and the distance between them after the round."""

    step: int
    loss: float
    consensus: float


class Result(NamedTuple):
    """How a run ended: held-out values of the averaged model and of the first node's, and seconds of a mean step."""

    average: dict[str, float]
    one: dict[str, float]
    moments: list[Moment]
    seconds: float


def cell(
    task: Task,
    size: str,
    method: str,
    *,
    workers: int,
    groups: int,
    segments: int,
    batch: int,
    steps: int,
    lr: float,
    momentum: float,
    seed: int,
) -> Cell:
    """The run of a method, in which options that the method does not heed make no difference."""
    nodes = {"allreduce": 1, "hierarchical": groups}.get(method, workers)
    if workers % nodes:
        raise ValueError(f"{nodes} groups do not divide {workers} workers; use a divisor of {workers}")
    parts = segments if method in SEGMENTED else 1
    return Cell(task.name, size, method, workers, nodes, parts, batch, steps, lr, momentum, seed)


def simulate(
    cell: Cell, task: Task, device: str = "cpu", tell: Callable[[int], None] | None = None
) -> Result:
    """Trains all nodes; `tell` hears of every step. A run whose loss is no longer finite ends early."""
    nodes = Nodes(task, cell.seed, cell.nodes, device)
    moments: list[Moment] = []
    began = time.perf_counter()
    for step, batch in zip(range(1, cell.steps + 1), _batches(cell, task, device), strict=False):
        lr = cell.lr * 0.5 * (1 + math.cos(math.pi * (step - 1) / cell.steps))
        loss = nodes.descend(batch, lr, cell.momentum)
        if cell.nodes > 1:
            METHODS[cell.method](nodes, cell, step)
        if tell is not None:
            tell(step)
        if step == cell.steps or (step - 1) % max(1, cell.steps // LOOKS) == 0:
            moments.append(Moment(step, loss.item(), topology.consensus_distance(nodes.debiased())))
            if not math.isfinite(moments[-1].loss):
                break
    seconds = (time.perf_counter() - began) / moments[-1].step
    average, one = (nodes.evaluate(values) for values in (nodes.average(), nodes.debiased()[0]))
    return Result(average, one, moments, seconds)


class Nodes:
    """The state of all nodes: rows of parameters and momentum [N, D], and push-sum weights [N]."""

    def __init__(self, task: Task, seed: int, count: int, device: str = "cpu") -> None:
        self.task = task
        self.model = task.model(seed).to(device)
        self.values = parameters_to_vector(self.model.parameters()).detach().repeat(count, 1)
        self.velocity = torch.zeros_like(self.values)
        self.weights = torch.ones(count, device=device)
        self._gradients = vmap(grad_and_value(_loss_of(task, self.model)))
        self._at_once = AT_ONCE.get(self.values.device.type, 1 << 15)

    def descend(self, batch: Batch, lr: float, momentum: float) -> Tensor:
        """A step of SGD at the de-biased parameters, from a batch with a row a node; the mean loss before it."""
        self.velocity.mul_(momentum)
        total = torch.zeros((), device=self.values.device)
        nodes, samples = batch.targets.shape[:2]
        for rows, part, share in _pieces(nodes, samples, self._at_once):
            at, inputs, targets = self.debiased(rows), batch.inputs[rows, part], batch.targets[rows, part]
            with sdpa_kernel(SDPBackend.MATH):  # the only attention that vmap does not undo
                grads, losses = self._gradients(self._by_name(at), inputs, targets)
            for name, velocity in self._by_name(self.velocity[rows]).items():
                velocity.add_(grads[name], alpha=share)
            total += share * losses.sum()
        self.values.add_(self.velocity, alpha=-lr)
        return total / len(self.values)

    def debiased(self, rows: slice = slice(None)) -> Tensor:
        """What the nodes hold, over their weights: a copy."""
        return self.values[rows] / self.weights[rows, None]

    def average(self) -> Tensor:
        """The one model that all nodes would agree on."""
        return self.values.mean(dim=0) / self.weights.mean()

    def evaluate(self, values: Tensor) -> dict[str, float]:
        """What the task says of a model with these parameters."""
        vector_to_parameters(values, self.model.parameters())
        return self.task.evaluate(self.model)

    def _by_name(self, matrix: Tensor) -> dict[str, Tensor]:
        """Views of the matrix, one for every parameter."""
        named = dict(self.model.named_parameters())
        parts = matrix.split([parameter.numel() for parameter in named.values()], dim=1)
        return {
            name: part.view(len(matrix), *parameter.shape)
            for (name, parameter), part in zip(named.items(), parts, strict=True)
        }


def crossover(nodes: Nodes, cell: Cell, step: int) -> None:
    """Every node has mixed every segment with that of one other, and is heard by one."""
    partners = [topology.partners(cell.seed, step, number, cell.nodes) for number in range(cell.segments)]
    _hear(nodes.values, torch.stack([*map(topology.sources, partners)]))


def unfair(nodes: Nodes, cell: Cell, step: int) -> None:
    """Every node has mixed every segment with that of another at random: their mean is not kept."""
    keys = torch.tensor([rng.shared(cell.seed, step, number, UNFAIR) for number in range(cell.segments)])
    drawn = rng.words(keys, cell.nodes) % (cell.nodes - 1)
    _hear(nodes.values, drawn + (drawn >= torch.arange(cell.nodes)))


def push(nodes: Nodes, cell: Cell, step: int) -> None:
    """Every node has kept half of its parameters and weight and pushed half to one other, 1, 2, 4, … further on."""
    further = 1 << (step - 1) % (cell.nodes - 1).bit_length()
    for held in (nodes.values, nodes.weights):
        topology.mixed(held, held.roll(further, dims=0), out=held)


METHODS: dict[str, Callable[[Nodes, Cell, int], None]] = {
    "allreduce": crossover,
    "crossover": crossover,
    "hierarchical": crossover,
    "sgp": push,
    "one_segment": crossover,
    "unfair": unfair,
}
SEGMENTED = ("crossover", "hierarchical", "unfair")


def _hear(values: Tensor, sources: Tensor) -> None:
    """Every node has mixed every segment with its source's; `sources` has a row a segment."""
    spans = topology.segments(values.shape[1], len(sources))
    for span, heard in zip(spans, sources.to(values.device), strict=True):  # one copy, for which a GPU waits
        topology.mixed(values[:, span], values[heard, span], out=values[:, span])


def _batches(cell: Cell, task: Task, device: str) -> Iterator[Batch]:
    """A row a node, of the batches of all its workers."""
    samples = task.train.to(torch.device(device))
    streams = [task.indices(worker, cell.workers, cell.batch, cell.seed) for worker in range(cell.workers)]
    while True:
        inputs, targets = samples[torch.cat([*map(next, streams)]).to(device)]
        yield Batch(inputs.unflatten(0, (cell.nodes, -1)), targets.unflatten(0, (cell.nodes, -1)))


def _pieces(nodes: int, samples: int, at_once: int) -> Iterator[tuple[slice, slice, float]]:
    """All samples of all nodes, in pieces of at most so many: rows, samples of each, and their share of a row."""
    together = max(1, at_once // samples)
    for row in range(0, nodes, together):
        for start in range(0, samples, at_once):
            stop = min(start + at_once, samples)
            yield slice(row, row + together), slice(start, stop), (stop - start) / samples


def _loss_of(task: Task, model: nn.Module) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    """The task's loss as a function of the parameters."""
    whole = _Loss(task, model)

    def loss(parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        renamed = {f"model.{name}": parameter for name, parameter in parameters.items()}
        return functional_call(whole, renamed, (inputs, targets))

    return loss


class _Loss(nn.Module):
    """A model and its loss as one module, whose parameters can be replaced for one call."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.task.loss(self.model, Batch(inputs, targets))
