"""Randomness that all workers share, and randomness of a worker's own, from counters alone.

A stream is a 32-bit key; its word i is a hash of key + i. Nothing is drawn in sequence and nothing is saved: a
resumed run, another backend or another worker computes the same words from the same integers. No function here
reads or changes torch's generators.

`shared(seed, step, …)` is the key of a stream that is the same on every worker (rotations, topologies);
`own(seed, step, worker, …)` is one that no other worker has (rounding). They never coincide.
"""

from __future__ import annotations

import hashlib
import struct

import torch

LOW = 0xFFFFFFFF
MULTIPLIERS = (0x7FEB352D, 0x846CA68B)
"""Of Chris Wellons' 32-bit hash "lowbias32", whose outputs change in half their bits for any changed input bit."""


def shared(seed: int, step: int, *where: int) -> int:
    """The key of a stream that every worker has."""
    return _key(b"shared", seed, step, *where)


def own(seed: int, step: int, worker: int, *where: int) -> int:
    """The key of a stream that only `worker` has."""
    return _key(b"own", seed, step, worker, *where)


def words(key: int, count: int, start: int = 0, device: torch.device | str = "cpu") -> torch.Tensor:
    """The stream's words `start` to `start + count - 1`, uniform below 2^32, as int64."""
    word = (torch.arange(start, start + count, device=device) + key) & LOW
    word = ((word ^ (word >> 16)) * MULTIPLIERS[0]) & LOW
    word = ((word ^ (word >> 15)) * MULTIPLIERS[1]) & LOW
    return word ^ (word >> 16)


def signs(key: int, count: int, start: int = 0, device: torch.device | str = "cpu") -> torch.Tensor:
    """Signs `start` to `start + count - 1`: sign i is bit i % 32 of word i // 32, and a set bit is -1."""
    return (1 - 2 * _parts(key, count, start, 1, device)).float()


def uniform(key: int, count: int, start: int = 0, device: torch.device | str = "cpu") -> torch.Tensor:
    """Numbers in (0, 1), centers of 2^16 equal steps: number i is half i % 2 of word i // 2, the low one first."""
    return (_parts(key, count, start, 16, device).float() + 0.5) * 2.0**-16


def _parts(key: int, count: int, start: int, bits: int, device: torch.device | str) -> torch.Tensor:
    """The stream as integers of so many bits, from number `start` on."""
    each = 32 // bits
    first = start // each
    drawn = words(key, -(-(start + count) // each) - first, first, device)
    shifts = torch.arange(0, 32, bits, device=device)
    parts = ((drawn.unsqueeze(1) >> shifts) & ((1 << bits) - 1)).flatten()
    return parts[start - first * each :][:count]


def _key(purpose: bytes, *integers: int) -> int:
    packed = struct.pack(f"<{len(integers)}q", *integers)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=4, person=purpose).digest(), "little")
