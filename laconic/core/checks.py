"""Checks on what users hand to techniques: each holds, or is an error that says what to use instead."""

from __future__ import annotations


def number(name: str, value: float) -> float:
    """The value, which is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}; use a number")
    return value


def integer(name: str, value: int | None) -> None:
    """The value is an integer, if it is given."""
    if isinstance(value, bool) or not isinstance(value, int | None):
        raise TypeError(f"{name} is {value!r}; use an integer")


def count(name: str, value: int) -> None:
    """The value is an integer above zero."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; use an integer, 1 or more")


def flag(name: str, value: bool) -> None:
    """The value is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; use True or False")


def choice(name: str, value: str, *known: str) -> None:
    """The value is one of those known."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}; use {' or '.join(repr(one) for one in known)}")


def names(name: str, value: tuple[str, ...]) -> None:
    """The value is a tuple of beginnings of names."""
    if isinstance(value, str) or not all(isinstance(start, str) and start for start in value):
        raise TypeError(f"{name} is {value!r}; use a tuple of beginnings of names, such as ('encoder.',)")


def seed(value: int) -> None:
    """The value can be a seed."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise ValueError(f"seed is {value!r}; use an integer of 64 bits")
