"""Crossover-SGD: gossip of parameters, segment by segment (docs/crossover.md).

There is no all-reduce. Every worker takes its optimizer's step with its own gradients; then, for each segment of its
parameters, it sends the segment to one peer, hears the same segment of another, and takes the mean (topology.py). Who
hears whom is drawn anew for every segment and step, without a word sent about it. A worker sends one model and
receives one, whatever the number of workers, and a slow worker delays those who hear it, and others through them.

    synchronous   x ← ½ (x + heard), all segments in flight at once
    overlap       a mixing travels while the next step is computed, and is added then: x ← x + ½ (heard - sent)
    groups        gradients are averaged inside a group, its first worker gossips for it and tells the others
    codec         what is heard is coded (messages/crossover.py)

Both forms leave the mean of all workers' parameters as it is. With `overlap` what is heard is one step old.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

from laconic.core import checks
from laconic.core.place import Capability
from laconic.core.technique import Scheme, Setting, Technique
from laconic.techniques.dense import Dense


@dataclass(frozen=True)
class Crossover:
    """Every worker mixes its parameters with one peer a segment, after its optimizer's step.

    `groups` is the number of groups that gossip as one, contiguous and of equal size, in which gradients are averaged
    by `inner`; None is a group for each of torchrun's hosts, and without torchrun for each worker. `every` is the
    number of steps from one mixing to the next. `overlap` lets a mixing travel while the next step is computed.
    `momentum` "local" stays at home; "mixed" takes what the optimizer keeps along, for as many bytes again.
    `codec` "int8" sends a byte a parameter.
    """

    segments: int = 16
    groups: int | None = None
    every: int = 1
    overlap: bool = False
    momentum: str = "local"
    codec: str | None = None
    seed: int = 0
    inner: Technique = Dense()

    reads: ClassVar[str] = "parameters"

    def __post_init__(self) -> None:
        checks.count("segments", self.segments)
        checks.count("every", self.every)
        if self.groups is not None:
            checks.count("groups", self.groups)
        checks.flag("overlap", self.overlap)
        checks.choice("momentum", self.momentum, "local", "mixed")
        if self.codec is not None:
            checks.choice("codec", self.codec, "int8")
            if self.momentum == "mixed":
                raise ValueError(
                    "codec='int8' would round small second moments to nothing; use it with momentum='local'"
                )
        checks.seed(self.seed)

    @property
    def needs(self) -> Capability:
        """What the technique inside groups needs."""
        return self.inner.needs

    def bind(self, setting: Setting) -> Scheme:
        """The technique inside groups, of whose workers the setting speaks."""
        if self.inner.reads != "gradients":
            raise ValueError(f"{self.inner!r} cannot serve inside groups; use a technique for gradients")
        return self.inner.bind(setting)

    def nodes(self, workers: int) -> int:
        """How many groups there are among so many workers."""
        if self.groups is None:
            hosts, left = divmod(workers, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
            return workers if left else hosts
        if workers % self.groups:
            raise ValueError(f"{workers} workers cannot be {self.groups} groups of equal size")
        return self.groups
