"""Damaged messages of GenNorm, as a whole, and what they say of their parts, of which many are read at once.

Whatever is said of a part is understood, as long as its levels are not coded; only a part that becomes silent, or is
no longer, changes how many levels there are.
"""

import random

import numpy as np
import torch

from laconic.kernels import coding
from laconic.kernels import gennorm as kernels
from laconic.messages.gennorm import SIDE, Leveling
from laconic.numerics.damage import DamagedMessage
from laconic.numerics.minifloat import FORMATS
from tests.fuzz.damage import as_tensor, damaged

SIZES = (20, 0, 31)
TOGETHER, PREDICTIONS = 500, 16
"""Messages that are read at once, and predictions among them, as making their codes takes long."""
WHOLE = 20
"""One of so many messages is read as a whole, beside a sound one."""
CHART = torch.tensor([(0, 20), (20, 0), (20, 31)])
NUMEL = sum(SIZES)


def fuzz(messages, seed=0):
    """How many of so many damaged messages were understood, and how many were refused."""
    source, random_ = random.Random(seed), np.random.default_rng(seed)
    levelings = [Leveling(name, coder) for name in FORMATS for coder in ("huffman", "rans")]
    whole, understood = messages // WHOLE, 0
    sound = [_sound(leveling) for leveling in levelings]
    for _ in range(whole):
        which = source.randrange(len(levelings))
        understood += _read(levelings[which], [sound[which], damaged(sound[which], source)])
    for start in range(whole, messages, TOGETHER):
        count, leveling = min(TOGETHER, messages - start), levelings[start // TOGETHER % len(levelings)]
        assert _read(leveling, _raw(leveling, sound[0], count, random_))
        understood += count
    return understood, messages - understood


def _sound(leveling):
    format_ = leveling.minifloat
    symbols = torch.randint(len(format_.levels), (NUMEL,), generator=torch.Generator().manual_seed(0))
    symbols[: NUMEL // 2] = len(format_.levels) // 2
    counts = torch.stack([each.bincount(minlength=256) for each in symbols.split(list(SIZES))]).int()
    shapes = np.array([(90, 30_000), (0, 0), (80, 31_000)])
    return leveling.seal(symbols.byte(), counts, torch.tensor(SIZES), shapes).numpy().tobytes()


def _raw(leveling, sound, count, random_):
    """Messages whose levels are all the first one, and what they say of their parts is damaged."""
    sides = np.frombuffer(sound, np.uint8, SIDE.itemsize * len(SIZES), coding.HEAD)
    sides = np.tile(sides, (count, 1))
    changed = random_.random(sides.shape) < 2 / sides.shape[1]
    changed[np.arange(count), random_.integers(sides.shape[1], size=count)] = True
    sides[changed] = random_.integers(256, size=int(changed.sum()))
    told = sides.view(SIDE)
    told["alpha"] = np.maximum(told["alpha"], 1)
    few = random_.integers(1 << 16, size=PREDICTIONS)
    told["prediction"] = few[told["prediction"] % PREDICTIONS]
    head = np.full((count, coding.HEAD), coding.RAW, np.uint8)
    levels = np.zeros((count, coding.raw_bytes(NUMEL, kernels.width(leveling.minifloat))), np.uint8)
    return [row.tobytes() for row in np.concatenate([head, sides, levels], 1)]


def _read(leveling, messages):
    """Whether they were understood; the mean then is of the size of all parts."""
    mean = torch.zeros(NUMEL)
    try:
        leveling.average(list(map(as_tensor, messages)), CHART, mean)
    except DamagedMessage:
        return False
    return True
