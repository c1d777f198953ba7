"""Damaged sizes, which travel ahead of messages: noticed, as their upper halves are seals of 31 bits."""

import random

from laconic.messages.seals import SEAL, opened_size, sealed_size

MOST, KEYS = 10_000, 64


def fuzz(messages, seed=0):
    """How many of so many damaged sizes were taken for sound, none if all is well, and how many were refused."""
    source = random.Random(seed)
    taken = 0
    for _ in range(messages):
        size, key = source.randrange(MOST + SEAL), source.randrange(KEYS)
        told = sealed_size(size, key)
        changed = told ^ 1 << source.randrange(63)
        if source.randrange(2):
            changed, key = source.choice((told, changed, source.randrange(-(2**63), 2**63))), key + 1
        try:
            assert 0 <= opened_size(changed, key, MOST, 0) <= MOST + SEAL
            taken += 1
        except ValueError:
            pass
    return taken, messages - taken
