"""Bits and speed of lossless coders on levels of recorded gradients: python benchmarks/coders.py fashion text

A task trains alone for some steps. The gradient of its last step, scaled and rounded tensor by tensor as GenNorm does
it (without a residual), is then coded by Laconic, by Huffman's and an ANS code of each tensor's own histogram, whose
tables are not counted, by zlib without matches, and by zstd. Every coder must give the levels back. Speeds are in
million levels a second, one thread, the best of several turns in which all coders take part.

Needs: pip install zstandard constriction
"""

from __future__ import annotations

import dataclasses
import sys
import time
import zlib
from collections.abc import Callable
from typing import NamedTuple

import constriction
import numpy as np
import torch
import zstandard

from laconic.kernels import coding
from laconic.kernels import gennorm as kernels
from laconic.lab import tasks
from laconic.lab.worker import Settings
from laconic.numerics import ans, generalized_normal, level_codes, minifloat
from laconic.studies import goodness
from laconic.studies.inspect_gradients import training

STEPS = {"digits": 100, "fashion": 200, "text": 100}
TURNS = 9


class Levels(NamedTuple):
    """All tensors' levels, one after the other, how many each has, and how often each level occurs in it."""

    symbols: torch.Tensor
    sizes: list[int]
    counts: np.ndarray
    form: str


class Coder(NamedTuple):
    """How to encode, how to decode what that gave, the bits of it, and whether levels came back."""

    name: str
    encode: Callable[[], object]
    decode: Callable[[object], object]
    bits: Callable[[object], float]
    same: Callable[[object], bool]


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for task in names:
        gradients = recorded(task)
        for form in ("e5m2", "fp4"):
            found = leveled(gradients, form)
            numel = len(found.symbols)
            print(f"\n{task}, step {STEPS[task]}, {numel:,} coordinates, {form}\n")
            print("| coder | bits | encode | decode |\n|---|---|---|---|")
            for name, bits, encode, decode in table(found):
                print(f"| {name} | {bits:.3f} | {_speed(encode)} | {_speed(decode)} |", flush=True)


def recorded(name: str) -> list[torch.Tensor]:
    """The gradients of a task's last step."""
    tuned = dataclasses.asdict(tasks.load(name).defaults) | {"steps": STEPS[name]}
    settings = Settings(task=name, spec="", workers=1, record="", **tuned)
    for _, model in training(settings):
        gradients = [parameter.grad.detach().flatten() for parameter in model.parameters()]
    return gradients


def leveled(gradients: list[torch.Tensor], form: str) -> Levels:
    format_ = minifloat.FORMATS[form]
    symbols, counts = [], []
    for gradient in gradients:
        exact = gradient.double()
        shape = generalized_normal.fit(float(exact.abs().mean()), float(exact.square().mean()))
        codes = minifloat.quantize(gradient * generalized_normal.scale(shape, format_), format_)
        symbols.append(codes.to(torch.uint8))
        counts.append(torch.bincount(codes, minlength=len(format_.levels)).numpy())
    return Levels(torch.cat(symbols), [len(part) for part in symbols], np.stack(counts), form)


def table(found: Levels) -> list[tuple[str, float, float | None, float | None]]:
    """For every coder its name, bits per level, and levels a second both ways."""
    coders = [
        _laconic(found, "huffman"),
        _laconic(found, "rans"),
        _constriction(found),
        _zlib(found),
        _zstd(found, 1),
        _zstd(found, 3),
    ]
    numel, best = len(found.symbols), {coder.name: [float("inf")] * 2 for coder in coders}
    bits = {}
    for _ in range(TURNS):
        for coder in coders:
            begin = time.perf_counter()
            coded = coder.encode()
            middle = time.perf_counter()
            decoded = coder.decode(coded)
            end = time.perf_counter()
            assert coder.same(decoded), f"{coder.name} gives other levels back"
            bits[coder.name] = coder.bits(coded) / numel
            taken = best[coder.name]
            best[coder.name] = [min(taken[0], middle - begin), min(taken[1], end - middle)]
    rows = [(name, bits[name], numel / best[name][0], numel / best[name][1]) for name in best]
    weights = np.array(found.sizes) / numel
    for name, measure in (("Huffman, own histogram", goodness.huffman_bits), ("entropy", goodness.entropy)):
        each = [measure(count.tolist()) for count in found.counts]
        rows.append((name, float(weights @ each), None, None))
    return rows


def _laconic(found: Levels, coder: str) -> Coder:
    format_ = minifloat.FORMATS[found.form]
    width, symbols = kernels.width(format_), found.symbols
    message = torch.empty(coding.room(coding.HEAD, len(symbols), width), dtype=torch.uint8)
    parts = torch.stack([torch.tensor(found.sizes), torch.arange(len(found.sizes))], 1)
    predictions = level_codes.fit(found.counts, format_).tolist()
    models = [
        level_codes.model(level_codes.Prediction(*prediction), format_, coder) for prediction in predictions
    ]
    books, out = torch.stack([ans.book(model) for model in models]), torch.empty_like(symbols)

    def decode(coded: object) -> torch.Tensor:
        coding.unseal(coded, parts, books, width, coding.HEAD, out)
        return out

    return Coder(
        f"GenNorm, {coder}",
        lambda: message[: coding.seal(symbols, parts, books, width, coding.HEAD, message)],
        decode,
        lambda coded: 8 * (len(coded) + 5 * len(parts)),
        lambda decoded: torch.equal(decoded, symbols),
    )


def _constriction(found: Levels) -> Coder:
    tensors = [part.numpy().astype(np.int32) for part in found.symbols.split(found.sizes)]
    kept = [(count / count.sum()).astype(np.float32) for count in found.counts]
    models = [constriction.stream.model.Categorical(shares, perfect=False) for shares in kept]

    def encode() -> np.ndarray:
        coder = constriction.stream.stack.AnsCoder()
        for tensor, model in zip(reversed(tensors), reversed(models), strict=True):
            coder.encode_reverse(tensor, model)
        return coder.get_compressed()

    def decode(coded: object) -> list[np.ndarray]:
        coder = constriction.stream.stack.AnsCoder(coded)
        return [coder.decode(model, len(tensor)) for tensor, model in zip(tensors, models, strict=True)]

    return Coder(
        "ANS of constriction, own histogram",
        encode,
        decode,
        lambda coded: 32 * len(coded),
        lambda decoded: all(np.array_equal(*pair) for pair in zip(decoded, tensors, strict=True)),
    )


def _zlib(found: Levels) -> Coder:
    content = found.symbols.numpy().tobytes()

    def encode() -> bytes:
        coder = zlib.compressobj(level=6, strategy=zlib.Z_HUFFMAN_ONLY)
        return coder.compress(content) + coder.flush()

    return Coder(
        "zlib, Huffman only",
        encode,
        zlib.decompress,
        lambda coded: 8 * len(coded),
        lambda out: out == content,
    )


def _zstd(found: Levels, level: int) -> Coder:
    content = found.symbols.numpy().tobytes()
    coder, decoder = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
    return Coder(
        f"zstd -{level}",
        lambda: coder.compress(content),
        decoder.decompress,
        lambda coded: 8 * len(coded),
        lambda out: out == content,
    )


def _speed(levels_a_second: float | None) -> str:
    return "" if levels_a_second is None else f"{levels_a_second / 1e6:.0f}"


if __name__ == "__main__":
    main(sys.argv[1:] or ["fashion", "text"])
