"""The hash of numerics/rng.py in Triton, for every family's kernels."""

# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl  # noqa: F401 (the interpreter looks for it in every kernel's module)


@triton.jit
def hashed(word):
    """The word of a stream that numerics/rng.py puts here."""
    word = (word ^ (word >> 16)) * 0x7FEB352D
    word = (word ^ (word >> 15)) * 0x846CA68B
    return word ^ (word >> 16)
