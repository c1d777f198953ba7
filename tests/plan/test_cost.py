import itertools

import pytest

from laconic.plan.cost import Computing, Exchange, Link, all_reduced, step_seconds

RATES = [1e6, 1e8, 1e9, 1e10, 1e12]


def _step(sent=1e7, rate=1e8, busy=0.05, compute=0.3, buckets=4):
    return step_seconds(Computing(compute, buckets), Exchange(sent, sent, busy, pieces=8), Link(rate))


def test_without_a_network_a_step_is_computing_alone():
    assert step_seconds(Computing(0.3), Exchange(0, 0), Link(1e8, 0.01)) == pytest.approx(0.3)
    assert step_seconds(Computing(0.3), Exchange(1e9, 1e9), Link(None)) == pytest.approx(0.3)


def test_a_step_by_hand():
    """14.48 MB are 15.14 MB in frames: 1.2112 s at 100 Mbit/s, 1.2617 s if 0.96 of the time is used."""
    exchange = Exchange(14.48e6, 1e6, busy=0.1, pieces=4, hops=2)
    link = Link(1e8, 0.01)
    assert exchange.chain(link) == pytest.approx(1.2112 / 0.96 + 0.1 / 4 + 2 * 0.01)
    assert step_seconds(Computing(0.3), exchange, link) == pytest.approx(0.3 + exchange.chain(link))


@pytest.mark.parametrize("busy", [0.0, 0.05, 5.0])
@pytest.mark.parametrize("buckets", [1, 16])
def test_more_bytes_take_longer_and_faster_links_do_not(busy, buckets):
    steps = [[_step(sent, rate, busy, buckets=buckets) for rate in RATES] for sent in (1e5, 1e7, 1e9)]
    for row in steps:
        assert all(slow >= fast for slow, fast in itertools.pairwise(row))
    for few, many in itertools.pairwise(steps):
        assert all(a <= b for a, b in zip(few, many, strict=True))
    assert steps[0][0] < steps[2][0]


def test_the_busier_direction_counts():
    for sent, received in ((1e7, 1e5), (1e5, 1e7)):
        assert Exchange(sent, received).wire(Link(1e8)) == Exchange(1e7, 1e7).wire(Link(1e8))


def test_an_exchange_shorter_than_backward_shows_only_its_last_bucket():
    chain = Exchange(1e6, 1e6).chain(Link(1e9))
    assert chain < 0.2
    assert step_seconds(Computing(0.3, 10), Exchange(1e6, 1e6), Link(1e9)) == pytest.approx(0.3 + chain / 10)


def test_a_longer_one_begins_with_the_first_bucket():
    chain = Exchange(1e9, 1e9).chain(Link(1e9))
    expected = 0.1 + 0.2 / 10 + chain  # a third of computing is forward
    assert step_seconds(Computing(0.3, 10), Exchange(1e9, 1e9), Link(1e9)) == pytest.approx(expected)


def test_no_worker_does_more_than_its_cores_can():
    exchange = Exchange(0, 0, busy=0.25)
    assert step_seconds(Computing(0.3, 100, cores=1), exchange, Link(1e9)) == pytest.approx(0.55)
    assert step_seconds(Computing(0.3, 100, cores=2), exchange, Link(1e9)) < 0.4


def test_a_ring_sends_all_but_one_share_twice():
    assert all_reduced(4e6, 2) == 4e6
    assert all_reduced(4e6, 4) == 6e6
    assert all_reduced(4e6, 1) == 0


@pytest.mark.parametrize("link", [{"rate": 0}, {"rate": -1e8}, {"rate": 1e8, "latency": -0.1}])
def test_impossible_links_are_refused(link):
    with pytest.raises(ValueError, match="a link's"):
        Link(**link)


def test_computing_cannot_take_less_than_nothing():
    with pytest.raises(ValueError, match="computing takes -1 s"):
        Computing(-1)
