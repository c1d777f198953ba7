"""Random rotations of blocks: signs, then an orthonormal Walsh–Hadamard transform.

After it, a block's coordinates are close to normal whatever they were, so that one grid fits all of them. The
butterflies add in one order, smallest stride first, here and in every kernel: the same inputs give the same bits.
"""

from __future__ import annotations

import math

import torch


def hadamard(rows: torch.Tensor) -> torch.Tensor:
    """H x for every row x, H orthonormal and its own inverse; a row's length is a power of two."""
    blocks, width = rows.shape
    assert width & (width - 1) == 0
    stride = 1
    while stride < width:
        left, right = rows.reshape(blocks, -1, 2, stride).unbind(2)
        rows = torch.stack([left + right, left - right], dim=2).reshape(blocks, width)
        stride *= 2
    return rows * (1 / math.sqrt(width))


def rotate(rows: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    """H D x for every row x, D its signs."""
    return hadamard(rows * signs)


def rotate_back(rotated: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    """The rows that `rotate` took there."""
    return hadamard(rotated) * signs
