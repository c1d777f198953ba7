"""64 bits by which contents are told apart: the low half of XXH3-128 (xxhash), keyed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    from numpy.typing import NDArray

BITS = 64
_MASK = (1 << BITS) - 1


def digest(content: bytes | NDArray[Any], key: int = 0) -> int:
    """A number that any change of the content, or of the key, changes but once in 2^64."""
    # 64 bits of it take longer to make than 128. Arrays have buffers, though their types do not say so.
    return xxhash.xxh3_128_intdigest(content, seed=key) & _MASK  # type: ignore[arg-type]
