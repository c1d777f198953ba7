"""THC's combine in Triton: looks packed codes up and adds what the table says, in packed lanes."""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 (capitals are a kernel's constants)

import triton
import triton.language as tl


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
