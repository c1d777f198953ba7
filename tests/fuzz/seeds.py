"""Sound messages, from which the fuzzers of the C++ decoders begin.

    python -m tests.fuzz.seeds

writes them anew, which is needed when a format has changed. Each is a message as today's encoders make it, and before
it what both ends know, as the targets (tests/fuzz/*.cpp) say in their heads.
"""

import random
from pathlib import Path

import numpy as np
import torch

from laconic.core.blocks import block_pieces
from laconic.core.technique import Bucket
from laconic.kernels import coding
from laconic.kernels import thc as kernels
from laconic.messages import coded_runs, normal_codes, sign_vote
from laconic.messages.gennorm import Leveling
from laconic.numerics import bits, level_codes, ternary
from laconic.numerics.minifloat import FORMATS
from laconic.techniques.thc import THC

FOLDER = Path(__file__).parent / "seeds"
NAMES = list(FORMATS)
"""As codes.h numbers them."""
FEW, MANY = 1500, (1 << 17) + 40
SILENT = 0


def made():
    """The seeds, by target and number."""
    random_ = random.Random(0)
    return {
        "coding": [*(_levels(random_, *each)[0] for each in _LEVELS), *_runs(random_)],
        "gennorm": [_levels(random_, *each)[1] for each in _LEVELS],
        "sign_vote": [_votes(random_, numel) for numel in (0, 1, 40, 700, 9000)],
        "thc": [_sums(random_, *each) for each in _GRIDS],
        "packing": [_packed(random_, width) for width in range(1, 9)],
    }


def write():
    """Every seed is in a file."""
    for target, seeds in made().items():
        (FOLDER / target).mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds):
            (FOLDER / target / f"{number:02}").write_bytes(seed)


_LEVELS = [
    *((name, coder, (200, 0, 37)) for name in FORMATS for coder in level_codes.CODERS),
    ("fp4", "huffman", ()),
    ("fp4", "rans", (MANY,)),
]
_GRIDS = [
    (THC(), 4, (4096,)),
    (THC(block=1024), 3, (1024, 700)),
    (THC(bits=2, block=256), 2, (300,)),
    (THC(lane=16, block=64), 5, (100,)),
    (THC(lane=12, block=512), 3, (600,)),
    (THC(bits=8, block=32), 2, (40,)),
]


def _u(value, size):
    return int(value).to_bytes(size, "little")


def _book(book):
    """A book's symbols in the order of their parts."""
    shares, starts = book.numpy().astype(int)
    owners = sorted(np.flatnonzero(shares), key=lambda symbol: starts[symbol])
    told = b"".join(_u(symbol, 1) + _u(shares[symbol] - 1, 2) for symbol in owners)
    return _u(len(owners) - 1, 1) + told


def _known(name, offset, books, parts):
    """What codes.h reads before the message; parts are pairs of a book, from 1 on, and a count."""
    every = b"".join(map(_book, books)) if len(books) else b"\0\0\0\0"
    told = b"".join(_u(book, 1) + _u(count, 3) for book, count in parts)
    head = _u(NAMES.index(name), 1) + _u(offset - coding.HEAD, 1) + _u(max(1, len(books)) - 1, 1)
    return head + every + _u(len(parts), 1) + told


def _levels(random_, name, coder, counts):
    """A message of GenNorm for both targets; a part without coordinates is silent."""
    format_ = FORMATS[name]
    middle = len(format_.levels) // 2
    spread = middle / 8 if sum(counts) < MANY else 0.2  # few bytes for many symbols
    drawn = [
        np.clip([round(random_.gauss(middle, spread)) for _ in range(count)], 0, 2 * middle).astype(np.uint8)
        for count in counts
    ]
    if sum(counts) >= MANY:
        drawn[0][500:] = middle
    histogram = np.stack([np.bincount(each, minlength=256) for each in drawn] or [np.zeros((0, 256))])
    histogram = torch.from_numpy(histogram.reshape(-1, 256).astype(np.int32))
    shapes = np.array([(90, 30_000 * (count > 0)) for count in counts], np.int64).reshape(-1, 2)
    symbols = torch.from_numpy(np.concatenate([np.zeros(0, np.uint8), *drawn]))
    leveling, sizes = Leveling(name, coder), torch.tensor(counts, dtype=torch.int64)
    message = leveling.seal(symbols, histogram, sizes, shapes).numpy().tobytes()
    predictions = level_codes.pack(level_codes.fit(histogram.numpy()[:, : len(format_.levels)], format_))
    which, books = leveling._books(predictions[shapes[:, 1] > 0])
    numbers = iter((which + 1).tolist())
    parts = [(next(numbers) if count else SILENT, count) for count in counts]
    known = _known(name, coding.HEAD + 5 * len(counts), list(books), parts)
    return known + message, known + b"\0" + bytes([126] * len(counts)) + message


def _runs(random_):
    """Messages of coded_runs.py: codes, sums and votes, in Huffman's codes or others."""
    table = THC().grid(4).table
    trits = np.array([random_.random() < 0.05 for _ in range(5 * FEW)]).reshape(-1, 5) @ ternary.POWERS
    codes = [min(15, max(0, round(random_.gauss(7.5, 2)))) for _ in range(FEW)]
    sums = [min(255, max(0, round(random_.gauss(128, 9)))) for _ in range(3 * FEW)]
    cases = [
        ("fp4", normal_codes.of_codes(table), codes),
        ("e5m2", normal_codes.of_sums(table, 4), sums),
        ("e5m2", sign_vote._family(), trits.tolist()),
    ]
    return [_run(*case) for case in cases]


def _run(name, family, values):
    symbols = torch.tensor(values, dtype=torch.uint8)
    fit = coded_runs._fit(family, symbols)
    parts, books = coded_runs._parts(family, fit, len(symbols))
    message = coded_runs.seal(family, symbols, torch.empty(len(symbols), dtype=torch.uint8))
    body = len(message) - _coded_bytes(family, fit, symbols, parts, books)
    told = [(book + 1, count) for count, book in parts.tolist()]
    return _known(name, body, list(books), told) + message.numpy().tobytes()


def _coded_bytes(family, fit, symbols, parts, books):
    """Those of the symbols alone."""
    folded = symbols.masked_fill(symbols == coded_runs.LAST, 0) if family.folded else symbols
    room = torch.empty(coding.room(coding.HEAD, len(symbols), family.width), dtype=torch.uint8)
    return coding.seal(folded, parts, books, family.width, coding.HEAD, room) - coding.HEAD


def _votes(random_, numel):
    """Three workers who say little, much and everything; the last message is the rest."""
    seed = _u(numel, 2) + _u(numel % 3, 1) + _u(2, 1)
    for number, density in enumerate((0.02, 0.9, 0.5)):
        votes = [2 * i + random_.randrange(2) for i in range(numel) if random_.random() < density]
        message = ternary.pack(torch.tensor(votes, dtype=torch.int32), numel).numpy().tobytes()
        seed += _u(511 + number, 2) + _u(len(message), 2) + message
    return seed


def _sums(random_, technique, workers, sizes):
    """Codes of all workers and the replies of as many shards, which are one here."""
    grid = technique.grid(workers)
    bucket = Bucket(tuple(map(str, range(len(sizes)))), sizes, torch.float32)
    (piece,) = block_pieces(bucket, 1, block=technique.block, width=1 << 20)
    rows = [
        [
            min(len(grid.table) - 1, int(random_.betavariate(3, 3) * len(grid.table)))
            for _ in range(piece.width)
        ]
        for _ in range(workers)
    ]
    codes = bits.pack(torch.tensor(rows), technique.bits)
    reply = torch.empty(piece.width * grid.lane // 8 + kernels.COUNT_BYTES, dtype=torch.uint8)
    kernels.thc_combine(codes, torch.tensor(grid.table), technique.bits, grid.lane, reply)
    head = _u(technique.bits - 2, 1) + _u(grid.lane - 8, 1) + _u(grid.granularity - 1, 2)
    head += b"".join(_u(value, 2) for value in grid.table) + _u(workers - 1, 1) + b"\0"
    head += _u(len(piece.blocks) - 1, 1)
    for block in piece.blocks:
        head += _u(block.size.bit_length() - 4, 1) + _u(block.size - block.numel, 2)
    norms = np.ones(len(piece.blocks), "<f4").tobytes()
    return head + b"\0" + norms + codes.numpy().tobytes() + reply.numpy().tobytes()


def _packed(random_, width):
    values = torch.tensor([[random_.randrange(1 << width) for _ in range(61)]])
    return _u(width - 1, 1) + _u(61, 2) + bits.pack(values, width)[0].numpy().tobytes()


if __name__ == "__main__":
    write()
