"""THC's ops in Triton: a program for every block, whatever the blocks' sizes, with the reference's bits.

A program works on a tile, as large as the chart's largest block. Behind a smaller block the tile has zeros. Of
these the transform's later stages make copies of the block's transform; and if the integers on the way back are
copies too, what comes back is the block, times their number, and zeros. So no stage asks for the size.

Butterflies of several strides at once stay within a thread: `stages` brings the coordinates that they join to
the first axis, which the compiler keeps in registers, and only between such groups goes through shared memory.
Encode's way back is in integers, in which strides may have any order. It adds two of 16 bits at once as long as
they suffice, and takes the strides in the order in which threads come to have the coordinates.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803, N806 (capitals are a kernel's constants, and its branches are the compiler's)

import triton
import triton.language as tl

from laconic.kernels.thc.triton_hadamard import hadamard, stages
from laconic.kernels.triton_hash import hashed


@triton.jit
def norms(grad, residual, chart, norms, TILE: tl.constexpr, ALIGN: tl.constexpr):
    """A block's norm."""
    _, _, start, numel, _, _ = _block(chart, ALIGN)
    x = _take(grad, residual, start, numel, TILE)
    norm = tl.sqrt_rn(tl.sum(x * x))
    tl.store(norms + tl.program_id(0), tl.where(norm < float("inf"), norm, float("inf")))


@triton.jit(do_not_specialize=["shared", "own", "turn"])
def encode(
    grad,
    residual,
    norms,
    chart,
    lookup,
    granularity,
    unit,
    span,
    shared,
    own,
    turn,
    codes,
    new,
    quality,
    BITS: tl.constexpr,
    TINY: tl.constexpr,
    EVERY: tl.constexpr,
    NODES: tl.constexpr,
    FIELD: tl.constexpr,
    EVEN: tl.constexpr,
    LOG: tl.constexpr,
    ALIGN: tl.constexpr,
    FLOAT: tl.constexpr,
    PACKED: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A block's codes, what they do not say, and how good they are; the letters are the reference's."""
    TILE: tl.constexpr = 1 << LOG
    parameter, offset, start, numel, size, at = _block(chart, ALIGN)
    x = _take(grad, residual, start, numel, TILE)
    norm = tl.load(norms + tl.program_id(0))
    entries = tl.load(lookup + tl.arange(0, NODES))
    signs = _signs(parameter, offset, shared, TILE, 4)
    scale = tl.where((norm > TINY) & (norm < float("inf")), _over(unit, norm), 0.0)
    rotated = tl.trans(tl.reshape(hadamard(_flip(x, signs), STAGES), (TILE // 4, 4)))
    height = rotated * scale + (128.0 * granularity + 0.5)
    y = tl.minimum(tl.maximum(height, 0.0), 256.0 * granularity).to(tl.int32)
    share = size.to(tl.float32) * (1.0 / TILE)
    measured = (turn + tl.program_id(0)) % EVERY == 0
    quality += tl.program_id(0) * 4
    tl.store(quality + tl.arange(0, 4), tl.zeros((4,), tl.float32))
    if measured:
        clamped = (y - 1).to(tl.uint32) >= (256 * granularity - 1).to(tl.uint32)  # at 0 or 256 g
        tl.store(quality + 1, tl.sum(x * x))
        tl.store(quality + 2, tl.sum(tl.where(clamped, 1.0, 0.0)) * share)
        tl.store(quality + 3, size.to(tl.float32))

    noise = _noise(parameter, offset, size, own, TILE)
    chosen = _round(y, noise, entries, FIELD)
    even, odd = tl.split(tl.permute(tl.reshape(chosen, (2, 2, TILE // 4)), (0, 2, 1)))
    if (BITS == 4) & EVEN:
        _pack_fours(codes, at, even, odd, size)
    else:
        _pack(codes + at // 8 * BITS, _codes(chosen, lookup, BITS, NODES, FIELD), size, BITS)

    said = _inverse(_pairs(even, odd, FIELD), granularity, FLOAT, PACKED, STAGES, LOG)
    said *= norm * span * _half_over(size) * share
    left = tl.fma(said, _minus_signs(signs), x)
    if new is not None:
        _put(new, left, start, numel)
    if measured:
        left = tl.where(tl.arange(0, TILE) < numel, left, 0.0)
        tl.store(quality, tl.sum(left * left))


@triton.jit
def _round(y, noise, entries, FIELD: tl.constexpr):
    """The entries of the codes below; for those above with the gap and 1 added, so that they have T[k + 1].

    `short` is 2^FIELD (noise (T[k + 1] - T[k]) + 2^16 T[k] - 2^8 y) + gap + k, and k is below 2^FIELD. So it is
    less than the gap where the sum in brackets is negative, and there the reference takes the code above.
    """
    entry = tl.reshape(tl.gather(entries, tl.reshape(y >> 8, (y.shape[0] * y.shape[1],)), 0), y.shape)
    gap = entry & (1023 << FIELD)
    short = noise * gap + entry - y * (256 << FIELD)
    return tl.where(short < gap, entry + (gap * 65536 + 1), entry)


@triton.jit
def _codes(chosen, lookup, BITS: tl.constexpr, NODES: tl.constexpr, FIELD: tl.constexpr):
    """The entries' codes, in the coordinates' order."""
    codes = chosen & ((1 << BITS) - 1) if FIELD > 0 else tl.load(lookup + NODES + (chosen >> 16))
    return tl.reshape(tl.trans(codes), (chosen.shape[0] * chosen.shape[1],))


@triton.jit
def _pairs(even, odd, FIELD: tl.constexpr):
    """2 T of neighbours in the halves of a word."""
    words = even >> 16 | odd & -65536
    return words >> (FIELD - 1) if FIELD > 0 else words << 1


@triton.jit
def _inverse(
    pairs,
    granularity,
    FLOAT: tl.constexpr,
    PACKED: tl.constexpr,
    STAGES: tl.constexpr,
    LOG: tl.constexpr,
):
    """√d H (2 T - g): `PACKED` strides of pairs, first those that threads have already, then the others."""
    HALF: tl.constexpr = 1 << (LOG - 1)
    LAST: tl.constexpr = min(PACKED - 3, LOG - 4)
    pairs = stages(tl.reshape(pairs, (HALF,)), LOG - 4, LOG - 1, LAST == 0)
    middle = granularity * (8 * 65537)  # of eight coordinates, in both halves
    pairs -= tl.where(tl.arange(0, HALF) < HALF // 8, middle, 0)
    for first in tl.static_range(0, LAST, 3):
        pairs = stages(pairs, first, min(first + 3, LAST), first + 3 >= LAST)
    x = tl.permute(tl.reshape(_unpaired(pairs), (2, HALF // 2, 2)), (1, 0, 2))
    x = _integers(tl.reshape(x, (2 * HALF,)), FLOAT)
    for first in tl.static_range(2 + LAST, LOG - 2, STAGES):
        x = stages(x, first, min(first + STAGES, LOG - 2))
    return x.to(tl.float32)


@triton.jit
def _unpaired(pairs):
    """Sums and differences of the words' halves, which are 2^15 too large.

    As the lowest bits of 2^23 a half is a float that exceeds it by 2^23.
    """
    words = pairs.to(tl.uint32)
    even = (words & 0xFFFF | 0x4B000000).to(tl.float32, bitcast=True)
    odd = ((words >> 16) + 0x4B000000).to(tl.float32, bitcast=True)
    return tl.join(even + (odd - 2 * (8388608.0 + 32768.0)), even - odd)


@triton.jit(do_not_specialize=["shared"])
def decode(
    replies,
    width,
    norms,
    chart,
    granularity,
    span,
    shared,
    grad,
    LANE: tl.constexpr,
    WORDS: tl.constexpr,
    NARROW: tl.constexpr,
    TILE: tl.constexpr,
    ALIGN: tl.constexpr,
    FLOAT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """What a block's sums say."""
    parameter, offset, start, numel, size, at = _block(chart, ALIGN)
    norm = tl.load(norms + tl.program_id(0))
    count = _count(replies, 0, width, LANE)
    first, last = at.to(tl.int32) // width, (at.to(tl.int32) + size - 1) // width
    if (_count(replies, first, width, LANE) != count) | (_count(replies, last, width, LANE) != count):
        norm = float("nan")  # the reference refuses what has different numbers of contributors
    if (count == 0) | (granularity * count >= (1 << LANE)):
        norm = float("nan")  # and more or fewer than can be
    if WORDS:
        sums = _bytes(replies, at.to(tl.int32), width, size, NARROW, TILE)
    else:
        sums = _lanes(replies, at, width, size, LANE, TILE)
    said = hadamard(_integers(sums, FLOAT), STAGES)
    middle = tl.where(tl.arange(0, TILE) == 0, granularity * count * (size // 2), 0)
    said = (said - middle).to(tl.float32)
    share = _over(span, count.to(tl.float32))
    signs = _signs(parameter, offset, shared, TILE, 32)
    _store(grad, _flip(said * (norm * share * _half_over(size) * 2), signs), start, numel)


@triton.jit
def _block(chart, ALIGN: tl.constexpr):
    """The program's row of the chart; start and numel are multiples of `ALIGN`."""
    row = chart + tl.program_id(0) * 6
    return (
        tl.load(row).to(tl.uint32),
        tl.load(row + 1),
        tl.multiple_of(tl.load(row + 2), ALIGN),
        tl.multiple_of(tl.load(row + 3).to(tl.int32), ALIGN),
        tl.load(row + 4).to(tl.int32),
        tl.load(row + 5),
    )


@triton.jit
def _take(grad, residual, start, numel, TILE: tl.constexpr):
    """The block's gradient and residual, and zeros behind it."""
    inside = _inside(TILE)
    x = tl.load(grad + start + inside, mask=inside < numel, other=0.0).to(tl.float32)
    if residual is not None:
        x += tl.load(residual + start + inside, mask=inside < numel, other=0.0)
    ROWS: tl.constexpr = min(4, x.shape[0])
    x = tl.permute(tl.reshape(x, (ROWS, x.shape[0] // ROWS, x.shape[1])), (1, 0, 2))
    return tl.reshape(x, (TILE,))


@triton.jit
def _put(pointer, values, start, numel):
    """Stores a block where `_take` found it."""
    TILE: tl.constexpr = values.shape[0]
    inside = _inside(TILE)
    ROWS: tl.constexpr = min(4, inside.shape[0])
    values = tl.reshape(values, (inside.shape[0] // ROWS, ROWS, inside.shape[1]))
    values = tl.reshape(tl.permute(values, (1, 0, 2)), inside.shape)
    tl.store(pointer + start + inside, values, mask=inside < numel)


@triton.jit
def _inside(TILE: tl.constexpr):
    """Coordinates in rows of 256, every fourth row first: a thread has some of four rows that are neighbours.

    These are the strides that `_inverse` comes to last.
    """
    COLUMNS: tl.constexpr = min(256, TILE)
    ROWS: tl.constexpr = TILE // COLUMNS
    row = tl.arange(0, ROWS)
    if ROWS > 4:
        row = row % (ROWS // 4) * 4 + row // (ROWS // 4)
    return row[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def _store(pointer, values, start, numel):
    inside = tl.arange(0, values.shape[0])
    tl.store(pointer + start + inside, values, mask=inside < numel)


@triton.jit
def _signs(parameter, offset, key, TILE: tl.constexpr, COUNT: tl.constexpr):
    """Words with the signs of `COUNT` coordinates in the lowest bits.

    Blocks start at multiples of their sizes, so that only small ones start within a word of the stream.
    """
    first = hashed(parameter ^ key.to(tl.uint32)) + (offset >> 5).to(tl.uint32)
    words = hashed(first + tl.arange(0, TILE // 32).to(tl.uint32))
    shift = (tl.arange(0, 32 // COUNT) * COUNT + offset.to(tl.int32)) & 31
    return tl.reshape(words[:, None] >> shift.to(tl.uint32)[None, :], (TILE // COUNT,))


@triton.jit
def _flip(values, signs):
    COUNT: tl.constexpr = values.shape[0] // signs.shape[0]
    bits = signs[:, None] << (31 - tl.arange(0, COUNT)).to(tl.uint32)[None, :]
    bits = tl.reshape(bits & 0x80000000, values.shape)
    return (values.to(tl.uint32, bitcast=True) ^ bits).to(tl.float32, bitcast=True)


@triton.jit
def _minus_signs(signs):
    """1 for a minus and -1 for a plus; not from the bits of `_flip`, which threads would keep in registers."""
    bits = signs[:, None] & (1 << tl.arange(0, 4)).to(tl.uint32)[None, :]
    return tl.where(tl.reshape(bits, (4 * signs.shape[0],)) != 0, 1.0, -1.0)


@triton.jit
def _noise(parameter, offset, size, key, TILE: tl.constexpr):
    """Integers below 2^16, the same for every copy of the block; a row for every fourth coordinate."""
    first = hashed(parameter ^ key.to(tl.uint32)) + (offset >> 1).to(tl.uint32)
    pair = (tl.arange(0, TILE // 4) * 2 & ((size >> 1) - 1))[None, :] + tl.arange(0, 2)[:, None]
    words = hashed(first + pair.to(tl.uint32))
    both = tl.permute(tl.join(words & 0xFFFF, words >> 16), (0, 2, 1))
    return tl.reshape(both, (4, TILE // 4)).to(tl.int32)


@triton.jit
def _pack_fours(pointer, at, even, odd, size):
    """Four codes of four bits a thread, which has them already."""
    low, high = tl.split(tl.trans(even & 15 | (odd & 15) << 4))
    four = tl.arange(0, even.shape[1])
    words = pointer.to(tl.pointer_type(tl.uint16)) + (at >> 2) + four
    tl.store(words, (low | high << 8).to(tl.uint16), mask=four < size >> 2)


@triton.jit
def _pack(pointer, codes, size, BITS: tl.constexpr):
    TILE: tl.constexpr = codes.shape[0]
    eight, byte = tl.arange(0, TILE // 8)[:, None], tl.arange(0, 8)[None, :]
    parts = tl.reshape(codes, (TILE // 8, 8)).to(tl.uint64) << (byte * BITS).to(tl.uint64)
    packed = tl.sum(parts, 1)[:, None] >> (byte * 8).to(tl.uint64)
    there = (eight < size // 8) & (byte < BITS)
    tl.store(pointer + eight * BITS + byte, packed.to(tl.uint8), mask=there)


@triton.jit
def _count(replies, shard, width, LANE: tl.constexpr):
    """How many contributed to the shard: the two low bytes of the four behind its sums."""
    row = width.to(tl.int64) // 8 * LANE
    pointer = replies + shard * (row + 4) + row
    return tl.load(pointer).to(tl.int32) | tl.load(pointer + 1).to(tl.int32) << 8


@triton.jit
def _bytes(pointer, at, width, size, NARROW: tl.constexpr, TILE: tl.constexpr):
    """A block's bytes, four in a word; before every reply but the first, a word has the count of the last."""
    four = tl.arange(0, TILE // 4)
    if NARROW:
        reply = (at + 4 * four) // width
    else:
        reply = tl.where(at % width + 4 * four < width, at // width, at // width + 1)
    words = pointer.to(tl.pointer_type(tl.uint32)) + (at // 4 + four + reply)
    word = tl.load(words, mask=four < size // 4, other=0)
    even, odd = tl.join(word & 255, word >> 16 & 255), tl.join(word >> 8 & 255, word >> 24)
    return tl.reshape(tl.join(even, odd), (TILE,)).to(tl.int32)


@triton.jit
def _lanes(pointer, at, width, size, LANE: tl.constexpr, TILE: tl.constexpr):
    """A block's integers of `LANE` bits, each from up to three bytes."""
    inside = tl.arange(0, TILE)
    reply = (at + inside) // width
    byte, shift = (at + inside) * LANE // 8 + 4 * reply, inside * LANE % 8
    value = tl.load(pointer + byte, mask=inside < size, other=0).to(tl.int32)
    for more in tl.static_range(1, 3):
        there = (inside < size) & (shift + LANE > 8 * more)
        value |= tl.load(pointer + byte + more, mask=there, other=0).to(tl.int32) << 8 * more
    return value >> shift & ((1 << LANE) - 1)


@triton.jit
def _integers(values, FLOAT: tl.constexpr):
    return values.to(tl.float32) if FLOAT else values.to(tl.int32)


@triton.jit
def _over(a, b):
    """The nearest to a / b, for results that are neither huge nor tiny; `div_rn` would keep a branch for those."""
    b = b * 0.0625  # the reciprocal of the largest numbers is not a normal one
    inverse = tl.rsqrt(b)  # with less to mend than 1 / b
    inverse = inverse * inverse
    inverse = tl.fma(tl.fma(-b, inverse, 1.0), inverse, inverse)
    quotient = a * inverse
    quotient = tl.fma(tl.fma(-b, quotient, a), inverse, quotient)
    return tl.fma(tl.fma(-b, quotient, a), inverse, quotient) * 0.0625


@triton.jit
def _half_over(size):
    """0.5 / size, which for a power of two only has another exponent."""
    return (0x7E800000 - size.to(tl.float32).to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
