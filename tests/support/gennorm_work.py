"""Gradients in parts, their levels, and messages about them, for tests of GenNorm's kernels."""

import functools

import torch

from laconic.kernels import coding
from laconic.kernels import gennorm as ops
from laconic.numerics import ans, level_codes
from laconic.numerics.minifloat import FORMATS

OFFSET = 20
SIZES = (3_000, 0, 1, 37, 2_048, 5, 64, 63, 4_097)
"""Of parts, between which there are gaps, so that starts are at any place."""


def random_values(numel, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(numel, generator=generator) * torch.rand(numel, generator=generator) ** 3


def parts_of(sizes, gap=3):
    starts = [gap + sum(sizes[:k]) + gap * k for k in range(len(sizes))]
    return torch.tensor(list(zip(starts, sizes, strict=True)), dtype=torch.int64).reshape(-1, 2)


def numel_of(parts):
    return int(parts.sum(1).max()) + 5 if len(parts) else 5


def scale_pairs(scales):
    scales = torch.tensor(scales, dtype=torch.float32)
    return torch.stack([scales, torch.where(scales > 0, 1 / scales, 0)], dim=1)


def quantized(op, grad, old, memory, parts, scales, name, keeps=True):
    new = torch.full((len(grad),), 7.0) if keeps else None
    symbols = torch.full((int(parts[:, 1].sum()),), 99, dtype=torch.uint8)
    counts = torch.full((len(parts), 256), -1, dtype=torch.int32)
    finite = op(grad, old, memory, parts, scales, name, new, symbols, counts)
    return finite, symbols, counts, new


def scale_of(name):
    return 60 * FORMATS[name].magnitudes[1]


@functools.cache
def message_of(sizes, name, coder, seed, spread=1.0):
    """A worker's parts and inverse scales, its books, and what it says, sealed by the reference."""
    form, spans = FORMATS[name], parts_of(sizes)
    grad = random_values(numel_of(spans), seed)
    silent = [(k + seed) % 4 == 3 for k in range(len(sizes))]
    scales = scale_pairs([0.0 if mute else scale_of(name) * spread for mute in silent])
    _, symbols, counts, _ = quantized(ops.gennorm_quantize.reference, grad, None, 0.0, spans, scales, name)
    predictions = level_codes.fit(counts[:, : len(form.levels)].numpy(), form).tolist()
    books = [ans.book(level_codes.model(level_codes.Prediction(*each), form, coder)) for each in predictions]
    spoken = [(numel, k) for k, (mute, numel) in enumerate(zip(silent, sizes, strict=True)) if not mute]
    symbols = symbols[: sum(numel for numel, _ in spoken)]
    message = torch.zeros(coding.room(OFFSET, len(symbols), ops.width(form)), dtype=torch.uint8)
    rows = torch.tensor(spoken, dtype=torch.int64).reshape(-1, 2)
    size = coding.seal.reference(symbols, rows, torch.stack(books), ops.width(form), OFFSET, message)
    book = torch.tensor([[-1 if mute else k] for k, mute in enumerate(silent)])
    return message[:size], torch.cat([spans, book], 1), scales[:, 1], torch.stack(books)


def together(told):
    """Messages, parts, inverse scales and books of all workers."""
    messages, parts, inverses, books = zip(*told, strict=True)
    first = 0
    shifted = []
    for own, book in zip(parts, books, strict=True):
        own = own.clone()
        own[:, 2] += torch.where(own[:, 2] >= 0, first, 0)
        shifted.append(own)
        first += len(book)
    return list(messages), torch.stack(shifted), torch.stack(inverses), torch.cat(books)


def averaged(op, told, name, dtype=torch.float32):
    messages, parts, inverses, books = together(told)
    out = torch.full((numel_of(parts[0, :, :2]),), 7.0, dtype=dtype)
    op(messages, OFFSET, parts, inverses, books, name, out)
    return out
