from itertools import permutations

import pytest
import torch

from laconic.numerics.topology import consensus_distance, mixed, partners, segments, sources

MANY = pytest.mark.parametrize("workers", [*range(2, 65), 100, 1000])


def rows(workers, numel=240, dtype=torch.float32):
    return torch.randn(workers, numel, generator=torch.Generator().manual_seed(workers), dtype=dtype)


def matrix(heard):
    """What a round does to one coordinate of all workers."""
    identity = torch.eye(len(heard), dtype=torch.float64)
    return mixed(identity, identity[heard])


def a_round(values, step, count=8, seed=0):
    """All workers' parameters after a round without gradients."""
    after = values.clone()
    for number, part in enumerate(segments(values.shape[1], count)):
        heard = sources(partners(seed, step, number, len(values)))
        after[:, part] = mixed(values[:, part], values[heard, part])
    return after


@pytest.mark.parametrize(("numel", "count"), [(1, 1), (7, 1), (7, 7), (100, 16), (53_898, 16), (10, 3)])
def test_segments_are_equal_to_within_one_and_cover_everything_in_order(numel, count):
    parts = segments(numel, count)
    covered = [place for part in parts for place in range(part.start, part.stop)]
    sizes = {part.stop - part.start for part in parts}
    assert covered == list(range(numel))
    assert len(parts) == count
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("count", [0, -1, 11])
def test_segments_that_cannot_be_cut_are_refused(count):
    with pytest.raises(
        ValueError, match=f"^{count} segments cannot be cut from 10 parameters; use at least 1"
    ):
        segments(10, count)


@MANY
def test_partners_are_a_permutation_without_fixed_points(workers):
    everyone = torch.arange(workers)
    for step in range(20):
        drawn = partners(7, step, step % 3, workers)
        assert torch.equal(drawn.sort().values, everyone)
        assert not (drawn == everyone).any()


def test_one_worker_has_nobody_to_talk_to():
    assert len(partners(0, 1, 0, 1)) == 0


def test_no_workers_are_refused():
    with pytest.raises(ValueError, match=r"^0 workers cannot have partners; use at least 1$"):
        partners(0, 1, 0, 0)


def test_partners_come_from_seed_step_and_segment_alone():
    drawn = partners(1, 2, 3, 32)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert torch.equal(partners(1, 2, 3, 32), drawn)
    assert torch.equal(torch.get_rng_state(), before)
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (1, 3, 2)):
        assert not torch.equal(partners(*other, 32), drawn)


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 8, 17])
@pytest.mark.parametrize("segments", [1, 3, 16])
def test_every_pair_is_equally_likely(workers, segments):
    steps = 4000 // segments
    counts = torch.zeros(workers, workers)
    for step in range(steps):
        for segment in range(segments):
            counts[torch.arange(workers), partners(5, step, segment, workers)] += 1
    expected = steps * segments / (workers - 1)
    apart = (counts - expected)[~torch.eye(workers, dtype=torch.bool)]
    # rows and columns add up, so that a pair's count varies less than a binomial one, whose χ² has mean k, deviation
    # √2k: four of these are exceeded once in some thousand seeds
    freedom = workers * (workers - 1)
    assert (apart.square() / expected).sum() <= freedom + 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("workers", [2, 3, 4, 8, 64])
@pytest.mark.parametrize("segments", [1, 7, 16, 70])
def test_connections_carry_as_many_segments_to_within_one(workers, segments):
    counts = torch.zeros(workers, workers)
    for segment in range(segments):
        counts[torch.arange(workers), partners(5, 3, segment, workers)] += 1
    between = counts[~torch.eye(workers, dtype=torch.bool)]
    assert between.max() - between.min() <= 1
    assert (counts.sum(0) == segments).all()


@pytest.mark.parametrize("workers", [3, 4, 5])
def test_all_circles_are_drawn(workers):
    """Of three and four workers, these are all permutations without fixed points."""
    drawn = {tuple(partners(5, step, 0, workers).tolist()) for step in range(1000)}
    expected = [
        order for order in permutations(range(workers)) if all(to != own for own, to in enumerate(order))
    ]
    assert len(drawn) == (24 if workers == 5 else len(expected))
    assert drawn <= set(expected)


@MANY
def test_sources_invert_partners(workers):
    to = partners(3, 1, 0, workers)
    heard = sources(to)
    assert torch.equal(heard[to], torch.arange(workers))


@MANY
def test_a_round_is_doubly_stochastic(workers):
    weights = matrix(sources(partners(11, 4, 0, workers)))
    assert torch.equal(weights.sum(0), torch.ones(workers, dtype=torch.float64))
    assert torch.equal(weights.sum(1), torch.ones(workers, dtype=torch.float64))
    assert torch.equal(weights.diagonal(), torch.full([workers], 0.5, dtype=torch.float64))


@pytest.mark.parametrize("workers", [2, 3, 8, 64])
def test_mixing_keeps_the_mean(workers):
    values = rows(workers)
    after = values
    for step in range(10):
        after = a_round(after, step)
    # ten roundings of values below 5, each of at most 2^-24 of them, and they average out over workers
    assert (after.double().mean(0) - values.double().mean(0)).abs().max() < 10 * 5 * 2**-24


@pytest.mark.parametrize("workers", [2, 3, 4, 8, 16, 64])
def test_consensus_distance_contracts_as_the_paper_says(workers):
    """One segment for every coordinate: 1000 draws, whose mean is within 5 % of what is expected."""
    values = rows(workers, 1000)
    before = (values - values.mean(0)).square().sum()
    after = a_round(values, step=1, count=1000)
    ratio = (after - after.mean(0)).square().sum() / before
    assert ratio.item() == pytest.approx(0.5 * (1 - 1 / (workers - 1)), rel=0.05, abs=1e-6)


def test_mixing_gives_equal_bits_in_either_order_and_place():
    own, heard = rows(2, 10_000)
    expected = (own.double() + heard.double()) / 2
    assert torch.equal(mixed(own, heard), mixed(heard, own))
    assert torch.equal(mixed(own, heard), expected.float())
    target = own.clone()
    assert mixed(target, heard, out=target) is target
    assert torch.equal(target, expected.float())


def test_mixing_changes_neither_input():
    own, heard = rows(2)
    copies = own.clone(), heard.clone()
    mixed(own, heard)
    assert torch.equal(own, copies[0])
    assert torch.equal(heard, copies[1])


def test_consensus_distance_is_the_mean_square_over_the_means():
    assert consensus_distance(torch.tensor([[3.0, 0.0], [5.0, 2.0]])) == pytest.approx(2 / 17)
    assert consensus_distance(torch.ones(4, 3)) == 0
    assert consensus_distance(10 * rows(5)) == pytest.approx(consensus_distance(rows(5)), rel=1e-6)
