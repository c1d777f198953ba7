"""Damaged segments of Crossover's bytes: every block changes by something finite, or stays as it is.

A segment's size is known to both ends, so nothing is cut. All blocks are read at once.
"""

import numpy as np
import torch

from laconic.messages.crossover import BLOCK, Coded, Modular

TOGETHER = 250


def fuzz(messages, seed=0):
    """How many of so many damaged blocks were read, and how many were not."""
    random_, understood = np.random.default_rng(seed), 0
    values = torch.from_numpy(random_.standard_normal((2, TOGETHER, BLOCK), np.float32))
    for start in range(0, messages, TOGETHER):
        understood += _read(values[:, : messages - start], random_)
    return understood, messages - understood


def _read(values, random_):
    """How many of so many blocks were read, of any size, of which a peer has nearly the same."""
    sizes = torch.from_numpy(10.0 ** random_.integers(-30, 30, size=(values.shape[1], 1))).float()
    own = values[0] * sizes
    heard = own + 1e-4 * sizes * values[1]
    (codec, sender), everything = (Modular.after(*pair) for pair in ((own, heard), (heard, own))), slice(None)
    _, sent = codec.encode(own.clone())
    coded, _ = sender.encode(heard.clone())
    _damage(coded, random_)
    change, readable = codec.decode(everything, sent, Coded.parse(coded.message()))
    assert change.shape == own.shape
    assert change.isfinite().all()
    assert not change[~readable.flatten()].any()
    assert codec.apart.isfinite().all()  # what a block's range was, it is still known
    again, _ = codec.encode(own.clone())
    assert again.quanta.isfinite().all()
    return int(readable.sum())


def _damage(coded, random_):
    """A byte of each block's quantum is another, or some of its codes are."""
    count = len(coded.quanta)
    rows = np.arange(count)
    quanta, codes = coded.quanta.numpy().view(np.uint8), coded.codes.numpy().view(np.uint8)
    of_quanta = random_.random(count) < 0.5
    quanta[rows[of_quanta], random_.integers(4, size=int(of_quanta.sum()))] ^= random_.integers(
        1, 256, size=int(of_quanta.sum()), dtype=np.uint8
    )
    for _ in range(2):
        places = random_.integers(BLOCK, size=int((~of_quanta).sum()))
        codes[rows[~of_quanta], places] = random_.integers(256, size=len(places))
