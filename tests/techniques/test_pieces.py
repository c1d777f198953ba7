"""The engine chooses the size of a piece; results and all that is remembered are equal bit for bit."""

import pytest
import torch

import laconic
from laconic import THC, Dense, GenNorm, SignVote
from laconic.core.slices import CHUNK
from laconic.core.technique import Bucket, Setting
from laconic.engine.rehearsal import Rehearsal
from tests.support.toys import flat, parallel, train
from tests.support.workers import run

SIZES = (64 << 10, 1 << 20, 32 << 20)
FEW = Bucket(("a", "b", "c", "d"), (150_000, 110_001, 33, 4096), torch.float32)
CHUNKS = Bucket(("a", "b", "c"), (CHUNK + 70_000, 500_001, 33), torch.float32)
"""More than one of GenNorm's."""
TECHNIQUES = [
    Dense(),
    Dense(dtype="bf16", error_feedback=True),
    THC(),
    THC(bits=2, block=512),
    THC(entropy=True),
    SignVote(0.01),
    SignVote(0.05, ties="random", weighting="agreement"),
    GenNorm(),
    GenNorm("e4m3", memory=0.7, refit=2, coder="rans"),
]


def _gradients(step, workers, numel):
    return list(torch.randn(workers, numel, generator=torch.Generator().manual_seed(step)))


def _rehearsed(technique, wires, workers=2):
    """Every step's result, the memory of all workers at the end, and into how many pieces each step was cut."""
    rehearsal, results, cut = Rehearsal(technique, Setting(workers)), [], []
    bucket = CHUNKS if isinstance(technique, GenNorm) else FEW
    for step, rehearsal.wire in enumerate(wires):
        results.append(rehearsal.reduce(bucket, _gradients(step, workers, bucket.numel))[0])
        cut.append(len(rehearsal.loads))
    memory = [{**memory.values(), "tallies": memory.tallies()} for memory in rehearsal.memories]
    return results, memory, cut


@pytest.mark.parametrize("technique", TECHNIQUES, ids=repr)
def test_results_and_memory_do_not_depend_on_the_size_of_a_piece(technique):
    plans = [[size] * 3 for size in SIZES] + [[*SIZES]]
    (results, memory, cut), *others = (_rehearsed(technique, wires) for wires in plans)
    for their_results, their_memory, _ in others:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(results, their_results, strict=True))
        for mine, theirs in zip(memory, their_memory, strict=True):
            assert mine.keys() == theirs.keys()
            for slot, values in mine.items():
                assert all(torch.equal(value, theirs[slot][name]) for name, value in values.items())
    fewest = others[-2][2][0]
    assert fewest < cut[0] or isinstance(technique, SignVote)  # which has one piece, whatever the size


def _trained(technique, wires):
    model = parallel()
    attachment = laconic.attach(model, technique)
    for step, wire in enumerate(wires):
        attachment.engine.wire = wire
        train(model, [step])
    return flat(model), attachment.state_dict()["memory"]


@pytest.mark.parametrize("technique", [Dense(), THC(block=64), GenNorm()], ids=repr)
def test_real_workers_have_the_same_whatever_the_size_and_when_it_changes(technique):
    (weights, memory), *_ = run(3, _trained, technique, [1 << 10] * 4)
    (changed, their_memory), *_ = run(3, _trained, technique, [1 << 10, 1 << 22, 1 << 14, 1 << 10])
    assert torch.equal(weights, changed)
    for slot, values in memory.items():
        assert all(torch.equal(value, their_memory[slot][name]) for name, value in values.items())
