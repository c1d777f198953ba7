"""The Walsh-Hadamard butterflies in Triton."""

# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803, N806 (capitals are a kernel's constants)

import triton
import triton.language as tl


@triton.jit
def hadamard(x, STAGES: tl.constexpr):
    """√d H x, smallest stride first; threads load four neighbours, and have 2^STAGES values."""
    x = stages(x, 0, 2)
    for first in tl.static_range(2, 15, STAGES):
        x = stages(x, first, first + STAGES)
    return x


@triton.jit
def stages(x, FIRST: tl.constexpr, LAST: tl.constexpr, BIASED: tl.constexpr = False):
    """Butterflies of the strides from 2^FIRST to below 2^LAST; with 2^15 added to both halves if `BIASED`."""
    TILE: tl.constexpr = x.shape[0]
    STRIDE: tl.constexpr = 1 << FIRST
    COUNT: tl.constexpr = min(1 << (LAST - FIRST), TILE // STRIDE)
    if COUNT > 1:
        shape: tl.constexpr = (TILE // (STRIDE * COUNT), COUNT, STRIDE)
        x = tl.reshape(tl.permute(tl.reshape(x, shape), (1, 0, 2)), (COUNT, TILE // COUNT))
        if BIASED:
            x += tl.where(tl.arange(0, COUNT)[:, None] == 0, -0x7FFF8000, 0)
        for stage in tl.static_range(LAST - FIRST):
            if (2 << stage) <= COUNT:
                x = butterflies(x, 1 << stage)
        x = tl.permute(tl.reshape(x, (COUNT, TILE // (STRIDE * COUNT), STRIDE)), (1, 0, 2))
    return tl.reshape(x, (TILE,))


@triton.jit
def butterflies(x, STRIDE: tl.constexpr):
    """Sums and differences of the rows that are `STRIDE` apart."""
    ROWS: tl.constexpr = x.shape[0]
    REST: tl.constexpr = x.shape[1]
    shape: tl.constexpr = (ROWS // (2 * STRIDE), 2, STRIDE, REST)
    left, right = tl.split(tl.permute(tl.reshape(x, shape), (0, 2, 3, 1)))
    return tl.reshape(tl.permute(tl.join(left + right, left - right), (0, 3, 1, 2)), (ROWS, REST))
