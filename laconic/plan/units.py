"""Numbers with units, as people type them: 350M parameters, 250ms."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}


def parse_count(name: str, text: str) -> int:
    """The whole number that `text` stands for, at least 1."""
    value = _value(text, COUNTS)
    if value is None or round(value) < 1:
        raise ValueError(f"{name} is {text!r}; use a number above zero, such as 350M or 1.3B")
    return round(value)


def parse_seconds(name: str, text: str) -> float:
    """The seconds that `text` stands for, not negative."""
    value = _value(text, SECONDS)
    if value is None:
        raise ValueError(f"{name} is {text!r}; use a time that is not negative, such as 0.25s, 250ms or 50us")
    return value


def _value(text: str, units: Mapping[str, float]) -> float | None:
    """The number times its unit, or None if it is none."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)\s*([a-zµ]*)", text.strip().lower())
    if match is None or match[2] not in units:
        return None
    value = float(match[1]) * units[match[2]]
    return value if math.isfinite(value) else None


def bits_per_second(rate: float, digits: int = 3) -> str:
    """The rate in words."""
    for size, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if rate >= size:
            return f"{rate / size:.{digits}g} {unit}"
    return f"{rate:.{digits}g} bit/s"


def size(count: float) -> str:
    """Bytes in words."""
    for least, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= least:
            return f"{count / least:.3g} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """A time in words."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
