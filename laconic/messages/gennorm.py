"""Messages of levels: what they say of each part besides, and the mean of several.

A part is a run of coordinates with a scale and a code of its own. Behind the head that all coded messages have
(kernels/coding) there are, for each part in order, five bytes:

    beta          one byte, and
    alpha         two, the lowest first: a generalized normal (generalized_normal.py), from which the scale comes
    prediction    two, the lowest first: how often each level is to be expected (level_codes.py), for the code

and behind them the levels of all parts. One that is all zero has α = 0 and no levels.
"""
# ruff: noqa: A002 (a format is the field's word)

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.kernels import coding
from laconic.kernels import gennorm as kernels
from laconic.numerics import ans, generalized_normal, level_codes
from laconic.numerics.damage import DamagedMessage
from laconic.numerics.minifloat import FORMATS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laconic.numerics.minifloat import Format

Shapes = NDArray[np.int64]
"""A row for every part: β's and α's integers."""

SIDE = np.dtype([("beta", "u1"), ("alpha", "<u2"), ("prediction", "<u2")])


@dataclass(frozen=True)
class Leveling:
    """How values become levels, and levels messages; `factor` is a scale that all parts have, if not None."""

    format: str
    coder: str
    factor: float | None = None

    @property
    def minifloat(self) -> Format:
        """The format itself."""
        return FORMATS[self.format]

    def longest(self, parts: int, numel: int) -> int:
        """The bytes of a message about so many parts and coordinates, at most."""
        return coding.HEAD + parts * SIDE.itemsize + coding.raw_bytes(numel, kernels.width(self.minifloat))

    def scales(self, shapes: Shapes) -> torch.Tensor:
        """For every part the factor from values to levels and the one back, both 0 if it is all zero."""
        scales = generalized_normal.scales(shapes, self.minifloat)
        if self.factor is not None:
            scales[:] = self.factor
        pairs = np.stack([scales, np.float32(1) / scales], axis=-1) * (shapes[:, 1:] > 0)
        return torch.from_numpy(pairs.astype(np.float32))

    def seal(
        self, symbols: torch.Tensor, counts: torch.Tensor, sizes: torch.Tensor, shapes: Shapes
    ) -> torch.Tensor:
        """The message about parts of these sizes, whose levels are `symbols` and as frequent as `counts` say."""
        minifloat, spoken = self.minifloat, shapes[:, 1] > 0
        predictions = level_codes.fit(counts.numpy()[:, : len(minifloat.levels)], minifloat)
        side = np.zeros(len(shapes), SIDE)
        side["beta"], side["alpha"] = shapes.T
        side["prediction"] = level_codes.pack(predictions) * spoken
        which, books = self._books(side["prediction"][spoken])
        offset, width = coding.HEAD + side.nbytes, kernels.width(minifloat)
        message = torch.empty(coding.room(offset, len(symbols), width), dtype=torch.uint8)
        message[coding.HEAD : offset] = torch.from_numpy(side.view(np.uint8))
        parts = torch.stack([sizes[torch.from_numpy(spoken)], which], 1)
        return message[: coding.seal(symbols, parts, books, width, offset, message)]

    def average(self, messages: Sequence[torch.Tensor], chart: torch.Tensor, out: torch.Tensor) -> bool:
        """Whether no message is lost; if so, the parts of `out` are the mean of what they say.

        A damaged message is a ValueError that begins with the number of the message.
        """
        sides = [_side(message, len(chart), number) for number, message in enumerate(messages)]
        if any(side is None for side in sides):
            return False
        told = np.stack([side for side in sides if side is not None])
        spoken = torch.from_numpy(told["alpha"] > 0)
        which, books = self._books(told["prediction"].reshape(-1))
        parts = torch.cat(
            [chart.expand(len(told), -1, -1), torch.where(spoken, which.view(spoken.shape), -1)[:, :, None]],
            2,
        )
        shapes = np.stack([told["beta"], told["alpha"]], axis=-1).astype(np.int64).reshape(-1, 2)
        inverses = self.scales(shapes)[:, 1].contiguous().view(spoken.shape)
        offset = coding.HEAD + told[0].nbytes
        kernels.gennorm_average(list(messages), offset, parts, inverses, books, self.format, out)
        return True

    def _books(self, predictions: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """For every prediction the number of its book, and the books."""
        distinct, which = np.unique(predictions, return_inverse=True)
        books = [_book(int(prediction), self.format, self.coder) for prediction in distinct]
        none = torch.empty(0, 2, ans.ESCAPE + 1, dtype=torch.int32)
        return torch.from_numpy(which.reshape(-1)), torch.stack(books) if books else none


def _side(message: torch.Tensor, parts: int, number: int) -> NDArray[np.void] | None:
    """What a message says of its parts, or None if it is lost."""
    stop = coding.HEAD + parts * SIDE.itemsize
    try:
        if coding.is_lost(message):
            return None
        ans.require(len(message) >= stop, "is cut short")
    except ValueError as error:
        raise DamagedMessage(number, str(error)) from None
    return message[coding.HEAD : stop].numpy().view(SIDE)


@functools.lru_cache(maxsize=4096)
def _book(prediction: int, format: str, coder: str) -> torch.Tensor:
    indices = level_codes.unpack(np.array([prediction]))[0].tolist()
    return ans.book(level_codes.model(level_codes.Prediction(*indices), FORMATS[format], coder))
