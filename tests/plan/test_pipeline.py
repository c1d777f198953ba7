"""How many portions of layers leave one behind the other."""

from laconic.lab import records
from laconic.plan import pipeline


def test_small_layers_leave_together():
    """Backward, the first two of four are enough together, the next one is alone; what is dense does not count."""
    shares = [0.2, 2.0, 0.9, 0.3]
    numbers = [round(share * pipeline.TOGETHER) for share in shares]  # of 4 workers, 4 bytes each
    layers = [records.Travel("", [1, 1], "one way", number, 0, 1.0) for number in numbers]
    dense = records.Travel("", [1, 1], "dense", 10**9, 0, 1.0)
    assert pipeline.departures([dense, *layers], workers=4) == 3
    assert pipeline.departures([dense, *layers], workers=4, size=2) == 2
    assert pipeline.departures([dense], workers=4) == 1


def test_layers_that_do_not_go_one_way_leave_alone():
    layers = [records.Travel("", [1, 1], way, 1, 0, 1.0) for way in ("two ways", "rows", "two ways", "dense")]
    assert pipeline.departures(layers, workers=4) == 3
