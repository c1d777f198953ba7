"""GenNorm's ops as `python -m benchmarks.ops` measures them, against zstd on the same symbols.

zstd is timed at its levels 1 and 3, of which the faster counts. It only codes symbols, or takes them out: that levels
are rounded, counted and taken back is work that it does not have.
"""
# ruff: noqa: A002 (a format is the field's word)

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.ops.cases import Case, Peer
from laconic.kernels import coding, gennorm
from laconic.numerics import ans, generalized_normal, level_codes
from laconic.numerics.minifloat import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

MOST = 1 << 22
"""Coordinates: references in PyTorch take seconds for as many."""
MEMORY = 0.7
LEVELS = 1, 3
"""Of zstd."""
NOT_THERE = "zstd is not installed; pip install zstandard"


def cases(coordinates: int) -> list[Case]:
    """All cases, for vectors of so many coordinates, or MOST."""
    count = min(coordinates, MOST)
    kinds = ("e5m2", "huffman"), ("e5m2", "rans"), ("fp4", "huffman")
    return [case for kind in kinds for case in _cases(_Work(count, *kind))]


class _Work:
    """A worker with a gradient that is like a generalized normal, and its message."""

    def __init__(self, count: int, format: str, coder: str) -> None:
        self.name, self.format, minifloat = f"gennorm {format} {coder}", format, FORMATS[format]
        self.grad, self.old, self.new = _laplace(count), 0.1 * _laplace(count, 1), torch.empty(count)
        exact = (self.grad + MEMORY * self.old).double()
        shape = generalized_normal.fit(float(exact.abs().mean()), float(exact.square().mean()))
        scale = generalized_normal.scale(shape, minifloat)
        self.scales, self.width = torch.tensor([[scale, 1 / scale]]), gennorm.width(minifloat)
        self.symbols = torch.empty(count, dtype=torch.uint8)
        self.counts = torch.empty(1, ans.ESCAPE + 1, dtype=torch.int32)
        self.quantize(gennorm.gennorm_quantize)
        (found,) = level_codes.fit(self.counts.numpy()[:, : len(minifloat.levels)], minifloat).tolist()
        self.books = ans.book(level_codes.model(level_codes.Prediction(*found), minifloat, coder))[None]
        self.parts = torch.tensor([[count, 0]])
        self.room = torch.zeros(coding.room(coding.HEAD, count, self.width), dtype=torch.uint8)
        self.message = self.seal(coding.seal).clone()

    def quantize(self, op: Any) -> None:
        parts = torch.tensor([[0, len(self.grad)]])
        op(self.grad, self.old, MEMORY, parts, self.scales, self.format, self.new, self.symbols, self.counts)

    def seal(self, op: Any) -> torch.Tensor:
        return self.room[: op(self.symbols, self.parts, self.books, self.width, coding.HEAD, self.room)]

    def encode(self, quantize: Any, seal: Any) -> list[torch.Tensor]:
        self.quantize(quantize)
        return [self.seal(seal), self.new, self.counts]

    def unseal(self, op: Any) -> list[torch.Tensor]:
        op(self.message, self.parts, self.books, self.width, coding.HEAD, self.symbols)
        return [self.symbols]

    def average(self, op: Any) -> list[torch.Tensor]:
        parts, inverses = torch.tensor([[[0, len(self.grad), 0]]]), self.scales[:, 1:].contiguous()
        op([self.message], coding.HEAD, parts, inverses, self.books, self.format, self.new)
        return [self.new]

    def bits(self, size: int) -> float:
        """Of a symbol, in so many bytes."""
        return round(8 * size / len(self.grad), 4)

    def entropy(self) -> float:
        shares = torch.bincount(self.symbols).double() / len(self.symbols)
        return round(float(torch.special.entr(shares).sum() / torch.tensor(2.0).log()), 4)


def _cases(work: _Work) -> list[Case]:
    compress, decompress, sizes = _zstd(work.symbols.numpy().tobytes())
    bits = {"ours": work.bits(len(work.message)), "entropy": work.entropy()}
    bits |= {"zstd": work.bits(min(sizes))} if sizes else {}
    case = functools.partial(Case, bytes=work.grad.nbytes, coordinates=len(work.grad))
    encode, ops = work.encode, (gennorm.gennorm_quantize, coding.seal)
    return [
        case(
            f"{work.name} encode",
            run=functools.partial(encode, *ops),
            reference=functools.partial(encode, *(op.reference for op in ops)),
            peer=compress,
            bits=bits,
        ),
        case(f"{work.name} unseal", **_both(work.unseal, coding.unseal), peer=decompress),
        case(f"{work.name} decode", **_both(work.average, gennorm.gennorm_average), peer=decompress),
    ]


def _both(run: Callable[[Any], list[torch.Tensor]], op: Any) -> dict[str, Any]:
    return {"run": functools.partial(run, op), "reference": functools.partial(run, op.reference)}


def _zstd(symbols: bytes) -> tuple[Peer, Peer, list[int]]:
    """Compressing these, decompressing them, and the bytes that there are between."""
    if importlib.util.find_spec("zstandard") is None:
        return Peer(NOT_THERE, ()), Peer(NOT_THERE, ()), []
    import zstandard

    coders = [zstandard.ZstdCompressor(level=level) for level in LEVELS]
    packed, decoder = [coder.compress(symbols) for coder in coders], zstandard.ZstdDecompressor()
    compress = tuple(functools.partial(coder.compress, symbols) for coder in coders)
    decompress = tuple(functools.partial(decoder.decompress, frame) for frame in packed)
    return Peer("zstd", compress), Peer("zstd", decompress), [len(frame) for frame in packed]


def _laplace(count: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.empty(count).exponential_(generator=rng) * (torch.rand(count, generator=rng) - 0.5).sign()
