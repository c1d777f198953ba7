"""Damages real messages of every technique, in each direction, and has them opened: none may be taken for sound.

    python -m tests.fuzz.seals 1000000

Messages are those of two workers that train. Each is damaged in one of the ways below; one that comes out as it was
(a swap of equal words, say) does not count.
"""

import sys
import time
from collections import Counter, defaultdict
from unittest import mock

import numpy as np
import torch

import laconic
from laconic.engine import mixer
from laconic.messages import seals
from tests.support.gossiping import gossiper, take_step
from tests.support.toys import parallel, train
from tests.support.workers import run

TECHNIQUES = {
    "dense": laconic.Dense(),
    "thc": laconic.THC(block=256),
    "thc, coded": laconic.THC(block=256, entropy=True),
    "sign_vote": laconic.SignVote(0.1),
    "sign_vote, coded": laconic.SignVote(0.4, entropy=True),
    "gennorm": laconic.GenNorm(),
    "dad": laconic.DAD(),
    "edad": laconic.EDAD(),
    "rank_dad": laconic.RankDAD(2, two_way=True, dtype="bf16"),
    "crossover": laconic.Crossover(segments=3),
    "crossover, int8": laconic.Crossover(segments=3, codec="int8", overlap=True),
}
STEPS = 4


def captured(technique):
    """What this worker seals in a few steps: sealed messages and their keys, by direction."""
    found = defaultdict(list)

    real_sealed, real_seal = seals.sealed, seals.seal

    def sealed(messages, keys):
        result = real_sealed(messages, keys)
        way = "down" if len(keys) == 1 and isinstance(messages, list) else "up"
        found[way] += [
            (bytes(message.tolist()), key) for message, key in zip(result, keys, strict=True) if len(message)
        ]
        return result

    def seal(message, keys):
        real_seal(message, keys)
        found["up"].append((bytes(message.tolist()), *keys))

    with mock.patch.object(seals, "sealed", sealed), mock.patch.object(mixer, "seal", seal):
        _train(technique)
    return dict(found)


def _train(technique):
    if technique.reads != "parameters":
        model = parallel()
        laconic.attach(model, technique)
        train(model, range(STEPS))
        return
    model, optimizer, _ = gossiper(technique, lr=0.1)
    for step in range(STEPS):
        take_step(model, optimizer, step)


def _bit(message, random, _):
    message[random.integers(len(message))] ^= 1 << random.integers(8)


def _burst(message, random, _):
    start = random.integers(len(message))
    message[start : start + random.integers(1, 33)] = random.integers(256)


def _same_bit(message, random, _):
    words = np.arange(random.integers(8), len(message), 8)
    chosen = random.choice(words, min(len(words), random.integers(2, 5)), replace=False)
    message[chosen] ^= np.uint8(1 << random.integers(8))


def _swapped(message, random, _):
    words = message[: len(message) // 8 * 8].reshape(-1, 8)
    one, other = random.integers(len(words), size=2)
    words[[one, other]] = words[[other, one]]


def _cut(message, random, _):
    return message[: random.integers(len(message))]


def _extended(message, random, _):
    return np.concatenate([message, random.integers(256, size=random.integers(1, 17), dtype=np.uint8)])


def _repeated(message, random, _):
    start = random.integers(len(message))
    return np.concatenate([message, message[start:]])


def _other(_message, random, others):
    """Of another step, piece, shard, direction or worker."""
    return np.frombuffer(others[random.integers(len(others))][0], np.uint8)


DAMAGES = (_bit, _burst, _same_bit, _swapped, _cut, _extended, _repeated, _other)


def damage(message, key, others, random):
    """How the message was damaged, and what became of it, or None if it is as it was."""
    way = DAMAGES[random.integers(len(DAMAGES))]
    changed = np.frombuffer(message, np.uint8).copy()
    result = way(changed, random, others)
    changed = changed if result is None else result
    return way.__name__.lstrip("_"), None if changed.tobytes() == message else changed.copy()


def accepted(message, key):
    """Whether somebody who waits for a message with this key takes this one."""
    try:
        seals.opened([torch.from_numpy(message)], [key], [0])
    except laconic.DamagedMessage:
        return False
    return True


def trial(messages, others, count, seed=0):
    """So many damaged messages, by kind of damage; none was accepted."""
    random, tried = np.random.default_rng(seed), Counter()
    while tried.total() < count:
        message, key = messages[random.integers(len(messages))]
        kind, changed = damage(message, key, others, random)
        if changed is None:
            continue
        assert not accepted(changed, key), (kind, message, changed.tobytes())
        tried[kind] += 1
    return tried


def _all_captured():
    return {name: captured(technique) for name, technique in TECHNIQUES.items()}


def captured_by_both():
    """The messages of both workers, by technique and direction."""
    one, other = run(2, _all_captured)
    return {
        name: {way: messages + other[name][way] for way, messages in found.items()}
        for name, found in one.items()
    }


if __name__ == "__main__":
    for name, found in captured_by_both().items():
        everything = [message for messages in found.values() for message in messages]
        for way, messages in found.items():
            begun = time.perf_counter()
            assert all(accepted(np.frombuffer(message, np.uint8).copy(), key) for message, key in messages)
            tried = trial(messages, everything, int(sys.argv[1]))
            print(f"{name}, {way}: {tried.total()} damaged, none accepted", dict(tried), flush=True)
            print(f"    {len(messages)} messages, {time.perf_counter() - begun:.0f} s", file=sys.stderr)
