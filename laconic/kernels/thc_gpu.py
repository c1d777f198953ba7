"""THC's ops in Triton: a program for every block, whatever the blocks' sizes, with the reference's bits.

A program works on a tile, as large as the chart's largest block. Behind a smaller block the tile has zeros. Of
these the transform's later stages make copies of the block's transform; and if the integers on the way back are
copies too, what comes back is the block, times their number, and zeros. So no stage asks for the size.

Butterflies of several strides at once stay within a thread: `_stages` brings the coordinates that they join to
the first axis, which the compiler keeps in registers, and only between such groups goes through shared memory.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803, N806 (capitals are a kernel's constants, and its branches are the compiler's)

import triton
import triton.language as tl


@triton.jit
def norms(grad, residual, chart, norms, TILE: tl.constexpr, ALIGN: tl.constexpr):
    """A block's norm."""
    _, _, start, numel, _, _ = _block(chart, ALIGN)
    x = _take(grad, residual, start, numel, TILE)
    norm = tl.sqrt_rn(tl.sum(x * x))
    tl.store(norms + tl.program_id(0), tl.where(norm < float("inf"), norm, float("inf")))


@triton.jit(do_not_specialize=["shared", "own"])
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
    every,
    codes,
    new,
    quality,
    BITS: tl.constexpr,
    TINY: tl.constexpr,
    TILE: tl.constexpr,
    ALIGN: tl.constexpr,
    FLOAT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A block's codes, what they do not say, and how good they are; the letters are the reference's."""
    parameter, offset, start, numel, size, at = _block(chart, ALIGN)
    norm = tl.load(norms + tl.program_id(0))
    signs = _signs(parameter, offset, shared, TILE)
    x = _flip(_take(grad, residual, start, numel, TILE), signs)
    scale = tl.where((norm > TINY) & (norm < float("inf")), _over(unit, norm), 0.0)
    height = _hadamard(x, STAGES) * scale + (128.0 * granularity + 0.5)
    y = tl.minimum(tl.maximum(height, 0.0), 256.0 * granularity).to(tl.int32)
    share = size.to(tl.float32) * (1.0 / TILE)
    measured = (own.to(tl.uint32).to(tl.int64) + tl.program_id(0)) % every == 0
    quality += tl.program_id(0) * 4
    tl.store(quality + tl.arange(0, 4), tl.zeros((4,), tl.float32))
    if measured:
        clamped = (y - 1).to(tl.uint32) >= (256 * granularity - 1).to(tl.uint32)  # at 0 or 256 g
        sums = tl.sum(tl.join(x * x, tl.where(clamped, 1.0, 0.0)), 0)
        tl.store(quality + 1 + tl.arange(0, 2), sums * tl.where(tl.arange(0, 2) == 0, 1.0, share))
        tl.store(quality + 3, size.to(tl.float32))

    entry = tl.load(lookup + (y >> 8))
    low, width = entry & 2047, (entry >> 11) & 2047
    noise = _noise(parameter, offset, size, own, TILE)
    up = (noise * width + low * 65536 - y * 512) >> 31  # -1 where the code above is taken
    _pack(codes + at // 8 * BITS, (entry >> 22) - up, size, BITS)

    said = _hadamard(_integers(low + (width & up) - granularity, FLOAT), STAGES).to(tl.float32)
    left = x - said * (norm * span * _half_over(size) * share)
    if numel < TILE:
        left = tl.where(tl.arange(0, TILE) < numel, left, 0.0)
    if new is not None:
        _store(new, _flip(left, signs), start, numel)
    if measured:
        tl.store(quality, tl.sum(left * left))


@triton.jit(do_not_specialize=["count", "groups"])
def combine(
    messages, stride, count, table, reply, groups, BITS: tl.constexpr, LANE: tl.constexpr, TILE: tl.constexpr
):
    """The sums of groups of eight codes: `BITS` bytes of a message, `LANE` bytes of the reply."""
    first = tl.program_id(0).to(tl.int64) * TILE
    left = tl.minimum(groups - first, TILE).to(tl.int32)
    if (BITS == 4) & (LANE == 8):
        _nibbles(messages + first * 4, stride, count, table, reply + first * 8, left, TILE)
    else:
        _any_width(
            messages + first * BITS, stride, count, table, reply + first * LANE, left, BITS, LANE, TILE
        )
    if first == 0:
        byte = tl.arange(0, 4)
        tl.store(reply + groups.to(tl.int64) * LANE + byte, (count >> 8 * byte).to(tl.uint8))


@triton.jit
def _nibbles(messages, stride, count, table, reply, left, TILE: tl.constexpr):
    byte, lane = tl.arange(0, 4 * TILE), tl.arange(0, 8 * TILE)
    low, high = tl.zeros(byte.shape, tl.int32), tl.zeros(byte.shape, tl.int32)
    for _ in range(count):
        pair = tl.load(messages + byte, mask=byte < left * 4, other=0).to(tl.int32)
        low += tl.load(table + (pair & 15)).to(tl.int32)
        high += tl.load(table + (pair >> 4)).to(tl.int32)
        messages += stride
    sums = tl.reshape(tl.join(low, high), lane.shape).to(tl.uint8)
    tl.store(reply + lane, sums, mask=lane < left * 8)


@triton.jit
def _any_width(
    messages, stride, count, table, reply, left, BITS: tl.constexpr, LANE: tl.constexpr, TILE: tl.constexpr
):
    """A byte of the reply has bits of one code's sum, or of that and the next's."""
    group, byte = tl.arange(0, TILE)[:, None], tl.arange(0, 16)[None, :]
    there = (group < left) & (byte < LANE)
    code, shift = byte * 8 // LANE, byte * 8 % LANE
    sums = _sums(messages, stride, count, table, group * 8 + code, there, BITS) >> shift
    both = there & (shift + 8 > LANE)
    sums |= _sums(messages, stride, count, table, group * 8 + code + 1, both, BITS) << (LANE - shift)
    tl.store(reply + group * LANE + byte, sums.to(tl.uint8), mask=there)


@triton.jit
def _sums(messages, stride, count, table, code, there, BITS: tl.constexpr):
    """The sums of the table's integers for the codes of these numbers."""
    byte, shift = code * BITS // 8, code * BITS % 8
    total = tl.zeros(there.shape, tl.int32)
    for _ in range(count):
        pair = tl.load(messages + byte, mask=there, other=0).to(tl.int32)
        pair |= tl.load(messages + byte + 1, mask=there & (shift + BITS > 8), other=0).to(tl.int32) << 8
        total += tl.load(table + ((pair >> shift) & ((1 << BITS) - 1))).to(tl.int32)
        messages += stride
    return total


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
    if WORDS:
        sums = _bytes(replies, at.to(tl.int32), width, size, NARROW, TILE)
    else:
        sums = _lanes(replies, at, width, size, LANE, TILE)
    said = _hadamard(_integers(sums, FLOAT), STAGES)
    middle = tl.where(tl.arange(0, TILE) == 0, granularity * count * (size // 2), 0)
    said = (said - middle).to(tl.float32)
    share = _over(span, count.to(tl.float32))
    signs = _signs(parameter, offset, shared, TILE)
    _store(grad, _flip(said * (norm * share * _half_over(size) * 2), signs), start, numel)


@triton.jit
def _block(chart, ALIGN: tl.constexpr):
    """The program's row of the chart; the compiler sees that start and numel are multiples of `ALIGN`."""
    row = chart + tl.program_id(0) * 6
    return (
        tl.load(row).to(tl.uint32),
        tl.load(row + 1),
        tl.load(row + 2) // ALIGN * ALIGN,
        tl.load(row + 3).to(tl.int32) // ALIGN * ALIGN,
        tl.load(row + 4).to(tl.int32),
        tl.load(row + 5),
    )


@triton.jit
def _take(grad, residual, start, numel, TILE: tl.constexpr):
    """The block's gradient and residual, and zeros behind it."""
    x = _load(grad, start, numel, TILE)
    if residual is not None:
        x += _load(residual, start, numel, TILE)
    return x


@triton.jit
def _load(pointer, start, numel, TILE: tl.constexpr):
    inside = tl.arange(0, TILE)
    return tl.load(pointer + start + inside, mask=inside < numel, other=0.0).to(tl.float32)


@triton.jit
def _store(pointer, values, start, numel):
    inside = tl.arange(0, values.shape[0])
    tl.store(pointer + start + inside, values, mask=inside < numel)


@triton.jit
def _hash(word):
    word = (word ^ (word >> 16)) * 0x7FEB352D
    word = (word ^ (word >> 15)) * 0x846CA68B
    return word ^ (word >> 16)


@triton.jit
def _signs(parameter, offset, key, TILE: tl.constexpr):
    """Sign bits; blocks start at multiples of their sizes, so that only small ones start within a word."""
    first = _hash(parameter ^ key.to(tl.uint32)) + (offset >> 5).to(tl.uint32)
    words = _hash(first + tl.arange(0, TILE // 32).to(tl.uint32)) >> (offset % 32).to(tl.uint32)
    bits = words[:, None] << (31 - tl.arange(0, 32)).to(tl.uint32)[None, :]
    return tl.reshape(bits & 0x80000000, (TILE,))


@triton.jit
def _flip(values, signs):
    return (values.to(tl.uint32, bitcast=True) ^ signs).to(tl.float32, bitcast=True)


@triton.jit
def _noise(parameter, offset, size, key, TILE: tl.constexpr):
    """Integers below 2^16, the same for every copy of the block."""
    first = _hash(parameter ^ key.to(tl.uint32)) + (offset >> 1).to(tl.uint32)
    words = _hash(first + (tl.arange(0, TILE // 2) & (size // 2 - 1)).to(tl.uint32))
    return tl.reshape(tl.join(words & 0xFFFF, words >> 16), (TILE,)).to(tl.int32)


@triton.jit
def _pack(pointer, codes, size, BITS: tl.constexpr):
    TILE: tl.constexpr = codes.shape[0]
    if BITS == 4:
        low, high = tl.split(tl.reshape(codes, (TILE // 2, 2)))
        byte = tl.arange(0, TILE // 2)
        tl.store(pointer + byte, (low | high << 4).to(tl.uint8), mask=byte < size // 8 * 4)
    else:
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
    return values.to(tl.float32) if FLOAT else values


@triton.jit
def _over(a, b):
    """The nearest to a / b, for results that are neither huge nor tiny; `div_rn` would keep a branch for those."""
    b = b * 0.0625  # the reciprocal of the largest numbers is not a normal one
    inverse = 1.0 / b
    inverse = tl.fma(tl.fma(-b, inverse, 1.0), inverse, inverse)
    quotient = a * inverse
    quotient = tl.fma(tl.fma(-b, quotient, a), inverse, quotient)
    return tl.fma(tl.fma(-b, quotient, a), inverse, quotient) * 0.0625


@triton.jit
def _half_over(size):
    """0.5 / size, which for a power of two only has another exponent."""
    return (0x7E800000 - size.to(tl.float32).to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def _hadamard(x, STAGES: tl.constexpr):
    """√d H x, smallest stride first; threads load four neighbours, and have 2^STAGES values."""
    x = _stages(x, 0, 2)
    for first in tl.static_range(2, 15, STAGES):
        x = _stages(x, first, first + STAGES)
    return x


@triton.jit
def _stages(x, FIRST: tl.constexpr, LAST: tl.constexpr):
    TILE: tl.constexpr = x.shape[0]
    STRIDE: tl.constexpr = 1 << FIRST
    COUNT: tl.constexpr = min(1 << (LAST - FIRST), TILE // STRIDE)
    if COUNT > 1:
        shape: tl.constexpr = (TILE // (STRIDE * COUNT), COUNT, STRIDE)
        x = tl.reshape(tl.permute(tl.reshape(x, shape), (1, 0, 2)), (COUNT, TILE // COUNT))
        for stage in tl.static_range(LAST - FIRST):
            if (2 << stage) <= COUNT:
                x = _butterflies(x, 1 << stage)
        x = tl.permute(tl.reshape(x, (COUNT, TILE // (STRIDE * COUNT), STRIDE)), (1, 0, 2))
    return tl.reshape(x, (TILE,))


@triton.jit
def _butterflies(x, STRIDE: tl.constexpr):
    """Sums and differences of the rows that are `STRIDE` apart."""
    ROWS: tl.constexpr = x.shape[0]
    REST: tl.constexpr = x.shape[1]
    shape: tl.constexpr = (ROWS // (2 * STRIDE), 2, STRIDE, REST)
    left, right = tl.split(tl.permute(tl.reshape(x, shape), (0, 2, 3, 1)))
    return tl.reshape(tl.permute(tl.join(left + right, left - right), (0, 3, 1, 2)), (ROWS, REST))
