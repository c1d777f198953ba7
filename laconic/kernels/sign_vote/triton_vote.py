"""SignVote's messages, read in Triton, and the vote; launch.py has the order of the kernels.

Programs have chunks of a message's bytes. The one of gap j stands in the unary part where j ones are before it, and
so many zeros as all gaps' high parts so far; so ones and low parts are added up (`weigh`, `scan`), and every one
knows its place (`speak`, and `rest` where places are of those that do not speak). Then sums decide (`decide`,
`elect`).

What the table has in a line, and `_message` reads:

    message  where it begins, length, coordinates, the first of them, room for its places, or -1; then what it says:
             form, b, places, where low parts and unary part begin; and the bytes of its longest part with programs

Numbers stand for themselves here, as every global constant of a kernel costs two microseconds a launch.
"""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 (capitals are a kernel's constants)

import triton
import triton.language as tl

from laconic.kernels.sign_vote.triton_pack import unlisted
from laconic.kernels.triton_hash import hashed
from laconic.numerics import ternary


@triton.jit
def read(flat, table, status):
    """What a message's header says, and whether it is good (0), lost (1), or cannot be (2)."""
    row = table + tl.program_id(0) * 12
    offset, length, numel, slot = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 4)
    first = tl.load(flat + offset, mask=length >= ternary.HEADER, other=255).to(tl.int64)
    count = tl.full((), 0, tl.int64)
    for byte in tl.static_range(4):
        count |= (
            tl.load(flat + offset + 1 + byte, mask=length >= ternary.HEADER, other=0).to(tl.int64) << 8 * byte
        )
    form, b, body, end = first >> 5, first & 31, length - ternary.HEADER, offset + length
    others = tl.where(form == ternary.VOTES, count, numel - count)
    lows = offset + ternary.HEADER + (others + 7) // 8
    highs = lows + (count * b + 7) // 8
    fits = (count <= numel) & (b < 31) & (highs <= end) & (body <= (numel + 4) // 5)
    listed = (form == ternary.VOTES) | ((form == ternary.REST) & (slot >= 0))
    trits = (form == ternary.TRITS) & (b == 0) & (count == 0) & (body == (numel + 4) // 5)
    lost = (body == 0) & (form == ternary.LOST) & (b == 0) & (count == 0)
    good = (listed & fits) | trits
    span = tl.where(form == ternary.TRITS, body, tl.maximum(end - highs, count // 8))
    span = tl.where(form == ternary.REST, tl.maximum(span, others // 8), span)
    tl.store(status + tl.program_id(0), tl.where(lost, 1, tl.where(good, 0, 2)).to(tl.int64))
    tl.store(row + 5, form)
    tl.store(row + 6, b)
    tl.store(row + 7, count)
    tl.store(row + 8, lows)
    tl.store(row + 9, highs)
    tl.store(row + 10, tl.where(good, span, 0))


@triton.jit(do_not_specialize=["rows"])
def weigh(flat, table, status, before, rows, ROWS: tl.constexpr, BYTES: tl.constexpr):
    """The ones in a chunk of the unary part, and the sum of as many low parts as it has bits."""
    message, chunk, _, good = _item(table, status, rows, ROWS, BYTES)
    ones, sums = tl.full((), 0, tl.int64), tl.full((), 0, tl.int64)
    if good:
        offset, length, _, _, _, form, b, listed, lows, highs, _ = _message(table, message)
        if form != ternary.TRITS:
            ones = tl.sum(_unary(flat, highs, offset + length, chunk, BYTES)).to(tl.int64)
            first, index = chunk * (8 * BYTES), tl.arange(0, 8 * BYTES)
            if first < listed:
                there = index < tl.minimum(listed - first, 8 * BYTES).to(tl.int32)
                sums = tl.sum(_low(flat + lows, b, first, index, there).to(tl.int64))
    tl.store(before + tl.program_id(0), ones)
    tl.store(before + tl.num_programs(0) + 1 + tl.program_id(0), sums)


@triton.jit(do_not_specialize=["rows"])
def speak(
    flat,
    table,
    status,
    before,
    places,
    target,
    weights,
    counts,
    rows,
    ROWS: tl.constexpr,
    BYTES: tl.constexpr,
    MODE: tl.constexpr,
):
    """The votes in a chunk of a message are used, or its places listed where they are those of the rest.

    Places are below 2^30, or the message is damaged and they do not matter.
    """
    message, chunk, first, good = _item(table, status, rows, ROWS, BYTES)
    if good:
        offset, length, numel, base, slot, form, b, listed, lows, highs, _ = _message(table, message)
        if form == ternary.TRITS:
            body = flat + offset + ternary.HEADER
            left = length - ternary.HEADER - chunk * BYTES
            if _trits(body, chunk, left, numel, message, base, target, weights, counts, BYTES, MODE) > 0:
                tl.store(status + message, 2)
        else:
            before += first
            one, index = _unary(flat, highs, offset + length, chunk, BYTES), tl.arange(0, 8 * BYTES)
            if tl.sum(one) > 0:
                ones = tl.load(before + chunk) - tl.load(before)
                rank = tl.cumsum(one) - one
                here = (one > 0) & (rank < tl.minimum(listed - ones, 8 * BYTES).to(tl.int32))
                start = ((chunk * (8 * BYTES) - ones) << b) + ones
                start += _lows(
                    flat + lows, before + tl.num_programs(0) + 1, b, tl.minimum(ones, listed), BYTES
                )
                place = start.to(tl.int32) + ((index - rank) << b.to(tl.int32)) + rank
                place += tl.cumsum(_low(flat + lows, b, ones, rank, here))
                here &= (place >= 0) & (place < numel)
                if form == ternary.REST:
                    tl.store(places + slot + ones + rank, 2 * place, mask=here)
                else:
                    negative = _bit(flat + offset + ternary.HEADER, ones + rank, here)
                    _use(place, negative, here, message, base, target, weights, counts, MODE)
            if chunk == 0:
                damaged = _is_damaged(flat, table, message, before, BYTES)
                tl.store(status + message, 2, mask=damaged)


@triton.jit(do_not_specialize=["rows"])
def rest(
    flat,
    table,
    status,
    places,
    target,
    weights,
    counts,
    rows,
    ROWS: tl.constexpr,
    BYTES: tl.constexpr,
    MODE: tl.constexpr,
):
    """The votes of a message that lists the rest are used: before its vote i, i coordinates are not listed."""
    message, chunk, _, good = _item(table, status, rows, ROWS, BYTES)
    if good:
        offset, _, numel, base, slot, form, _, listed, _, _, _ = _message(table, message)
        if form == ternary.REST:
            index = chunk.to(tl.int32) * (8 * BYTES) + tl.arange(0, 8 * BYTES)
            there = index < numel - listed
            place = unlisted(places + slot, listed.to(tl.int32), 0, index)
            negative = _bit(flat + offset + ternary.HEADER, index, there)
            _use(place, negative, there, message, base, target, weights, counts, MODE)


@triton.jit
def _message(table, message):
    table += message * 12
    return (
        tl.load(table),
        tl.load(table + 1),
        tl.load(table + 2),
        tl.load(table + 3),
        tl.load(table + 4),
        tl.load(table + 5),
        tl.load(table + 6),
        tl.load(table + 7),
        tl.load(table + 8),
        tl.load(table + 9),
        tl.load(table + 10),
    )


@triton.jit
def _item(table, status, rows, ROWS: tl.constexpr, BYTES: tl.constexpr):
    """The program's message, its number there, the message's first program, and whether it is a good message."""
    index = tl.arange(0, ROWS)
    items = tl.load(table + index * 12 + 10, mask=index < rows, other=0) // BYTES + 1
    items = tl.where(index < rows, items, 0)
    message = tl.sum((tl.cumsum(items) <= tl.program_id(0)).to(tl.int32))
    first = tl.sum(tl.where(index < message, items, 0))
    good = tl.load(status + message, mask=message < rows, other=2) == 0
    return message, tl.program_id(0) - first, first, good


@triton.jit
def _unary(flat, highs, end, chunk, BYTES: tl.constexpr):
    """Bits of the unary part, and zeros behind it."""
    highs, index = highs + chunk * BYTES, tl.arange(0, 8 * BYTES)
    left = tl.maximum(0, tl.minimum(BYTES, end - highs)).to(tl.int32)
    return _bit(flat + highs, index, index < 8 * left)


@triton.jit
def _bit(pointer, index, there):
    byte = tl.load(pointer + (index >> 3), mask=there, other=0).to(tl.int32)
    return (byte >> (index & 7).to(tl.int32)) & 1


@triton.jit
def _low(lows, b, first, index, there):
    """The low parts of gaps, counted from gap `first`, or 0; they are in up to five bytes."""
    lows, shift, b = lows + (first * b >> 3), (first * b & 7).to(tl.int32), b.to(tl.int32)
    bit = shift + index * b
    value = tl.load(lows + (bit >> 3), mask=there & (bit < bit + b), other=0).to(tl.int32) >> (bit & 7)
    for more in range(1, (b + 14) // 8):
        byte = (bit >> 3) + more
        part = tl.load(lows + byte, mask=there & (byte * 8 < bit + b), other=0).to(tl.int32)
        value |= part << (8 * more - (bit & 7))
    return value & ((1 << b) - 1)


@triton.jit
def _lows(lows, before, b, count, BYTES: tl.constexpr):
    """The sum of the first `count` low parts."""
    full, index = count // (8 * BYTES), tl.arange(0, 8 * BYTES)
    some = _low(lows, b, full * (8 * BYTES), index, index < (count - full * (8 * BYTES)).to(tl.int32))
    return tl.load(before + full) - tl.load(before) + tl.sum(some)


@triton.jit
def _is_damaged(flat, table, message, before, BYTES: tl.constexpr):
    """Whether the unary part has other than the listed ones, or does not end with one, or not soon enough."""
    offset, length, numel, _, _, _, b, listed, _, highs, span = _message(table, message)
    ones = tl.load(before + span // BYTES + 1) - tl.load(before)
    before += tl.num_programs(0) + 1
    sums = tl.load(before + span // BYTES + 1) - tl.load(before)
    end = offset + length
    last = tl.load(flat + end - 1, mask=highs < end, other=1).to(tl.int32)
    bit = (end - 1 - highs) * 8
    for more in tl.static_range(1, 8):
        bit += (last >> more > 0).to(tl.int64)
    place = ((bit - ones + 1) << b) + sums + ones - 1
    return (ones != listed) | (last == 0) | ((ones > 0) & (place >= numel))


@triton.jit
def _trits(
    body, chunk, left, numel, message, base, target, weights, counts, BYTES: tl.constexpr, MODE: tl.constexpr
):
    """How many bytes of a chunk are no five trits of coordinates that there are; the others' votes are used."""
    first, index = chunk * BYTES, tl.arange(0, BYTES)
    byte = tl.load(body + first + index, mask=index < left, other=0).to(tl.int32)
    wrong = byte > 242
    for digit in tl.static_range(5):
        trit, place = byte % 3, 5 * (first + index) + digit
        inside = (trit > 0) & (place < numel)
        _use(place, trit - 1, inside, message, base, target, weights, counts, MODE)
        wrong |= (trit > 0) & ~inside
        byte = byte // 3
    return tl.sum(wrong.to(tl.int32))


@triton.jit
def _use(place, negative, there, message, base, target, weights, counts, MODE: tl.constexpr):
    """Votes are stored; or weighed and added, 2^10 times and 1 more; or compared with the sum of the others."""
    sign = 1 - 2 * negative
    if MODE == "store":
        tl.store(target + base + place, sign.to(tl.float32), mask=there)
    else:
        mine = tl.load(weights + message).to(tl.int32) * sign
        if MODE == "add":
            tl.atomic_add(target + place, (mine << 10) + 1, mask=there, sem="relaxed")
        else:
            others = (tl.load(target + place, mask=there, other=0) >> 10) - mine
            met, against = there & (others != 0), there & (others * sign < 0)
            counts += 4 + 2 * message
            tl.atomic_add(counts, tl.sum(met.to(tl.int64)), sem="relaxed")
            tl.atomic_add(counts + 1, tl.sum(against.to(tl.int64)), sem="relaxed")


@triton.jit(do_not_specialize=["rows"])
def decide(total, coins, rows, counts, decided, TILE: tl.constexpr):
    """The first four counts of a tile are added, and how many are decided."""
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    packed = tl.load(total + place)
    voters, direction = packed & 1023, _direction(packed, place, coins, rows)
    many = tl.sum((direction != 0).to(tl.int64))
    tl.store(decided + tl.program_id(0), many)
    tl.atomic_add(counts, tl.sum(voters).to(tl.int64), sem="relaxed")
    tl.atomic_add(counts + 1, tl.sum((voters > 0).to(tl.int64)), sem="relaxed")
    tied = (voters > 0) & (packed >> 10 == 0)
    tl.atomic_add(counts + 2, tl.sum(tied.to(tl.int64)), sem="relaxed")
    tl.atomic_add(counts + 3, many, sem="relaxed")


@triton.jit(do_not_specialize=["rows"])
def elect(total, coins, rows, before, votes, ends, TILE: tl.constexpr):
    """`votes` are the decided ones, all in one shard."""
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    direction = _direction(tl.load(total + place), place, coins, rows)
    here = direction != 0
    slot = tl.load(before + tl.program_id(0)) + tl.cumsum(here.to(tl.int32)) - 1
    tl.store(votes + slot, 2 * place + (direction < 0).to(tl.int32), mask=here)
    if tl.program_id(0) == 0:
        tl.store(ends, tl.load(before + tl.num_programs(0)).to(tl.int32))


@triton.jit
def _direction(packed, place, coins, rows):
    """1, -1, or 0; ties are 0, or what their coins say."""
    total = packed >> 10
    direction = (total > 0).to(tl.int32) - (total < 0).to(tl.int32)
    if coins is not None:
        tied = (packed & 1023 > 0) & (total == 0)
        if tl.sum(tied.to(tl.int32)) > 0:
            direction = tl.where(tied, _tossed(coins, rows, place, tied), direction)
    return direction


@triton.jit
def _tossed(coins, rows, place, tied):
    """The signs of the last rows that do not start behind the places."""
    low, high, span = tl.zeros(place.shape, tl.int32), tl.zeros(place.shape, tl.int32) + rows, rows
    while span > 0:
        middle = (low + high) >> 1
        behind = tl.load(coins + middle * 3, mask=tied & (low < high), other=0) > place
        low = tl.where((low < high) & ~behind, middle + 1, low)
        high = tl.where((low < high) & behind, middle, high)
        span >>= 1
    coins += (low - 1) * 3
    number = place - tl.load(coins, mask=tied) + tl.load(coins + 1, mask=tied)
    word = hashed((tl.load(coins + 2, mask=tied) + (number >> 5)).to(tl.uint32))
    return 1 - 2 * ((word >> (number & 31).to(tl.uint32)) & 1).to(tl.int32)
