"""Tensors as one vector, read and changed where they lie, span by span."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class FlatView:
    """The numbers of `tensors`, in order; `settle` must follow changes, for those that do not lie in one run."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        given = [tensor.detach() for tensor in tensors]
        self._flats = [tensor.flatten() for tensor in given]  # a view of whatever is contiguous
        self._copies = [
            (tensor, flat)
            for tensor, flat in zip(given, self._flats, strict=True)
            if not tensor.is_contiguous()
        ]
        self._starts = [0, *accumulate(map(len, self._flats))]

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def device(self) -> torch.device:
        """Where the numbers lie."""
        return self._flats[0].device

    def pieces(self, span: slice) -> Iterator[tuple[slice, torch.Tensor]]:
        """The parts of tensors that the span covers, each with its place in the span; beyond the end is nothing."""
        number = bisect_right(self._starts, span.start) - 1
        at, stop = span.start, min(span.stop, len(self))
        while at < stop:
            start, end = self._starts[number], min(self._starts[number + 1], stop)
            yield slice(at - span.start, end - span.start), self._flats[number][at - start : end - start]
            at, number = end, number + 1

    def read(self, span: slice, out: torch.Tensor) -> torch.Tensor:
        """`out`, which has the span's numbers, and zeros beyond the vector's end."""
        for place, piece in self.pieces(span):
            out[place].copy_(piece)
        out[max(len(self) - span.start, 0) :].zero_()
        return out

    def write(self, span: slice, numbers: torch.Tensor) -> None:
        """The span has these numbers."""
        for place, piece in self.pieces(span):
            piece.copy_(numbers[place])

    def add(self, span: slice, change: torch.Tensor) -> None:
        """The span's numbers have changed by these."""
        for place, piece in self.pieces(span):
            piece += change[place]

    def settle(self) -> None:
        """All tensors have what the vector has."""
        for tensor, flat in self._copies:
            tensor.copy_(flat.view_as(tensor))
