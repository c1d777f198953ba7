"""SignVote's messages, written in Triton with the reference's bits; launch.py has the order of the kernels.

Programs have chunks of a shard's votes. Sums of gaps for every b (`measure`) give b and where a chunk's bits begin
(`choose`), and then all bits have their places (`write`).
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803, N806 (capitals are a kernel's constants, and its branches are the compiler's)

import triton
import triton.language as tl

from laconic.numerics import ternary


@triton.jit(do_not_specialize=["count", "numel", "width", "stride", "most", "rows"])
def measure(
    votes,
    count,
    numel,
    width,
    ends,
    sums,
    messages,
    stride,
    most,
    rows,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    PROBES: tl.constexpr,
):
    """Of a chunk's gaps, for every b, the sum of what b + 1 saves of the unary part; its share of messages is 0.

    `ends` are the votes until the end of each shard: given, or of `count` in all.
    """
    if count is not None:
        until = _search(votes, count, numel, width, ROWS, PROBES)
        tl.store(ends + tl.arange(0, ROWS), until, mask=tl.arange(0, ROWS) < rows)
    else:
        until = tl.load(ends + tl.arange(0, ROWS), mask=tl.arange(0, ROWS) < rows, other=0)
    shard, chunk, first, many, base, size = _chunk(until, numel, width, rows, CHUNK)
    if shard < rows:
        gap = _gaps(votes + first, many, base, size, chunk * CHUNK + tl.arange(0, CHUNK))
        for b in range(31):
            tl.store(sums + tl.program_id(0) * 32 + b, tl.sum(((gap >> b) + 1) >> 1))
        share = most // (many // CHUNK + 1) + 1
        for at in range(0, share, CHUNK):
            byte = at + tl.arange(0, CHUNK)
            inside = (byte < share) & (byte < most - chunk * share)
            tl.store(messages + shard.to(tl.int64) * stride + chunk * share + byte, 0, mask=inside)


@triton.jit(do_not_specialize=["numel", "width", "stride", "rows"])
def choose(
    ends,
    forms,
    sums,
    numel,
    width,
    messages,
    stride,
    sizes,
    rows,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A shard's form and b, its message's size and header, and the unary bits before each of its chunks."""
    shard = tl.program_id(0)
    until = tl.load(ends + tl.arange(0, ROWS), mask=tl.arange(0, ROWS) < rows, other=0)
    votes, before, _, size = _shard(until, shard, numel, width)
    listed = tl.where(2 * votes > size, size - votes, votes)
    sums += (before // CHUNK + shard) * 32
    chunks = votes // CHUNK + 1
    total, unary = tl.zeros((32,), tl.int32), 0
    for at in range(0, chunks, BLOCK):
        total += tl.sum(_saved(sums, at, chunks, 0, BLOCK), 0)
    b = tl.sum((total > listed).to(tl.int32))
    for at in range(0, chunks, BLOCK):
        part = tl.sum(_saved(sums, at, chunks, b, BLOCK), 1)
        inside = at + tl.arange(0, BLOCK)
        tl.store(sums + inside * 32 + 31, unary + tl.cumsum(part) - part, mask=inside < chunks)
        unary += tl.sum(part)
    length = ternary.HEADER + (votes + 7) // 8 + (listed * b + 7) // 8 + (unary + listed + 7) // 8
    trits = ternary.HEADER + (size + 4) // 5
    form = tl.where(length > trits, ternary.TRITS, tl.where(2 * votes > size, ternary.REST, ternary.VOTES))
    b, listed = tl.where(length > trits, 0, b), tl.where(length > trits, 0, listed)
    tl.store(forms + shard * 2, form)
    tl.store(forms + shard * 2 + 1, b)
    tl.store(sizes + shard, tl.minimum(length, trits).to(tl.int64))
    row = messages + shard.to(tl.int64) * stride
    tl.store(row, (form * 32 + b).to(tl.uint8))
    for byte in tl.static_range(4):
        tl.store(row + 1 + byte, ((listed >> 8 * byte) & 255).to(tl.uint8))


@triton.jit(do_not_specialize=["numel", "width", "stride", "shift", "rows"])
def write(
    votes,
    ends,
    forms,
    sums,
    numel,
    width,
    messages,
    stride,
    shift,
    rows,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The bits of a chunk; `messages` begin `shift` bytes into a word of 32 bits."""
    until = tl.load(ends + tl.arange(0, ROWS), mask=tl.arange(0, ROWS) < rows, other=0)
    shard, chunk, first, count, base, size = _chunk(until, numel, width, rows, CHUNK)
    if shard < rows:
        form, b = tl.load(forms + shard * 2), tl.load(forms + shard * 2 + 1)
        byte, words = (
            shard.to(tl.int64) * stride + ternary.HEADER,
            (messages - shift).to(tl.pointer_type(tl.int32)),
        )
        index = chunk * CHUNK + tl.arange(0, CHUNK)
        vote = tl.load(votes + first + index, mask=index < count, other=0)
        if form == ternary.TRITS:
            place = (vote >> 1) - base
            bit = (byte + shift + place // 5) * 8
            trit = ((1 + (vote & 1)) * _power(place % 5)) << (bit & 31).to(tl.int32)
            tl.atomic_add(words + (bit >> 5), trit, mask=index < count, sem="relaxed")
        else:
            _signs(messages + byte + chunk * (CHUNK // 8), vote, count - chunk * CHUNK)
            gap = _gaps(votes + first, count, base, size, index)
            listed = tl.where(form == ternary.VOTES, count, size - count)
            byte += shift + (count + 7) // 8
            _or(words, byte * 8 + index * b, gap & ((1 << b) - 1), index < listed)
            byte += (listed * b + 7) // 8
            unary = tl.load(sums + tl.program_id(0) * 32 + 31) + tl.cumsum(gap >> b) + index
            _or(words, byte * 8 + unary, tl.full(index.shape, 1, tl.int32), index < listed)


@triton.jit
def _search(votes, count, numel, width, ROWS: tl.constexpr, PROBES: tl.constexpr):
    """How many votes there are until the end of each shard."""
    bound = 2 * tl.minimum((tl.arange(0, ROWS) + 1).to(tl.int64) * width, numel).to(tl.int32)
    low, high = tl.zeros((ROWS,), tl.int32), tl.zeros((ROWS,), tl.int32) + count
    while tl.max(high - low) > 0:
        step = (high - low) // PROBES + 1
        probe = low[:, None] + step[:, None] * (tl.arange(0, PROBES) + 1)[None, :] - 1
        inside = probe < high[:, None]
        below = inside & (tl.load(votes + probe, mask=inside, other=0) < bound[:, None])
        low += step * tl.sum(below.to(tl.int32), 1)
        high = tl.minimum(high, low + step - 1)
    return low


@triton.jit
def _chunk(until, numel, width, rows, CHUNK: tl.constexpr):
    """The program's shard, or a number beyond, its number there, the votes before, then as `_shard` has them.

    A shard has more programs than whole chunks, and all before it have as many as their votes and number say.
    """
    index = tl.arange(0, until.shape[0])
    programs = tl.where(index < rows, until // CHUNK + index + 1, 0x7FFFFFFF)
    shard = tl.sum((programs <= tl.program_id(0)).to(tl.int32))
    count, before, base, size = _shard(until, shard, numel, width)
    return shard, tl.program_id(0) - (before // CHUNK + shard), before, count, base, size


@triton.jit
def _shard(until, shard, numel, width):
    """A shard's votes, those before it, its first coordinate, and how many it has."""
    before, base = _pick(until, shard - 1), tl.minimum(shard.to(tl.int64) * width, numel).to(tl.int32)
    return _pick(until, shard) - before, before, base, tl.minimum(width, numel - base)


@triton.jit
def _pick(values, number):
    """The value of this number, or 0."""
    return tl.sum(tl.where(tl.arange(0, values.shape[0]) == number, values, 0))


@triton.jit
def _gaps(votes, count, base, size, index):
    """The gaps of these numbers, and 0 behind the last."""
    listed = count
    if 2 * count <= size:
        place = (tl.load(votes + index, mask=index < count, other=0) >> 1) - base
        before = (tl.load(votes + index - 1, mask=(index > 0) & (index <= count), other=0) >> 1) - base
        before = tl.where(index > 0, before, -1)
    else:
        listed = size - count
        place = unlisted(votes, count, base, index)
        before = unlisted(votes, count, base, index - 1)
    return tl.where(index < listed, place - before - 1, 0)


@triton.jit
def unlisted(votes, count, base, index):
    """Of the places that have no vote, those of these numbers: behind the votes before which there are fewer."""
    low, high, span = tl.zeros(index.shape, tl.int32), tl.zeros(index.shape, tl.int32) + count, count
    while span > 0:
        middle = (low + high) >> 1
        place = (tl.load(votes + middle, mask=low < high, other=0) >> 1) - base
        beyond = place - middle > index
        low = tl.where((low < high) & ~beyond, middle + 1, low)
        high = tl.where((low < high) & beyond, middle, high)
        span >>= 1
    return index + low


@triton.jit
def _saved(sums, at, chunks, b, BLOCK: tl.constexpr):
    inside, width = at + tl.arange(0, BLOCK)[:, None], tl.arange(0, 32)[None, :]
    return tl.load(sums + inside * 32 + width, mask=(inside < chunks) & (width >= b) & (width < 31), other=0)


@triton.jit
def _signs(pointer, vote, left):
    BYTES: tl.constexpr = vote.shape[0] // 8
    bits = tl.reshape(vote & 1, (BYTES, 8)) << tl.arange(0, 8)[None, :]
    byte = tl.arange(0, BYTES)
    tl.store(pointer + byte, tl.sum(bits, 1).to(tl.uint8), mask=byte * 8 < left)


@triton.jit
def _or(words, bit, value, there):
    """The words have the values' bits, from these bits on."""
    wide = value.to(tl.int64) << (bit & 31)
    low, high = wide.to(tl.int32), (wide >> 32).to(tl.int32)
    tl.atomic_or(words + (bit >> 5), low, mask=there & (low != 0), sem="relaxed")
    tl.atomic_or(words + (bit >> 5) + 1, high, mask=there & (high != 0), sem="relaxed")


@triton.jit
def _power(digit):
    """3 to the power of 0 to 4."""
    return tl.where(digit & 1 > 0, 3, 1) * tl.where(digit & 2 > 0, 9, 1) * tl.where(digit & 4 > 0, 81, 1)
