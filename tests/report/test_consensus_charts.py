"""The distance between gossiping workers is drawn where there is one, on a scale that has no zero."""

import json
import math
from pathlib import Path

import pytest

from laconic.lab import records
from laconic.report import charts, summary
from laconic.report.consensus_charts import consensus_by_step
from tests.support.recorded import evaluation, run


def gossip(path: Path, *distances: float | None, **changes: object) -> records.Run:
    """A run with these distances, an evaluation each, at steps 0, 10, 20 and so on."""
    points = [evaluation(10 * number, 0.9, 1.0, consensus=value) for number, value in enumerate(distances)]
    return run(path, *points, **{"label": "Crossover", "spec": "crossover", "family": "laconic", **changes})


def drawn(*runs: records.Run) -> charts.Spec:
    """The chart of these runs."""
    rows = summary.summarize(runs)
    return consensus_by_step(rows, charts.styles(rows))


def test_a_curve_is_the_mean_of_the_seeds_in_their_range(tmp_path: Path) -> None:
    seeds = [gossip(tmp_path / f"{s}.jsonl", 0.0, 1e-3 * (s + 1), 1e-4, seed=s) for s in (0, 1)]
    first, second = drawn(*seeds)["data"]["values"]
    assert (first["x"], first["low"], first["high"]) == (10, 1e-3, 2e-3)
    assert first["value"] == pytest.approx(1.5e-3)
    assert (second["x"], second["value"]) == (20, 1e-4)


def test_the_rounding_of_equal_workers_does_not_flatten_the_rest(tmp_path: Path) -> None:
    values = drawn(gossip(tmp_path / "a.jsonl", 1e-15, 1e-3))["data"]["values"]
    assert [value["x"] for value in values] == [10]


def test_what_has_no_place_on_a_logarithmic_scale_is_left_out(tmp_path: Path) -> None:
    values = drawn(gossip(tmp_path / "a.jsonl", 0.0, 1e-3, 0.0, math.nan, math.inf, None))["data"]["values"]
    assert [value["x"] for value in values] == [10]
    json.dumps(values, allow_nan=False)


def test_only_rows_that_gossip_are_in_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plain = run(tmp_path / "a.jsonl", evaluation(10, 0.9, 1.0))
    spec = drawn(plain, gossip(tmp_path / "b.jsonl", 0.0, 1e-3, 3e-4))
    svg = charts.engine().vegalite_to_svg({**spec, "width": 640}, show_warnings=True)
    assert capfd.readouterr() == ("", "")
    assert ">Crossover<" in svg
    assert ">plain DDP<" not in svg
    assert drawn(plain)["data"]["values"] == []
