"""Workers whose parameters are not the others' are noticed within the interval, and named."""

import warnings

import pytest
import torch
import torch.distributed as dist

import laconic
from laconic.core.place import Seat
from laconic.engine.likeness import told_apart
from laconic.numerics import digests
from tests.support.toys import flat, parallel, train
from tests.support.workers import WorkerError, run

CULPRIT = 2


def _changed_by_hand(on_drift, technique):
    """One worker's parameters lose a bit after the second step; they are compared after every fourth."""
    model = parallel()
    attachment = laconic.attach(model, technique, compare_every=4, on_drift=on_drift)
    train(model, range(2))
    if dist.get_rank() == CULPRIT:
        first = next(model.parameters()).data.view(torch.int32)
        first.view(-1)[3] ^= 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        heard = None
        try:
            train(model, range(2, 6))
        except RuntimeError as error:
            heard = str(error)
    return heard, [str(warning.message) for warning in caught], attachment.step, flat(model)


SENTENCE = f"worker {CULPRIT} of 4 has other parameters than the other 3 at step 3"


@pytest.mark.parametrize("technique", [laconic.THC(), laconic.RankDAD(rank=2)], ids=["thc", "rank_dad"])
def test_a_bit_flipped_by_hand_is_an_error_that_names_the_worker(technique):
    for heard, _, step, _ in run(4, _changed_by_hand, "raise", technique):
        assert SENTENCE in heard
        assert step == 4


def test_or_a_warning_after_which_training_goes_on():
    for heard, caught, step, weights in run(4, _changed_by_hand, "warn", laconic.Dense()):
        assert heard is None
        assert [SENTENCE in sentence for sentence in caught] == [True]
        assert step == 6
        assert weights.isfinite().all()


def test_or_all_have_the_parameters_of_the_most():
    results = run(4, _changed_by_hand, "broadcast", laconic.Dense())
    straight = run(4, _changed_by_hand, "raise", laconic.Dense())
    for heard, caught, step, weights in results:
        assert heard is None
        assert [SENTENCE in sentence for sentence in caught] == [True]
        assert step == 6
        assert torch.equal(weights, results[0][3])
    assert all(SENTENCE in heard for heard, *_ in straight)


def _saved_apart():
    model = parallel()
    attachment = laconic.attach(model, laconic.Dense())
    train(model, range(2))
    attachment.state_dict()
    first = next(model.parameters()).data
    first.mul_(2)  # as where all workers save averaged parameters as well
    attachment.state_dict()
    dist.barrier()
    if dist.get_rank() == 0:
        attachment.state_dict()
    dist.barrier()
    if dist.get_rank() == 1:
        first.mul_(2)
        sentence = "worker 1 of 2 has other parameters than the other 1 at step 2"
        with pytest.raises(RuntimeError, match=sentence):
            attachment.state_dict()
    dist.barrier()


def test_states_of_workers_that_differ_are_refused_without_waiting_for_anybody():
    run(2, _saved_apart)


def _private():
    model = parallel()
    laconic.attach(model, laconic.DAD(private=("0.",)), compare_every=1)
    train(model, range(3))
    return flat(model)


def test_private_parameters_may_differ():
    one, other = run(2, _private)
    assert not torch.equal(one, other)


def _asked(**options):
    laconic.attach(parallel(), laconic.Dense(), **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"compare_every": -1}, "compare_every is -1; use a number of steps, or 0 for never"),
        ({"on_drift": "ignore"}, "on_drift is 'ignore'; use 'raise' or 'warn' or 'broadcast'"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(options, sentence):
    with pytest.raises(WorkerError, match=sentence):
        run(1, _ask, options)


def _ask(options):
    _asked(**options)


def test_those_of_whom_there_are_fewer_are_named():
    assert told_apart(dict(enumerate("abaa")), 9, Seat(0, 4))[0] == 0
    source, sentence = told_apart(dict(enumerate("abbcb")), 9, Seat(0, 5))
    assert source == 1
    assert sentence.startswith("workers 0 and 3 of 5 have other parameters than the other 3 at step 9")
    assert told_apart(dict(enumerate("ab")), 9, Seat(0, 2))[1].startswith("worker 1 of 2 has ")


# Digests.


def test_the_digest_of_tensors_changes_with_every_bit_place_and_order():
    tensors = [torch.arange(5.0), torch.zeros(3, dtype=torch.bfloat16), torch.ones(())]
    seen = {digests.of_tensors(tensors), digests.of_tensors(tensors[::-1])}
    for place in range(5):
        for bit in range(32):
            changed = tensors[0].clone()
            changed.view(torch.int32)[place] ^= torch.tensor(1 << bit).to(torch.int32)
            seen.add(digests.of_tensors([changed, *tensors[1:]]))
    assert len(seen) == 2 + 5 * 32
    assert digests.of_tensors([tensor.clone() for tensor in tensors]) in seen


def _by_the_book(content, key):
    mask = 2**64 - 1

    def mixed(word):
        word &= mask
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & mask
        word = (word ^ word >> 27) * 0x94D049BB133111EB & mask
        return word ^ word >> 31

    padded = content + bytes(-len(content) % 8)
    words = [int.from_bytes(padded[k : k + 8], "little") for k in range(0, len(padded), 8)]
    return mixed(len(content) + sum(mixed(word + mixed(place + key)) for place, word in enumerate(words)))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000])
def test_a_device_makes_the_digest_that_is_specified(size, monkeypatch):
    values = torch.randint(256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))
    expected = _by_the_book(bytes(values.tolist()), 5)
    assert int(digests.in_parallel(values, 5)) % 2**64 == expected
    monkeypatch.setattr(digests, "_PART", 3)  # in many parts
    assert int(digests.in_parallel(values, 5)) % 2**64 == expected
