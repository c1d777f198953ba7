"""Hooks that stay behind: a copy of their module, or one that was saved and loaded, has none that does anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Hook:
    """What a module calls, as long as it is the module that was hooked."""

    def __init__(self, called: Callable[..., Any]) -> None:
        self._called = called

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the hook says."""
        return self._called(*arguments, **named)

    def __reduce__(self) -> tuple[Callable[[], Callable[..., None]], tuple[()]]:
        return _left_behind, ()


def _left_behind() -> Callable[..., None]:
    """What a copy has instead."""
    return nothing


def nothing(*_arguments: Any, **_named: Any) -> None:
    """Is done."""
