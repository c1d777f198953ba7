"""What rank the gradients of a task have while it trains: `laconic inspect rank TASK`.

The task trains in this process alone, as one worker of `laconic train` would without others. At some steps, between
the backward pass and the optimizer's step, every linear layer and convolution says what it was given and what came
back (`taps`), whose product is its gradient, and so the gradient's singular values σ₁ ≥ σ₂ ≥ … (`lowrank`). Of these:

    rank       how many of them have 95 % of the energy, Σσ²
    above_1    how many are above 1 % of σ₁; above_10, above 10 %
    kept_1     the share of the energy that the best factors of rank 1 keep; kept_2, kept_4 and kept_8
    sigma_1    σ₁, and so on to sigma_8

What is said of a layer in the table is the median over steps.
"""

from __future__ import annotations

import csv
import statistics
from typing import TYPE_CHECKING, NamedTuple

import torch

from laconic.layers import catalog
from laconic.layers.catalog import Layer
from laconic.layers.taps import Taps
from laconic.numerics import lowrank
from laconic.report.tables import table
from laconic.studies.inspect_gradients import LOOKS, train

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from laconic.lab.worker import Settings
    from laconic.layers.taps import Rows

SHARE = 0.95
"""Of the energy that the rank is to have."""
FRACTIONS = {"above_1": 0.01, "above_10": 0.1}
KEPT = (1, 2, 4, 8)
TOP = 8
MEASURES = (
    "rank",
    *FRACTIONS,
    *(f"kept_{rank}" for rank in KEPT),
    *(f"sigma_{place}" for place in range(1, TOP + 1)),
)


class Look(NamedTuple):
    """One layer at one step; `measured` has MEASURES, less those that a gradient of few rows or none lacks."""

    layer: Layer
    step: int
    rows: int
    measured: dict[str, float]


Looks = dict[Layer, list[Look]]


def watch(settings: Settings, every: int | None = None) -> Looks:
    """All layers, in the model's order, at the first step and every N-th from there, else at about LOOKS steps."""
    every = every or max(1, settings.steps // LOOKS)
    task = settings.load_task()
    model = task.model(settings.seed)
    found = catalog.find(model, dict(model.named_parameters()))
    taps = Taps({layer.name: modules for layer, modules in found.items()})
    looks: Looks = {layer: [] for layer in found}
    for step in train(settings, task, model):
        if (step - 1) % every == 0:
            for layer in found:
                looks[layer].append(_look(layer, step, taps.take(layer.name)))
        taps.drop()
    return looks


def measure(sigma: torch.Tensor) -> dict[str, float]:
    """What MEASURES say of these singular values; of zero, there is no share."""
    kept = KEPT if bool(sigma.any()) else ()
    return {
        "rank": lowrank.rank_by_energy(sigma, SHARE),
        **{name: lowrank.effective_rank(sigma, fraction) for name, fraction in FRACTIONS.items()},
        **{f"kept_{rank}": lowrank.kept_energy(sigma, rank) for rank in kept},
        **{f"sigma_{place}": value for place, value in enumerate(sigma[:TOP].tolist(), 1)},
    }


def write_csv(looks: Looks, path: Path) -> Path:
    """A line for every layer and step is in the file, with all numbers."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["layer", "outputs", "inputs", "step", "rows", *MEASURES])
        writer.writeheader()
        for layer, step, rows, measured in _all(looks):
            where = {"layer": layer.name, "outputs": layer.outputs, "inputs": layer.inputs}
            rounded = {name: f"{value:.6g}" for name, value in measured.items()}
            writer.writerow({**where, "step": step, "rows": rows, **rounded})
    return path


def text(looks: Looks) -> str:
    """Two tables: the rank over training, and what factors of a few ranks keep."""
    ranks: dict[str, Callable[[Layer], str]] = {
        "weight": shape,
        "rows": lambda layer: f"{_median(looks[layer], lambda look: look.rows):,g}",
        **{name: _ranks(looks, part) for part, name in enumerate(("first third", "middle", "last third"))},
        "median": _number(looks, "rank"),
        "σ > 10 %": _number(looks, "above_10"),
        "σ > 1 %": _number(looks, "above_1"),
    }
    kept = {f"rank {rank}": _percent(looks, f"kept_{rank}") for rank in KEPT}
    return "\n\n".join(
        [
            f"the rank that has {100 * SHARE:g} % of the energy, and how many σ are above a share of the first\n"
            + table(list(looks), ranks),
            "the share of the energy, in percent, that the best factors of a rank keep\n"
            + table(list(looks), kept),
        ]
    )


def shape(layer: Layer) -> str:
    """The weight's, as a matrix."""
    return f"{layer.outputs}×{layer.inputs}"


def _look(layer: Layer, step: int, rows: Rows | None) -> Look:
    if rows is None:
        return Look(layer, step, 0, measure(torch.zeros(0)))
    sigma = lowrank.singular_values(rows.deltas, rows.inputs)
    if not bool(sigma.isfinite().all()):
        raise ValueError(f"the gradient of {layer.weight} at step {step} is not finite; use a smaller --lr")
    return Look(layer, step, len(rows.deltas), measure(sigma))


def _all(looks: Looks) -> Iterable[Look]:
    return (look for every in looks.values() for look in every)


def _ranks(looks: Looks, part: int) -> Callable[[Layer], str]:
    """The median rank in one third of the looks."""

    def write(layer: Layer) -> str:
        every = looks[layer]
        third = every[part * len(every) // 3 : max(1, (part + 1) * len(every) // 3)]
        return f"{_median(third, lambda look: look.measured['rank']):g}"

    return write


def _number(looks: Looks, measure: str) -> Callable[[Layer], str]:
    return lambda layer: f"{_median(looks[layer], lambda look: look.measured[measure]):g}"


def _percent(looks: Looks, measure: str) -> Callable[[Layer], str]:
    """The median of a share, over the steps that have a gradient."""

    def write(layer: Layer) -> str:
        known = [look for look in looks[layer] if measure in look.measured]
        return f"{100 * _median(known, lambda look: look.measured[measure]):.1f}" if known else "–"

    return write


def _median(looks: Sequence[Look], number: Callable[[Look], float]) -> float:
    return statistics.median(number(look) for look in looks)
