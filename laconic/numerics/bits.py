"""Small integers packed into bytes: value i takes bits i·width to (i+1)·width - 1, the lowest first."""

from __future__ import annotations

import torch


def pack(values: torch.Tensor, width: int) -> torch.Tensor:
    """Each row of integers below 2^width as bytes; a last byte that is not full ends in zeros."""
    rows = len(values)
    bits = (values.unsqueeze(-1) >> torch.arange(width, device=values.device)) & 1
    bits = torch.nn.functional.pad(bits.view(rows, -1), (0, -values.shape[1] * width % 8))
    weights = 1 << torch.arange(8, device=values.device)
    return (bits.view(rows, -1, 8) * weights).sum(-1).to(torch.uint8)


def unpack(packed: torch.Tensor, width: int, count: int) -> torch.Tensor:
    """The first `count` integers of each row, as int64."""
    bits = (packed.long().unsqueeze(-1) >> torch.arange(8, device=packed.device)) & 1
    bits = bits.view(len(packed), -1)[:, : count * width].view(len(packed), count, width)
    return (bits << torch.arange(width, device=packed.device)).sum(-1)
