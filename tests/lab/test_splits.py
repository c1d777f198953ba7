"""Shards are disjoint, complete where promised, repeatable, and as uneven as asked."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from laconic.lab.splits import IID, Dirichlet, Labels, draws, parse_split, shards

SPLITS = st.one_of(
    st.just(IID()),
    st.builds(Labels, st.integers(1, 5)),
    st.builds(Dirichlet, st.floats(0.05, 100)),
)
CLASSES = 5
BALANCED = np.repeat(np.arange(10), 100)


def labels_of(samples, seed):
    """Labels of which each of the 5 occurs."""
    drawn = np.random.default_rng(seed).integers(0, CLASSES, samples)
    return np.concatenate([np.arange(CLASSES), drawn])


def dealt(split, labels, workers, seed):
    """The shards, for the draws that leave no worker empty-handed."""
    try:
        return shards(split, labels, workers, seed)
    except ValueError:
        assume(False)


@settings(deadline=None)  # a busy machine is no failure
@given(SPLITS, st.integers(0, 300), st.integers(1, 8), st.integers(0, 2**32))
def test_no_sample_belongs_to_two_workers(split, samples, workers, seed):
    everything = np.concatenate(dealt(split, labels_of(samples, seed), workers, seed))
    assert len(np.unique(everything)) == len(everything)


@settings(deadline=None)
@given(SPLITS, st.integers(0, 300), st.integers(1, 8), st.integers(0, 2**32))
def test_every_sample_is_used_when_there_are_labels_enough_for_all_workers(split, samples, workers, seed):
    assume(not isinstance(split, Labels) or split.count * workers >= CLASSES)
    parts = dealt(split, labels_of(samples, seed), workers, seed)
    assert sum(map(len, parts)) == samples + CLASSES


@settings(deadline=None)
@given(SPLITS, st.integers(5, 300), st.integers(1, 8), st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_shards(split, samples, workers, seed):
    labels = labels_of(samples, seed)
    first, second = dealt(split, labels, workers, seed), dealt(split, labels, workers, seed)
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("split", [IID(), Labels(2), Dirichlet(0.3)])
def test_another_seed_gives_other_shards(split):
    assert not np.array_equal(shards(split, BALANCED, 4, 0)[0], shards(split, BALANCED, 4, 1)[0])


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 9), st.integers(0, 99))
def test_iid_shards_differ_in_size_by_at_most_one(samples, workers, seed):
    assume(workers <= samples)
    sizes = [len(shard) for shard in shards(IID(), np.zeros(samples), workers, seed)]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(st.integers(1, 10), st.integers(1, 12), st.integers(0, 99))
def test_a_worker_sees_exactly_as_many_labels_as_asked(count, workers, seed):
    for shard in shards(Labels(count), BALANCED, workers, seed):
        assert len(np.unique(BALANCED[shard])) == count


@settings(deadline=None)
@given(st.integers(1, 10), st.integers(1, 12), st.integers(0, 99))
def test_workers_with_the_same_label_share_it_evenly(count, workers, seed):
    parts = shards(Labels(count), BALANCED, workers, seed)
    counts = np.array([np.bincount(BALANCED[part], minlength=10) for part in parts])
    for held in counts.T[counts.any(0)]:
        assert np.ptp(held[held > 0]) <= 1


def unevenness(alpha):
    """How far the workers' shares of each label are from equal, 0 to 1, over many draws."""
    labels = np.repeat(np.arange(10), 1000)
    parts = [shards(Dirichlet(alpha), labels, 4, seed) for seed in range(5)]
    counts = np.array([[np.bincount(labels[shard], minlength=10) for shard in part] for part in parts])
    return np.abs(counts / 1000 - 0.25).max()


def test_dirichlet_is_harsh_for_a_small_alpha_and_even_for_a_large_one():
    # a share is Beta(α, 3α) with deviation √(3 / (16 (4α + 1))): 0.006 for α = 1000, of which 5 bound 200 draws
    assert unevenness(1000) < 0.031
    assert unevenness(0.3) > 0.5


def test_workers_go_through_their_shards_in_unrelated_orders():
    places = []
    for worker, shard in enumerate(shards(IID(), BALANCED, 4, 0)):
        first = next(draws(IID(), BALANCED, worker, 4, len(shard), seed=0))
        places.append(tuple(np.argsort(shard)[np.searchsorted(np.sort(shard), first)]))
    assert len(set(places)) == 4


@settings(deadline=None)
@given(SPLITS)
def test_a_split_reads_back_what_it_writes(split):
    assert parse_split(str(split)) == split


@pytest.mark.parametrize("text", ["", "idd", "iid:1", "labels", "labels:two", "labels:2.5", "dirichlet", "2"])
def test_an_unknown_split_is_refused_with_the_known_ones(text):
    with pytest.raises(ValueError, match=r"unknown split .*; use iid, labels:N .* or dirichlet:ALPHA"):
        parse_split(text)


@pytest.mark.parametrize("text", ["labels:0", "labels:-1"])
def test_fewer_than_one_label_is_refused(text):
    with pytest.raises(ValueError, match=f"split {text} gives a worker no label; use labels:1 or more"):
        parse_split(text)


@pytest.mark.parametrize("text", ["dirichlet:0.0", "dirichlet:-1.0", "dirichlet:nan", "dirichlet:inf"])
def test_an_alpha_that_no_distribution_has_is_refused(text):
    with pytest.raises(ValueError, match=f"split {text} .* use an alpha above 0"):
        parse_split(text)


def test_more_labels_than_the_data_has_are_refused():
    with pytest.raises(
        ValueError, match="labels:11 asks for more labels than there are; use labels:10 or less"
    ):
        shards(Labels(11), BALANCED, 2, 0)


@pytest.mark.parametrize("split", [IID(), Labels(1), Dirichlet(1.0)])
def test_fewer_samples_than_workers_are_refused(split):
    with pytest.raises(ValueError, match="3 samples are too few for 4 workers; use fewer workers"):
        shards(split, np.arange(3), 4, 0)


def test_a_worker_left_without_samples_is_named():
    with pytest.raises(
        ValueError, match=r"worker \d of 9: split dirichlet:0.01 with seed 0 leaves it without"
    ):
        shards(Dirichlet(0.01), np.zeros(20), 9, 0)
