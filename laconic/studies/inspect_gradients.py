"""What the gradients of a task look like while it trains: `laconic inspect gradients TASK`.

The task trains in this process alone, as one worker of `laconic train` would without others. At some steps, between
the backward pass and the optimizer's step, the gradient of every parameter is measured (`goodness`). A layer is one
parameter; what is said of it is the median over these steps for β and distances, and the mean for bits.
"""

from __future__ import annotations

import csv
import statistics
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.progress import track
from torch.optim.lr_scheduler import CosineAnnealingLR

from laconic.lab.worker import optimizer_for
from laconic.report.tables import table
from laconic.studies import goodness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from torch import nn

    from laconic.lab.tasks import Task
    from laconic.lab.worker import Settings

LOOKS = 25
"""At how many steps to look where nobody says otherwise: enough for a curve."""
PRINTED = 20
"""Layers that are printed; more would be no table that one reads."""
HEADINGS = {
    "gennorm": "GenNorm",
    "laplace": "Laplace",
    "normal": "Normal",
    "huffman": "Huffman",
    "entropy": "entropy",
}


class Look(NamedTuple):
    """One layer's gradient at one step; `measured` has goodness.MEASURES, or nothing if all of it is zero."""

    layer: str
    coordinates: int
    step: int
    measured: dict[str, float]


class Layer(NamedTuple):
    """One layer over all steps; `measured` has nothing where its gradient was always zero."""

    name: str
    coordinates: int
    measured: dict[str, float]


def watch(settings: Settings, every: int | None = None) -> list[Look]:
    """The gradients at the first step and every N-th from there, else at about LOOKS steps, while the task trains."""
    every = every or max(1, settings.steps // LOOKS)
    return [
        look for step, model in training(settings) if (step - 1) % every == 0 for look in _look(model, step)
    ]


def training(settings: Settings) -> Iterator[tuple[int, nn.Module]]:
    """Trains the task alone; in every step, its number and the model, whose gradients are there."""
    task = settings.load_task()
    model = task.model(settings.seed)
    return ((step, model) for step in train(settings, task, model))


def train(settings: Settings, task: Task, model: nn.Module) -> Iterator[int]:
    """Trains the model alone; in every step, its number, when gradients are there."""
    optimizer = optimizer_for(model, settings)
    schedule = CosineAnnealingLR(optimizer, settings.steps)
    batches = task.batches(0, 1, batch=settings.batch, seed=settings.seed)
    for step in _progress(settings):
        optimizer.zero_grad()
        task.loss(model, next(batches)).backward()
        yield step
        optimizer.step()
        schedule.step()


def summarize(looks: Sequence[Look]) -> list[Layer]:
    """The layers, large ones first."""
    names = dict.fromkeys(look.layer for look in looks)
    layers = [_layer([look for look in looks if look.layer == name]) for name in names]
    return sorted(layers, key=lambda layer: -layer.coordinates)


def write_csv(layers: Sequence[Layer], path: Path) -> Path:
    """All layers are in the file, with all their numbers."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["layer", "coordinates", *goodness.MEASURES])
        writer.writeheader()
        for layer in layers:
            rounded = {name: f"{value:.6g}" for name, value in layer.measured.items()}
            writer.writerow({"layer": layer.name, "coordinates": layer.coordinates, **rounded})
    return path


def text(layers: Sequence[Layer]) -> str:
    """Three tables of the largest layers: the fit, and the bits in each format."""
    shown = layers[:PRINTED]
    fit = {"coordinates": _coordinates, "β": _number("beta", 2)} | {
        HEADINGS[family]: _number(f"w2_{family}", 3) for family in goodness.FAMILIES
    }
    tables = ["β, and the Wasserstein-2 distance of each fit, over σ\n" + table(shown, fit)]
    for form in goodness.FORMATS:
        bits = {HEADINGS[code]: _number(f"{form}_{code}", 3) for code in goodness.CODES}
        tables.append(f"bits per coordinate in {form}, by the code\n" + table(shown, bits))
    left = [f"{len(layers) - PRINTED} smaller layers are in the file:"] * (len(layers) > PRINTED)
    return "\n\n".join([*tables, *left])


def _progress(settings: Settings) -> Iterable[int]:
    """The steps, with a bar on a terminal."""
    console = Console(stderr=True)
    steps = range(1, settings.steps + 1)
    words = f"training {settings.task}"
    return track(steps, words, console=console, transient=True, disable=not console.is_terminal)


def _look(model: nn.Module, step: int) -> list[Look]:
    looks = []
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        try:
            measured = goodness.measure(parameter.grad)
        except ValueError as error:
            raise ValueError(
                f"the gradient of {name} at step {step} is not finite; use a smaller --lr"
            ) from error
        looks.append(Look(name, parameter.numel(), step, measured))
    return looks


def _layer(looks: Sequence[Look]) -> Layer:
    known = [look.measured for look in looks if look.measured]
    measured = {
        name: _middle(name)([numbers[name] for numbers in known]) for name in goodness.MEASURES if known
    }
    return Layer(looks[0].layer, looks[0].coordinates, measured)


def _middle(measure: str) -> Callable[[Sequence[float]], float]:
    """The median of what a few steps may distort, the mean of what adds up on a wire."""
    return statistics.median if measure == "beta" or measure.startswith("w2") else statistics.fmean


def _coordinates(layer: Layer) -> str:
    return f"{layer.coordinates:,}"


def _number(measure: str, digits: int) -> Callable[[Layer], str]:
    return lambda layer: f"{layer.measured[measure]:.{digits}f}" if layer.measured else "–"
