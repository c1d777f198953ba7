"""Values out of a file that others may have written, as the types that a dataclass says its fields have.

Of types there are text, numbers, truth, nothing, and lists and objects of them; a rule may be added to one.
"""

from __future__ import annotations

import functools
import math
import reprlib
import types
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Item = TypeVar("Item")
LARGEST = 1e100
"""Of finite numbers: far more than float32 can have, and what can be squared and summed."""


class Rule(NamedTuple):
    """What else must hold of a value, and what a value of which it holds is called."""

    holds: Callable[[Any], bool]
    name: str


Count = Annotated[int, Rule(lambda value: 0 <= value < 1 << 63, "a count")]
Ordinal = Annotated[int, Rule(lambda value: 0 < value < 1 << 63, "a count from 1 on")]
Amount = Annotated[float, Rule(lambda value: 0 <= value < math.inf, "a number from 0 on")]
Time = Annotated[str, Rule(lambda value: _is_time(value), "a time with its zone")]
Shape = Annotated[list[Count], Rule(lambda value: len(value) == 2, "two counts")]

PLAIN: Mapping[Any, Rule] = {
    Any: Rule(lambda _: True, "anything"),
    str: Rule(lambda value: isinstance(value, str), "text"),
    bool: Rule(lambda value: isinstance(value, bool), "true or false"),
    int: Rule(lambda value: type(value) is int, "a whole number"),
    float: Rule(
        lambda value: type(value) in (int, float) and not LARGEST < abs(value) < math.inf, "a number"
    ),
    types.NoneType: Rule(lambda value: value is None, "null"),
}


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def filled(kind: type[Item], line: Mapping[str, Any]) -> Item:
    """The line as a value of this dataclass; what the dataclass does not know is left out.

    TypeError where something is missing, ValueError where something is of another type.
    """
    types_of = _types_of(kind)  # type: ignore[arg-type]  # a class can be hashed
    known = {name: line[name] for name in types_of if name in line}
    for name, value in known.items():
        if not types_of[name].holds(value):
            raise ValueError(f"has {name} {reprlib.repr(value)}, which is not {types_of[name].name}")
    return kind(**known)


@functools.cache
def _types_of(kind: type) -> dict[str, Rule]:
    return {name: _rule(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}


def _rule(hint: Any) -> Rule:
    """What holds of values of this type."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if origin is Annotated:
        plain, more = _rule(inner[0]), inner[1]
        return Rule(lambda value: plain.holds(value) and more.holds(value), more.name)
    if origin in (Union, types.UnionType):
        options = [_rule(option) for option in inner]
        either = " or ".join(option.name for option in options)
        return Rule(lambda value: any(option.holds(value) for option in options), either)
    each = _rule(inner[-1])
    if origin is list:
        return Rule(
            lambda value: isinstance(value, list) and all(map(each.holds, value)), f"a list, each {each.name}"
        )
    assert origin is dict
    return Rule(
        lambda value: isinstance(value, dict) and all(map(each.holds, value.values())),
        f"an object, each {each.name}",
    )
