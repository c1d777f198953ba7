"""The Walsh–Hadamard transform of blocks.

With random signs before it, a block's coordinates come out close to normal whatever they were, so that one grid
fits all of them. The butterflies add in one order, smallest stride first, here and in every kernel: the same
inputs give the same bits. Of integers the sums are exact.
"""

from __future__ import annotations

import torch


def hadamard(rows: torch.Tensor) -> torch.Tensor:
    """√d H x for every row x of d values, H orthonormal and its own inverse; d is a power of two."""
    blocks, width = rows.shape
    assert width & (width - 1) == 0
    stride = 1
    while stride < width:
        left, right = rows.reshape(blocks, -1, 2, stride).unbind(2)
        rows = torch.stack([left + right, left - right], dim=2).reshape(blocks, width)
        stride *= 2
    return rows
