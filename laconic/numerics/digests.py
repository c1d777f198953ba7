"""64 bits by which contents are told apart.

On the CPU, XXH3-64 (xxhash), keyed. On a device, where it must be made in parallel: with w_i the words of eight
bytes, zeros appended, and m a mixing of 64 bits that can be undone (Stafford's thirteenth, as in SplitMix64),

    m(number of bytes + Σ m(w_i + m(i + key)))  mod 2^64
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

BITS = 64
_MASK = (1 << BITS) - 1
_FIRST, _SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # 0xBF58476D1CE4E5B9 and 0x94D049BB133111EB
_PART = 1 << 22
"""Words that are read at once, so that little room is needed."""


def digest(content: bytes | NDArray[Any], key: int = 0) -> int:
    """A number that any change of the content, or of the key, changes but once in 2^64."""
    # Arrays have buffers, though their types do not say so.
    return xxhash.xxh3_64_intdigest(content, key)  # type: ignore[arg-type]


def of_tensors(tensors: Iterable[torch.Tensor]) -> int:
    """The digest of the tensors' values, one after the other, where they lie."""
    number: int | torch.Tensor = 0
    for tensor in tensors:
        values = tensor.detach().contiguous().flatten().view(torch.uint8)
        on_cpu = values.device.type == "cpu"
        number = digest(values.numpy(), int(number)) if on_cpu else in_parallel(values, number)
    return int(number) & _MASK  # a device is asked once


def in_parallel(values: torch.Tensor, key: int | torch.Tensor) -> torch.Tensor:
    """The digest of some bytes, as an integer with a sign, made by the device that they are on."""
    key = torch.as_tensor(key, device=values.device)
    total = torch.full((), len(values), dtype=torch.int64, device=values.device)
    for start in range(0, len(values), 8 * _PART):
        part = values[start : start + 8 * _PART]
        words = torch.nn.functional.pad(part, (0, -len(part) % 8)).view(torch.int64)
        places = torch.arange(start // 8, start // 8 + len(words), device=values.device)
        total += _mixed(words + _mixed(places + key)).sum()
    return _mixed(total)


def _mixed(words: torch.Tensor) -> torch.Tensor:
    words = (words ^ _shifted(words, 30)) * _FIRST
    words = (words ^ _shifted(words, 27)) * _SECOND
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """To the right, with zeros from the left."""
    return (words >> bits) & ((1 << BITS - bits) - 1)
