"""SignVote's selection in Triton, with the reference's bits; launch.py has the order of the kernels.

A sample of a row gives a bar that a few more than `keep` magnitudes reach (`guess`). One pass makes the sums and
marks what reaches it (`take`); that is listed, group by group of coordinates (`gather`). Of this list the threshold
is found: in registers, or byte by byte (`level`, `settle`). Then every group knows how many of its own are chosen
(`tally`), where they go (`scan`), and puts them there (`cast`). Magnitudes are compared as integers.

What the tables have in a line, and `_row` and `_group` read:

    row      start, coordinates, keep; where its candidates are, and room for how many; the rank of its bar in a
             sample, or 0; the number of its histograms, or -1; its first group
    state    of a row: its bar, candidates, threshold, and how many of those at the threshold are chosen
    group    its row; a 32nd of a place before it, and between which places from there on it is

Numbers stand for themselves here, as every global constant of a kernel costs two microseconds a launch.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 (capitals are a kernel's constants)

import triton
import triton.language as tl

from laconic.kernels.triton_hash import hashed


@triton.jit
def guess(grad, old, memory, rows, state, SAMPLE: tl.constexpr):
    """The bar of a row: a magnitude of its sample."""
    row = tl.program_id(0)
    start, numel, _, _, _, rank, _, _ = _row(rows, row)
    if rank > 0:
        index, stride = tl.arange(0, SAMPLE), numel // SAMPLE
        inside = (hashed(index.to(tl.uint32)) % stride.to(tl.uint32)).to(tl.int32)
        exact = _exact(grad, old, memory, start + index * stride + inside, None)
        tl.store(state + row * 4, _largest(_magnitude(exact), rank))


@triton.jit
def take(grad, old, memory, new, groups, state, marks, GROUP: tl.constexpr, TILE: tl.constexpr):
    """`new` is the sums of a tile, and a bit of `marks` tells which of them reach the row's bar."""
    group, tile = tl.program_id(0) // (GROUP // TILE), tl.program_id(0) % (GROUP // TILE)
    row, base, low, high = _group(groups, group)
    low, high = low - tile * TILE, high - tile * TILE
    if high > 0:
        inside = tl.arange(0, TILE)
        places, there = base + tile * TILE + inside, (inside >= low) & (inside < high)
        if (low <= 0) & (high >= TILE):
            exact = _exact(grad, old, memory, places, None)
            if new is not None:
                tl.store(new + places, exact)
        else:
            exact = _exact(grad, old, memory, places, there)
            if new is not None:
                tl.store(new + places, exact, mask=there)
        mark = there & (_magnitude(exact) >= tl.maximum(tl.load(state + row * 4), 1))
        bits = tl.reshape(mark.to(tl.int32), (TILE // 32, 32)) << tl.arange(0, 32)[None, :]
        tl.store(marks + tl.program_id(0) * (TILE // 32) + tl.arange(0, TILE // 32), tl.sum(bits, 1))


@triton.jit
def gather(
    grad, old, memory, new, groups, rows, state, told, marks, magnitudes, votes, segments, GROUP: tl.constexpr
):
    """The marked coordinates of a group are its segment of the row's candidates; 1 tells that one is not finite."""
    group, word = tl.program_id(0), tl.arange(0, GROUP // 32)
    row, base, _, high = _group(groups, group)
    _, _, _, start, room, _, _, _ = _row(rows, row)
    left = tl.load(marks + group * (GROUP // 32) + word, mask=word * 32 < high, other=0)
    many = _ones_in(left)
    count = tl.sum(many)
    at = tl.atomic_add(state + row * 4 + 1, count, sem="relaxed")
    count = tl.where(at + count <= room, count, 0)
    at += start
    tl.store(segments + group * 2, at)
    tl.store(segments + group * 2 + 1, count)
    slot, largest = at + tl.cumsum(many) - many, tl.zeros(word.shape, tl.int32)
    for _ in range(tl.max(many)):
        places = base + word * 32 + _ones_in((left & -left) - 1)
        if new is not None:
            exact = tl.load(new + places, mask=left != 0, other=0.0)
        else:
            exact = _exact(grad, old, memory, places, left != 0)
        magnitude = tl.where(left != 0, _magnitude(exact), 0)
        largest = tl.maximum(largest, magnitude)
        listed = (left != 0) & (slot < at + count)
        tl.store(magnitudes + slot, magnitude, mask=listed)
        tl.store(votes + slot, 2 * places + _negative(exact), mask=listed)
        left, slot = left & (left - 1), slot + 1
    if tl.max(largest) >= 0x7F800000:
        tl.atomic_or(told, 1, sem="relaxed")


@triton.jit
def level(parts, rows, state, magnitudes, histograms, LEVEL: tl.constexpr, PART: tl.constexpr):
    """Counts of a part of the candidates by their next byte, of those whose higher bytes are the threshold's."""
    row, first = tl.load(parts + tl.program_id(0) * 2), tl.load(parts + tl.program_id(0) * 2 + 1) * PART
    _, _, keep, at, room, _, large, _ = _row(rows, row)
    count = tl.load(state + row * 4 + 1)
    if (first < count) & (count <= room):
        inside = first + tl.arange(0, PART)
        value = tl.load(magnitudes + at + inside, mask=inside < count, other=-1)
        bins = histograms + large * 1024
        higher, _ = _bytes(bins, keep, LEVEL)
        byte = value >> 24 - 8 * LEVEL
        counts = tl.histogram(byte & 255, 256, mask=byte >> 8 == higher)
        tl.atomic_add(bins + 256 * LEVEL + tl.arange(0, 256), counts, mask=counts > 0, sem="relaxed")


@triton.jit
def settle(rows, state, magnitudes, histograms, told, CHUNK: tl.constexpr):
    """A row's threshold, and how many of those at it are chosen; 2 tells of no room, or a bar that is too high."""
    row = tl.program_id(0)
    _, _, keep, at, room, _, large, _ = _row(rows, row)
    bar, count = tl.load(state + row * 4), tl.load(state + row * 4 + 1)
    if (count > room) | ((count < keep) & (bar > 1)):
        tl.atomic_or(told, 2, sem="relaxed")
    if count > room:
        tl.store(state + row * 4 + 2, 0x7FFFFFFF)  # or more than `keep` would be chosen
    elif count > keep:
        if large >= 0:
            threshold, quota = _bytes(histograms + large * 1024, keep, 4)
        else:
            inside = tl.arange(0, CHUNK)
            value = tl.load(magnitudes + at + inside, mask=inside < count, other=0)
            threshold = _largest(value, keep)
            quota = keep - tl.sum((value > threshold).to(tl.int32))
        tl.store(state + row * 4 + 2, threshold)
        tl.store(state + row * 4 + 3, quota)


@triton.jit
def tally(groups, rows, state, magnitudes, segments, counts, BLOCK: tl.constexpr):
    """How many candidates of a group are above the threshold and, 2^32 times, at it; and all chosen of a row."""
    group, inside = tl.program_id(0), tl.arange(0, BLOCK)
    row, at, size = (
        tl.load(groups + group * 4),
        tl.load(segments + group * 2),
        tl.load(segments + group * 2 + 1),
    )
    _, _, keep, _, _, _, _, first_group = _row(rows, row)
    threshold = tl.load(state + row * 4 + 2)
    above, equal = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.int32)
    for first in range(0, size, BLOCK):
        value = tl.load(magnitudes + at + first + inside, mask=first + inside < size, other=-1)
        above += (value > threshold).to(tl.int32)
        equal += (value == threshold).to(tl.int32)
    tl.store(counts + group, tl.sum(above).to(tl.int64) | tl.sum(equal).to(tl.int64) << 32)
    chosen = tl.where(group == first_group, tl.minimum(tl.load(state + row * 4 + 1), keep), 0)
    tl.store(counts + tl.num_programs(0) + 1 + group, chosen.to(tl.int64))


@triton.jit(do_not_specialize=["length"])
def scan(values, length, told, BLOCK: tl.constexpr):
    """Of both lines of values, each is the sum of those before it; behind them is the sum of all, to be told too."""
    values += tl.program_id(0) * (length + 1)
    before = tl.full((), 0, tl.int64)
    for first in range(0, length, BLOCK):
        index = first + tl.arange(0, BLOCK)
        value = tl.load(values + index, mask=index < length, other=0)
        tl.store(values + index, before + tl.cumsum(value) - value, mask=index < length)
        before += tl.sum(value)
    tl.store(values + length, before)
    if told is not None:
        tl.store(told + 1, before.to(tl.int32), mask=tl.program_id(0) == 1)


@triton.jit
def cast(groups, rows, state, magnitudes, votes, segments, counts, new, chosen, BLOCK: tl.constexpr):
    """The group's chosen votes stand behind those of all groups before; `new` is 0 there."""
    group, inside = tl.program_id(0), tl.arange(0, BLOCK)
    row, at, size = (
        tl.load(groups + group * 4),
        tl.load(segments + group * 2),
        tl.load(segments + group * 2 + 1),
    )
    _, _, _, _, _, _, _, first_group = _row(rows, row)
    threshold, quota = tl.load(state + row * 4 + 2), tl.load(state + row * 4 + 3)
    before = tl.load(counts + group) - tl.load(counts + first_group)
    above, equal = (before & 0xFFFFFFFF).to(tl.int32), (before >> 32).to(tl.int32)
    chosen += tl.load(counts + tl.num_programs(0) + 1 + first_group)
    for first in range(0, size, BLOCK):
        there = first + inside < size
        value = tl.load(magnitudes + at + first + inside, mask=there, other=-1)
        vote = tl.load(votes + at + first + inside, mask=there, other=0)
        is_above, is_equal = (value > threshold).to(tl.int32), (value == threshold).to(tl.int32)
        above_until, equal_until = above + tl.cumsum(is_above), equal + tl.cumsum(is_equal)
        speaks = (is_above > 0) | ((is_equal > 0) & (equal_until <= quota))
        tl.store(chosen + above_until + tl.minimum(equal_until, quota) - 1, vote, mask=speaks)
        if new is not None:
            tl.store(new + (vote >> 1), 0.0, mask=speaks)
        above += tl.sum(is_above)
        equal += tl.sum(is_equal)


@triton.jit
def _row(rows, row):
    rows += row * 8
    return (
        tl.load(rows),
        tl.load(rows + 1),
        tl.load(rows + 2),
        tl.load(rows + 3),
        tl.load(rows + 4),
        tl.load(rows + 5),
        tl.load(rows + 6),
        tl.load(rows + 7),
    )


@triton.jit
def _group(groups, group):
    groups += group * 4
    return tl.load(groups), tl.load(groups + 1) * 32, tl.load(groups + 2), tl.load(groups + 3)


@triton.jit
def _exact(grad, old, memory, places, there):
    exact = tl.load(grad + places, mask=there).to(tl.float32)
    if old is not None:
        exact = tl.load(old + places, mask=there) * memory + exact
    return exact


@triton.jit
def _magnitude(exact):
    return exact.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _negative(exact):
    return (exact.to(tl.int32, bitcast=True) >> 31) & 1


@triton.jit
def _ones_in(word):
    """The number of ones in words of 32 bits."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24) & 255


@triton.jit
def _largest(value, rank):
    """The largest number that so many values reach, two bits of it at a time; less than 2^20 values."""
    reached = 0
    for step in range(15):
        one = 1 << (29 - 2 * step)
        counts = (value >= reached + one).to(tl.int64) + ((value >= reached + 2 * one).to(tl.int64) << 20)
        counts = tl.sum(counts + ((value >= reached + 3 * one).to(tl.int64) << 40))
        for more in tl.static_range(3):
            reached += tl.where(((counts >> 20 * more) & 0xFFFFF) >= rank, one, 0)
    return reached + (tl.sum((value > reached).to(tl.int32)) >= rank).to(tl.int32)


@triton.jit
def _bytes(bins, left, COUNT: tl.constexpr):
    """The first bytes of the number that is number `left` from above, and its number among those that begin so."""
    number, index = 0, tl.arange(0, 256)
    for byte in tl.static_range(COUNT):
        counts = tl.load(bins + 256 * byte + index)
        above = tl.sum(counts) - tl.cumsum(counts)
        here = (above < left) & (above + counts >= left)
        number = number << 8 | tl.sum(tl.where(here, index, 0))
        left -= tl.sum(tl.where(here, above, 0))
    return number, left
