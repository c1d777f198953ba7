import time

import pytest
import torch

from laconic.core.meter import Meter, Stats
from laconic.core.place import Transfer


def _transfer(phase, sent=0, received=0):
    return Transfer(phase, 0, lambda: None, sent, received)


def test_bytes_add_up():
    meter = Meter()
    meter.count(_transfer("up", 3, 4))
    meter.depart(_transfer("down", 5, 6))
    stats = meter.stats()
    assert (stats.sent, stats.received) == (8, 10)


def test_overlapping_transfers_of_a_phase_count_once():
    meter = Meter()
    transfer = _transfer("up")
    start = time.perf_counter()
    meter.depart(transfer)
    meter.depart(transfer)
    time.sleep(0.02)
    meter.arrive(transfer)
    meter.arrive(transfer)
    assert 0.02 <= meter.stats().seconds["up"] <= time.perf_counter() - start


def test_a_phase_lasts_as_long_as_its_block():
    meter = Meter()
    with meter.phase("encode"):
        time.sleep(0.01)
    assert meter.stats().seconds["encode"] >= 0.01


def test_since_gives_what_was_added():
    earlier = Stats(1, 10, 20, {"up": 1.0})
    later = Stats(3, 15, 40, {"up": 1.5, "down": 2.0}, {"error": 0.1})
    assert later.since(earlier) == Stats(2, 5, 20, {"up": 0.5, "down": 2.0}, {"error": 0.1})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_stream_phases_are_timed_by_events():
    meter = Meter(on_stream=True)
    with meter.phase("encode"):
        torch.cuda._sleep(10_000_000)
    assert meter.stats().seconds["encode"] > 1e-3
