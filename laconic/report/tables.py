"""Tables as text: a line a thing, its name on the left and numbers right-aligned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Named(Protocol):
    """What may have a line in a table."""

    @property
    def name(self) -> str:
        """What the line begins with."""


Line = TypeVar("Line", bound=Named)


def table(layers: Sequence[Line], columns: dict[str, Callable[[Line], str]], heading: str = "layer") -> str:
    """One line a layer, its name on the left and numbers right-aligned."""
    rows = [
        [heading, *columns],
        *([layer.name, *(write(layer) for write in columns.values())] for layer in layers),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_line(row, widths) for row in rows)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    numbers = (f"{cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True))
    return "  ".join([f"{cells[0]:<{widths[0]}}", *numbers])
