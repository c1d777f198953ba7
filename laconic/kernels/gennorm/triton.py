"""GenNorm's kernels in Triton, with the reference's bits; launch.py has their order.

Parts begin anywhere, tiles at multiples of 16 coordinates, so that all but a part's first and last are whole. What
the tables have in a line, and `_tile` and `_scale` read:

    tile     its part; a 16th of where it begins; how far that is from where the part begins, and from where it ends
    scale    of a part: s and, 2^32 times, 1/s, both as bits of floats; where its symbols begin, or -1 for none
    item     blocks of a part that are counted: the part, which of its counted blocks is the first, how many of these
             there are in all, and the part's coordinates

Levels are numbered from zero outwards. A float's bits, less those behind the mantissa, number them from the smallest
normal one on; below it, adding 2^23 steps rounds to steps, ties to even here and there.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803, N806 (capitals are a kernel's constants)

import triton
import triton.language as tl


@triton.jit
def moments(grad, old, memory, tiles, sums, TILE: tl.constexpr):
    """The sums of |t| and t² over a tile."""
    _, base, before, behind = _tile(tiles)
    exact = _exact(grad, old, memory, base, before, behind, TILE).to(tl.float64)
    sums += tl.program_id(0) * 2
    tl.store(sums, tl.sum(tl.abs(exact)))
    tl.store(sums + 1, tl.sum(exact * exact))


@triton.jit
def total(sums, spans, moments, BLOCK: tl.constexpr):
    """Of both sums the sum over a part's tiles, always in the same order."""
    part, inside = tl.program_id(0), tl.arange(0, BLOCK)
    first, last = tl.load(spans + part * 2), tl.load(spans + part * 2 + 1)
    magnitudes, squares = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for at in range(first, last, BLOCK):
        magnitudes += tl.load(sums + (at + inside) * 2, mask=at + inside < last, other=0.0)
        squares += tl.load(sums + (at + inside) * 2 + 1, mask=at + inside < last, other=0.0)
    tl.store(moments + part * 2, tl.sum(magnitudes))
    tl.store(moments + part * 2 + 1, tl.sum(squares))


@triton.jit
def quantize(
    grad,
    old,
    memory,
    tiles,
    scales,
    new,
    symbols,
    told,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    ZERO: tl.constexpr,
    TILE: tl.constexpr,
):
    """The symbols of a tile, and what they leave of it; 1 tells that something is not finite."""
    part, base, before, behind = _tile(tiles)
    scale, inverse, place = _scale(scales, part)
    exact = _exact(grad, old, memory, base, before, behind, TILE)
    code, level = _nearest(exact * scale, MANTISSA, BIAS, ZERO)
    left, code = exact - level * inverse, code.to(tl.uint8)
    half_gap: tl.constexpr = 125 + ((ZERO + 1) >> MANTISSA) - BIAS - MANTISSA
    most = _float(tl.full((), half_gap << 23, tl.int32)) * inverse
    left = tl.where(inverse > 0, tl.minimum(tl.maximum(left, -most), most), left)
    inside, at = tl.arange(0, TILE), place + before
    there, whole = (inside >= -before) & (inside < behind), (before >= 0) & (behind >= TILE)
    bad = (exact.to(tl.int32, bitcast=True) & 0x7FFFFFFF) >= 0x7F800000
    tl.store(told + inside * 0, 1, mask=bad)
    if new is not None:
        if whole:
            tl.store(new + base + inside, left)
        else:
            tl.store(new + base + inside, left, mask=there)
    if place >= 0:
        if whole & (at % 4 == 0):
            tl.store(symbols + tl.multiple_of(at, 4) + inside, code)
        else:
            tl.store(symbols + at + inside, code, mask=there)


@triton.jit
def count(
    items, scales, sample, symbols, counts, BINS: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr
):
    """How often each level occurs in a few blocks is added to the part's counts; `sample` is which blocks count."""
    items += tl.program_id(0) * 4
    part, first, blocks, numel = tl.load(items), tl.load(items + 1), tl.load(items + 2), tl.load(items + 3)
    _, _, place = _scale(scales, part)
    if place >= 0:
        index = first + tl.arange(0, BLOCKS)
        block = index
        if blocks * BLOCK < numel:
            block = tl.load(sample + index, mask=index < blocks, other=0)
        inside = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        there = (index < blocks)[:, None] & (inside < numel)
        code = tl.load(symbols + place + inside, mask=there, other=0).to(tl.int32)
        flat: tl.constexpr = (BLOCKS * BLOCK,)
        found = tl.histogram(tl.reshape(code, flat), BINS, mask=tl.reshape(there, flat))
        tl.atomic_add(counts + part * 256 + tl.arange(0, BINS), found, mask=found > 0, sem="relaxed")


@triton.jit(do_not_specialize=["parts", "messages"])
def average(
    symbols,
    tiles,
    scales,
    parts,
    messages,
    out,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    ZERO: tl.constexpr,
    TILE: tl.constexpr,
):
    """The mean of what all messages say of a tile; row k of `scales` has those of message k."""
    part, base, before, behind = _tile(tiles)
    inside = tl.arange(0, TILE)
    there, whole = (inside >= -before) & (inside < behind), (before >= 0) & (behind >= TILE)
    sum_ = tl.zeros((TILE,), tl.float32)
    for message in range(messages):
        _, inverse, place = _scale(scales, message * parts + part)
        at = place + before
        if whole & (place >= 0) & (at % 16 == 0):
            code = tl.load(symbols + tl.multiple_of(at, 16) + inside)
        else:
            said = (inside >= -before) & (inside < tl.where(place >= 0, behind, 0))
            code = tl.load(symbols + at + inside, mask=said, other=ZERO)
        sum_ += _level(code.to(tl.int32), MANTISSA, BIAS, ZERO) * inverse
    if messages > 1:
        sum_ = tl.div_rn(sum_, messages.to(tl.float32))
    if whole:
        tl.store(out + base + inside, sum_.to(out.dtype.element_ty))
    else:
        tl.store(out + base + inside, sum_.to(out.dtype.element_ty), mask=there)


@triton.jit
def _tile(tiles):
    tiles += tl.program_id(0) * 4
    return (
        tl.load(tiles),
        tl.load(tiles + 1).to(tl.int64) * 16,
        tl.load(tiles + 2),
        tl.load(tiles + 3),
    )


@triton.jit
def _scale(scales, row):
    both, place = tl.load(scales + row * 2), tl.load(scales + row * 2 + 1)
    return _float(both.to(tl.int32)), _float((both >> 32).to(tl.int32)), place


@triton.jit
def _float(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _exact(grad, old, memory, base, before, behind, TILE: tl.constexpr):
    """The exact values of a tile, 0 beyond its part."""
    inside = tl.arange(0, TILE)
    if (before >= 0) & (behind >= TILE):
        exact = tl.load(grad + base + inside).to(tl.float32)
        if old is not None:
            exact = tl.load(old + base + inside) * memory + exact
    else:
        there = (inside >= -before) & (inside < behind)
        exact = tl.load(grad + base + inside, mask=there, other=0.0).to(tl.float32)
        if old is not None:
            exact = tl.load(old + base + inside, mask=there, other=0.0) * memory + exact
    return exact


@triton.jit
def _nearest(scaled, MANTISSA: tl.constexpr, BIAS: tl.constexpr, ZERO: tl.constexpr):
    """The code of the level that is nearest to a value, and the level; zero has no sign."""
    SHIFT: tl.constexpr = 23 - MANTISSA
    BASE: tl.constexpr = (127 - BIAS) << MANTISSA
    STEPS: tl.constexpr = (151 - BIAS - MANTISSA) << 23  # the bits of 2^23 steps
    bits = scaled.to(tl.int32, bitcast=True)
    size = tl.minimum(bits & 0x7FFFFFFF, (ZERO + BASE) << SHIFT)
    rounded = (size + ((1 << (SHIFT - 1)) - 1) + ((size >> SHIFT) & 1)) >> SHIFT
    steps = _float(tl.full((), STEPS, tl.int32))
    stepped = _float(size) + steps
    small = size < (128 - BIAS) << 23
    number = tl.where(small, stepped.to(tl.int32, bitcast=True) - STEPS, rounded - BASE)
    level = tl.where(small, stepped - steps, _float(rounded << SHIFT))
    return (
        ZERO + tl.where(bits < 0, -number, number),
        tl.where((bits < 0) & (number > 0), -level, level),
    )


@triton.jit
def _level(code, MANTISSA: tl.constexpr, BIAS: tl.constexpr, ZERO: tl.constexpr):
    """The level of a code."""
    SHIFT: tl.constexpr = 23 - MANTISSA
    BASE: tl.constexpr = (127 - BIAS) << MANTISSA
    step = _float(tl.full((), (128 - BIAS - MANTISSA) << 23, tl.int32))
    number = tl.abs(code - ZERO)
    bits = (number + BASE) << SHIFT
    level = tl.where(bits < (128 - BIAS) << 23, number.to(tl.float32) * step, _float(bits))
    return tl.where(code < ZERO, -level, level)
