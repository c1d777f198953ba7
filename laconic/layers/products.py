"""Gradients as products of rows, multiplied where they are needed and once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from laconic.kernels import plain

FEW = 64
"""Rows up to which writing the product takes longer than multiplying."""


class Product(NamedTuple):
    """ΔᵀA, of a row a sample each; or a vector that is there already, as the one row of `deltas`."""

    deltas: Tensor
    inputs: Tensor | None = None

    @classmethod
    def of_bias(cls, deltas: Tensor) -> Product:
        """The sum of rows."""
        return cls(deltas.sum(0)[None])

    def into(self, view: Tensor) -> None:
        """`view` is the product."""
        if self.inputs is None:
            view.copy_(self.deltas.view_as(view))
            return
        if not view.is_contiguous():
            view.copy_((self.deltas.T @ self.inputs).view_as(view))
            return
        matrix = view.view(self.deltas.shape[1], self.inputs.shape[1])
        if matrix.dtype != self.deltas.dtype:
            matrix.copy_(self.deltas.T @ self.inputs)
        elif len(self.deltas) <= FEW and matrix.dtype == torch.float32:
            plain.product(self.deltas.contiguous(), self.inputs.contiguous(), matrix)
        else:
            torch.mm(self.deltas.T, self.inputs, out=matrix)

    def finite(self, dtype: torch.dtype) -> bool:
        """Whether all of it is, in that type. Rows are multiplied only if they are large enough for doubt."""
        if self.inputs is None:
            return plain.all_finite(self.deltas.to(dtype))
        bound = len(self.deltas) * _largest(self.deltas) * _largest(self.inputs)
        return bound <= torch.finfo(dtype).max or plain.all_finite((self.deltas.T @ self.inputs).to(dtype))


def _largest(rows: Tensor) -> float:
    """The largest magnitude; not a number, if one is not."""
    return float(torch.stack(torch.aminmax(rows)).abs().max()) if rows.numel() else 0.0
