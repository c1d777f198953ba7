"""Randomness that all workers share, and randomness of a worker's own, from counters alone.

A stream is a 32-bit key; its word i is a hash of key + i. Nothing is drawn in sequence and nothing is saved: a
resumed run, another backend or another worker computes the same words from the same integers. No function here
reads or changes torch's generators.

`shared(seed, step, …)` is the key of a stream that is the same on every worker (rotations, topologies);
`own(seed, step, worker, …)` is one that no other worker has (rounding). They never coincide. `branch` splits a
stream into as many as are needed, one for every parameter, say.

Keys and starts may be tensors: then every one of them gives a row.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import TypeAlias

import torch

Whole: TypeAlias = "int | torch.Tensor"

LOW = 0xFFFFFFFF
MULTIPLIERS = (0x7FEB352D, 0x846CA68B)
"""Of Chris Wellons' 32-bit hash "lowbias32", whose outputs change in half their bits for any changed input bit."""


def shared(seed: int, step: int, *where: int) -> int:
    """The key of a stream that every worker has."""
    return _key(b"shared", seed, step, *where)


def own(seed: int, step: int, worker: int, *where: int) -> int:
    """The key of a stream that only `worker` has."""
    return _key(b"own", seed, step, worker, *where)


def number(name: str) -> int:
    """A number below 2^32 for a parameter, to branch by."""
    return zlib.crc32(name.encode())


def branch(key: int, numbers: torch.Tensor) -> torch.Tensor:
    """The keys of streams that are the key's own, one for every number below 2^32."""
    return _hash(numbers ^ key)


def words(key: Whole, count: int, start: Whole = 0, device: torch.device | str = "cpu") -> torch.Tensor:
    """The stream's words `start` to `start + count - 1`, uniform below 2^32, as int64."""
    first = torch.as_tensor(start, device=device) + torch.as_tensor(key, device=device)
    return _hash((first.unsqueeze(-1) + torch.arange(count, device=device)) & LOW)


def signs(key: Whole, count: int, start: Whole = 0, device: torch.device | str = "cpu") -> torch.Tensor:
    """Signs `start` to `start + count - 1`: sign i is bit i % 32 of word i // 32, and a set bit is -1."""
    return 1 - 2 * _parts(key, count, start, 1, device)


def halves(key: Whole, count: int, start: Whole = 0, device: torch.device | str = "cpu") -> torch.Tensor:
    """Integers below 2^16: number i is half i % 2 of word i // 2, the low one first."""
    return _parts(key, count, start, 16, device)


def _parts(key: Whole, count: int, start: Whole, bits: int, device: torch.device | str) -> torch.Tensor:
    """The stream as integers of so many bits, from number `start` on."""
    each = 32 // bits
    keys, starts = (torch.as_tensor(value, device=device) for value in (key, start))
    keys, starts = torch.broadcast_tensors(keys, starts)
    drawn = words(keys, (count - 1) // each + 2, starts // each, device)
    shifts = torch.arange(0, 32, bits, device=device)
    parts = ((drawn.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)).flatten(-2)
    return parts.take_along_dim((starts % each).unsqueeze(-1) + torch.arange(count, device=device), -1)


def _hash(word: torch.Tensor) -> torch.Tensor:
    word = ((word ^ (word >> 16)) * MULTIPLIERS[0]) & LOW
    word = ((word ^ (word >> 15)) * MULTIPLIERS[1]) & LOW
    return word ^ (word >> 16)


def _key(purpose: bytes, *integers: int) -> int:
    packed = struct.pack(f"<{len(integers)}q", *integers)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=4, person=purpose).digest(), "little")
