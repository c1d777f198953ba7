"""What there is to train: a model, its loss, its batches and its evaluation, with defaults that train well.

* digits: a perceptron on 8×8 digits, small (seconds) or wide (2.2 M parameters: little to compute, much to send).
* fashion: a convolutional network on Fashion-MNIST, of 3.8 M parameters (minutes) or small (54 k).
* text: a byte-level transformer on the Python standard library's source, in three sizes.

A task gives the same batches for the same seed, worker, number of workers and split, whatever else differs
between two runs: techniques can be compared step by step. The global generator is never touched.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from laconic.lab import datasets
from laconic.lab.datasets import Batch
from laconic.lab.splits import IID, Split, draws, parse_split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from laconic.lab.datasets import Samples

__all__ = ["IID", "NAMES", "Batch", "Defaults", "Split", "Task", "load", "parse_split", "rows"]

NAMES = ("digits", "fashion", "text")
_EVALUATED_AT_ONCE = 128
_PERCEPTRONS = {  # widths of the two hidden layers
    "default": (128, 64),
    "wide": (2048, 1024),
}
_CONVOLUTIONS = {  # channels of the two convolutions, widths of the two hidden layers
    "small": (8, 16, 64, 32),
    "default": (32, 64, 1024, 512),
}
_TRANSFORMERS = {  # width, depth, heads, context
    "small": (64, 4, 4, 64),
    "default": (256, 4, 4, 128),
    "large": (384, 6, 6, 128),
}
# the smallest first
_SIZES = {"digits": tuple(_PERCEPTRONS), "fashion": tuple(_CONVOLUTIONS), "text": tuple(_TRANSFORMERS)}


def rows(task: str, size: str = "default") -> int:
    """How many rows a linear layer is given for one sample: a text's positions."""
    return _TRANSFORMERS[size][-1] if task == "text" else 1


@dataclass(frozen=True)
class Defaults:
    """How a task trains well with four workers; `batch` is each worker's."""

    steps: int
    batch: int
    lr: float
    momentum: float
    optimizer: Literal["sgd", "adam"]
    eval_every: int


@dataclass(frozen=True, eq=False)
class Task:
    """One thing to train; `load` makes it."""

    name: str
    metric: Literal["accuracy", "loss"]
    defaults: Defaults
    train: Samples = field(repr=False)
    held_out: Samples = field(repr=False)
    build: Callable[[], nn.Module] = field(repr=False)

    @property
    def higher_is_better(self) -> bool:
        """True for accuracy, a share from 0 to 1; False for loss, in nats per answer (for text, per byte)."""
        return self.metric == "accuracy"

    def model(self, seed: int) -> nn.Module:
        """A new model whose parameters depend on `seed` alone."""
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed GPUs as well
            return self.build()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean cross-entropy of the batch, on the model's device."""
        inputs, targets = batch.to(_device(model))
        return functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())

    def batches(
        self, worker: int, workers: int, *, batch: int, seed: int, split: Split = IID()
    ) -> Iterator[Batch]:
        """Batches without end: the worker's shard in a new order each time round, wrapping within a batch."""
        return (self.train[index] for index in self.indices(worker, workers, batch, seed, split))

    def indices(
        self, worker: int, workers: int, batch: int, seed: int, split: Split = IID()
    ) -> Iterator[Tensor]:
        """Which of the training samples are in these batches."""
        return map(torch.from_numpy, draws(split, self._labels(split), worker, workers, batch, seed))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The loss on the held-out samples, and for a classification the accuracy; the model is as it was."""
        parts = torch.arange(len(self.held_out)).split(_EVALUATED_AT_ONCE)
        with _evaluating(model):
            sums = torch.stack([_sums(model, self.held_out[part]) for part in parts]).sum(0)
        loss, accuracy = (sums[:2] / sums[2]).tolist()
        return {"loss": loss, "accuracy": accuracy} if self.metric == "accuracy" else {"loss": loss}

    def _labels(self, split: Split) -> NDArray[np.int64]:
        """The training samples' labels, all 0 where samples have none and the split needs none."""
        if self.train.labels is not None:
            return self.train.labels.numpy()
        if split != IID():
            raise ValueError(f"task {self.name} has no labels for split {split} to divide by; use split iid")
        return np.zeros(len(self.train), dtype=np.int64)


def load(name: str, *, data: Path | None = None, size: str = "default") -> Task:
    """The task of that name; `data` is the directory of fashion's or text's files, `size` the model's."""
    _check_choice("task", name, NAMES)
    _check_choice(f"{name} size", size, _SIZES[name])
    if name == "fashion":
        return _fashion(data, size)
    if name == "text":
        return _text(data, size)
    if data is not None:
        raise ValueError(f"task {name} has its own data and would not read {data}; leave out --data")
    return _digits(size)


def smallest(name: str) -> str:
    """The size of the task's model with the fewest parameters."""
    _check_choice("task", name, NAMES)
    return _SIZES[name][0]


def _digits(size: str) -> Task:
    steps, lr = (300, 0.1) if size == "default" else (60, 0.2)
    defaults = Defaults(steps, batch=32, lr=lr, momentum=0.9, optimizer="sgd", eval_every=steps // 15)
    build = partial(_perceptron, *_PERCEPTRONS[size])
    return Task("digits", "accuracy", defaults, *datasets.digits(), build=build)


def _fashion(data: Path | None, size: str) -> Task:
    defaults = Defaults(steps=800, batch=32, lr=0.05, momentum=0.9, optimizer="sgd", eval_every=50)
    build = partial(_convolutional, *_CONVOLUTIONS[size])
    return Task("fashion", "accuracy", defaults, *datasets.fashion(data), build=build)


def _text(data: Path | None, size: str) -> Task:
    width, depth, heads, context = _TRANSFORMERS[size]
    defaults = Defaults(steps=400, batch=4, lr=1e-3, momentum=0.9, optimizer="adam", eval_every=50)
    build = partial(_Transformer, width, depth, heads, context)
    return Task("text", "loss", defaults, *datasets.source_text(data, context), build=build)


def _perceptron(first: int, second: int) -> nn.Module:
    return nn.Sequential(
        *[nn.Linear(64, first), nn.ReLU()],
        *[nn.Linear(first, second), nn.ReLU()],
        nn.Linear(second, 10),
    )


def _convolutional(channels: int, more_channels: int, first: int, second: int) -> nn.Module:
    return nn.Sequential(
        *[nn.Conv2d(1, channels, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)],
        *[nn.Conv2d(channels, more_channels, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)],
        *[nn.Flatten(), nn.Linear(more_channels * 7 * 7, first), nn.ReLU()],
        *[nn.Linear(first, second), nn.ReLU()],
        nn.Linear(second, 10),
    )


class _Transformer(nn.Module):
    """Bytes [B, T] to the next bytes' logits [B, T, 256], with T up to the context."""

    def __init__(self, width: int, depth: int, heads: int, context: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.positions = nn.Embedding.from_pretrained(_waves(context, width), freeze=False)
        self.blocks = nn.Sequential(*[_Block(width, heads) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256))

    def forward(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        return self.head(self.blocks(self.bytes(text) + self.positions(places)))


def _waves(context: int, width: int) -> Tensor:
    """Where positions start, [context, width]: from noise, 2.1 nats takes 300 steps, from waves 200."""
    angles = torch.arange(context)[:, None] * 1e-4 ** (torch.arange(0, width, 2) / width)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class _Block(nn.Module):
    """Attention to earlier bytes, then a perceptron, each after a norm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3 * width))
        self.output = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.query_key_value(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(seen.transpose(1, 2).flatten(2))
        return x + self.perceptron(x)


def _sums(model: nn.Module, batch: Batch) -> Tensor:
    """The summed loss, the right answers and all answers."""
    inputs, targets = batch.to(_device(model))
    logits, answers = model(inputs).flatten(0, -2).double(), targets.flatten()
    loss = functional.cross_entropy(logits, answers, reduction="sum")
    right = (logits.argmax(-1) == answers).sum()
    return torch.stack([loss, right, torch.full_like(loss, len(answers))]).cpu()


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model neither trains nor records gradients inside; each module's mode is restored after."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    """`value` is one of `choices`, or a ValueError gives the nearest and all of them."""
    if value not in choices:
        [near] = get_close_matches(value, choices, n=1, cutoff=0)
        raise ValueError(f"unknown {what} {value!r}, nearest to {near!r}; choose from {', '.join(choices)}")
