"""Arrays with a margin on both sides in which nobody writes."""

from contextlib import contextmanager

import numpy as np

CANARY, MARGIN = 171, 64


@contextmanager
def fenced(count, dtype):
    """Room for so many values; whatever happens, nothing beside it has changed."""
    held = np.full(count + 2 * MARGIN, CANARY, dtype)
    try:
        yield held[MARGIN : MARGIN + count]
    finally:
        assert (held[:MARGIN] == CANARY).all()
        assert (held[MARGIN + count :] == CANARY).all()
