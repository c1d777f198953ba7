"""What becomes of gradients between the exchange and the optimizer's step.

A hook before every optimizer's step looks at those that train this model:

    a GradScaler   what is remembered is in its scale, so the engine must know it; and Crossover cannot serve it
    clipping       a direction is no longer one when something has multiplied it, which is said once

Whoever forgets `attach(…, scaler=…)` is served all the same: steps that the scaler skips leave nothing to remember,
and at the first that it takes, before its scale has changed, it is found.
"""

from __future__ import annotations

import math
import sys
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from torch.optim import Optimizer

    from laconic.core.technique import Scaler

EVERY = 100
"""Steps from one look at gradients to the next."""


class Engine(Protocol):
    """What is told."""

    step: int

    @property
    def directs(self) -> bool:
        """Whether results are directions."""

    def scaled(self, scaler: Scaler | None) -> None:
        """Gradients are those of a loss that `scaler` multiplies, if any does, as in the step just exchanged."""


class Watch:
    """Looks at the steps of optimizers whose parameters are `known`, as long as it is there itself."""

    def __init__(self, engine: Engine, known: Callable[[torch.Tensor], bool]) -> None:
        self._engine, self._known = engine, known
        self._scaler: torch.amp.GradScaler | None = None
        self._next = engine.step + 1
        self._said = False
        watch = weakref.ref(self)

        def before(optimizer: Optimizer, _args: Any, _named: Any) -> None:
            if not torch.compiler.is_compiling() and (own := watch()) is not None:
                own._before(optimizer)

        self.stop = weakref.finalize(self, register_optimizer_step_pre_hook(before).remove)

    def _before(self, optimizer: Optimizer) -> None:
        trained = [
            value for group in optimizer.param_groups for value in group["params"] if self._known(value)
        ]
        if not trained:
            return
        scaler = _at_work(sys._getframe())
        if scaler is not self._scaler:
            self._engine.scaled(scaler)
            self._scaler = scaler
        elif self._engine.directs and self._engine.step >= self._next and not self._said:
            self._next = self._engine.step + EVERY
            fused = getattr(optimizer, "grad_scale", None) is not None  # the optimizer itself will divide
            self._look(_length(trained), scaler.get_scale() if scaler is not None and fused else 1.0)

    def _look(self, length: float, expected: float) -> None:
        if length not in (0.0, expected) and math.isfinite(length):
            self._said = True
            warnings.warn(_changed(length / expected), stacklevel=5)  # at the optimizer's step


def _at_work(frame: FrameType | None) -> torch.amp.GradScaler | None:
    """The scaler that is taking this step, if one is: it tells an optimizer nothing of itself."""
    step = torch.amp.GradScaler.step.__code__
    while frame is not None and frame.f_code is not step:
        frame = frame.f_back
    scaler = frame.f_locals["self"] if frame is not None else None
    return scaler if scaler is not None and scaler.is_enabled() else None


def _length(trained: Iterable[torch.Tensor]) -> float:
    """The largest coordinate of the first gradient that is not zero."""
    found = (float(value.grad.abs().max()) for value in trained if value.grad is not None and value.numel())
    return next((length for length in found if length), 0.0)


def _changed(factor: float) -> str:
    return (
        f"a direction's coordinates are -1, 0 or 1, but at the optimizer's step they had been multiplied by "
        f"{factor:.3g}, as by clip_grad_norm_: every step is so much shorter than the learning rate says. Leave out "
        "what multiplies gradients (max_grad_norm=0 in a Trainer), or clip by value, at 1 or more"
    )
