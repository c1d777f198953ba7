"""In which order layers and averages leave: the same on all workers, or their messages would not meet.

A bucket's layers leave before that part of it which is averaged, and DDP's buckets have an order. Once two steps had
the same, a layer need not wait for its bucket: it may leave when all that was before it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laconic.layers.catalog import Layer

AVERAGE = None
"""What is averaged of a bucket, in its place among layers."""


class Order:
    """What has left in this step, what did in the step before, and what will, if that is known."""

    def __init__(self) -> None:
        self._left: list[Layer | None] = []
        self._before: list[Layer | None] = []
        self._known: list[Layer | None] = []

    @property
    def known(self) -> bool:
        """Whether layers may leave before their buckets."""
        return bool(self._known)

    def has_left(self, layer: Layer) -> bool:
        """Whether it is on its way, in this step."""
        return layer in self._left

    def upcoming(self) -> Layer | None:
        """The layer that may leave now, if there is one."""
        place = len(self._left)
        return self._known[place] if place < len(self._known) else None

    def leave(self, item: Layer | None) -> None:
        """It is the next to leave."""
        place = len(self._left)
        if place < len(self._known) and self._known[place] != item:
            names = ["an average" if one is AVERAGE else one.name for one in (item, self._known[place])]
            raise RuntimeError(f"DDP's buckets have changed: {names[0]} comes before {names[1]} now")
        self._left.append(item)

    def end_step(self, steady: bool = True) -> None:
        """The next step may have the same order, if it is `steady` and this one had that of the one before."""
        self._known = self._left if steady and self._left == self._before else []
        self._before, self._left = self._left, []
