"""Charts are drawn without warnings, look the same for the same label, and stand whatever a record holds."""

import json
import math
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from laconic.lab import records
from laconic.report import charts, summary
from tests.support.recorded import evaluation, run, step, synthetic

Draw = Callable[[Sequence[summary.Row], charts.Styles], charts.Spec]
CURVES: tuple[Draw, ...] = (charts.metric_by_seconds, charts.metric_by_bytes, charts.loss_by_step)
CHARTS: tuple[Draw, ...] = (*CURVES, charts.wall_time, charts.overlapped_phases)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[summary.Row]:
    return summary.summarize(synthetic(tmp_path_factory.mktemp("runs")))


def labeled(path: Path, label: str, *lines: dict[str, Any], **changes: object) -> records.Run:
    """A finished run of a technique of this name."""
    return run(path, *lines, label=label, spec=label, **{"family": "laconic", **changes})


def encodings(spec: charts.Spec) -> Iterator[charts.Spec]:
    """Every encoding of the chart."""
    for view in (spec, *spec.get("layer", [])):
        yield view.get("encoding", {})


@pytest.mark.parametrize("draw", CHARTS)
def test_every_chart_is_drawn_without_a_warning(
    rows: list[summary.Row], draw: Draw, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = draw(rows, charts.styles(rows))
    charts.engine().vegalite_to_svg({**spec, "width": 640}, show_warnings=True)
    assert capfd.readouterr() == ("", "")
    drawn = charts.figure(spec, tmp_path / "chart.svg").read_text(encoding="utf-8")
    labels = {value["label"] for value in spec["data"]["values"]}
    assert labels
    assert all(f">{label}<" in drawn for label in labels)


@pytest.mark.parametrize("draw", CHARTS)
def test_a_label_has_its_color_in_every_chart(rows: list[summary.Row], draw: Draw) -> None:
    styles = charts.styles(rows)
    for chosen in (rows, rows[1:], rows[::-1]):
        scales = [
            e["color"]["scale"] for e in encodings(draw(chosen, styles)) if "scale" in e.get("color", {})
        ]
        assert scales
        for scale in scales:
            assert [styles[label].color for label in scale["domain"]] == scale["range"]


def test_plain_ddp_is_grey_and_alone_in_it(rows: list[summary.Row]) -> None:
    styles = charts.styles(rows)
    assert [label for label, style in styles.items() if style.color in charts.GREYS] == ["plain DDP"]


def test_twenty_labels_can_be_told_apart(tmp_path: Path) -> None:
    many = summary.summarize([labeled(tmp_path / f"{n}.jsonl", f"technique {n}") for n in range(20)])
    assert len({(style.color, *style.dash) for style in charts.styles(many).values()}) == 20


@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_a_diverged_run_leaves_a_chart_that_is_json(tmp_path: Path, bad: float | None) -> None:
    steps = [step(number, loss=1.0 if number < 5 else bad) for number in range(1, 9)]
    lost = labeled(tmp_path / "a.jsonl", "lost", *steps, evaluation(4, 0.5, 4.0), evaluation(8, bad, 8.0))
    rows = summary.summarize([lost])
    for draw in CHARTS:
        json.dumps(draw(rows, charts.styles(rows)), allow_nan=False)
    assert len(charts.loss_by_step(rows, charts.styles(rows))["data"]["values"]) == 4


def test_a_diverging_loss_does_not_flatten_the_others(tmp_path: Path) -> None:
    good = labeled(tmp_path / "a.jsonl", "good", step(1, loss=2.0), step(2, loss=1.0))
    wild = labeled(tmp_path / "b.jsonl", "wild", step(1, loss=2.0), step(2, loss=1e9))
    rows = summary.summarize([good, wild])
    scale = charts.loss_by_step(rows, charts.styles(rows))["layer"][1]["encoding"]["y"]["scale"]
    assert scale["domainMax"] == 2.5
    assert scale["clamp"]


def test_a_long_loss_curve_is_thinned_to_its_means(tmp_path: Path) -> None:
    steps = [step(number, loss=float(number)) for number in range(1, 1001)]
    rows = summary.summarize([labeled(tmp_path / "a.jsonl", "long", *steps)])
    values = charts.loss_by_step(rows, charts.styles(rows))["data"]["values"]
    assert len(values) == charts.POINTS
    assert [(value["x"], value["value"]) for value in values[:2]] == [(10, 5.5), (20, 15.5)]


def test_a_band_is_the_range_of_the_seeds(tmp_path: Path) -> None:
    finals = (0.7, 0.9)
    seeds = [labeled(tmp_path / f"{s}.jsonl", "THC", evaluation(1, finals[s], 1.0), seed=s) for s in (0, 1)]
    rows = summary.summarize(seeds)
    (point,) = charts.metric_by_seconds(rows, charts.styles(rows))["data"]["values"]
    assert (point["low"], point["value"], point["high"]) == pytest.approx((0.7, 0.8, 0.9))


def test_the_target_is_a_rule(rows: list[summary.Row]) -> None:
    layers = charts.metric_by_seconds(rows, charts.styles(rows))["layer"]
    rules = [layer for layer in layers if "rule" in str(layer["mark"])]
    assert [rule["data"]["values"] for rule in rules] == [[{"target": rows[0].target}]]


def test_the_untrained_model_is_not_drawn(tmp_path: Path) -> None:
    lines = [evaluation(0, 0.1, 0.0), evaluation(5, 0.8, 1.0), evaluation(9, 0.9, 2.0)]
    rows = summary.summarize([labeled(tmp_path / "a.jsonl", "THC", *lines)])
    values = charts.metric_by_seconds(rows, charts.styles(rows))["data"]["values"]
    assert [(value["step"], value["first"]) for value in values] == [(5, True), (9, False)]


def test_bytes_of_zero_stay_off_the_logarithmic_axis(tmp_path: Path) -> None:
    lines = [evaluation(3, 0.1, 0.0, tx=0), evaluation(4, 0.5, 1.0, tx=10), evaluation(5, 0.6, 2.0, tx=None)]
    rows = summary.summarize([labeled(tmp_path / "a.jsonl", "THC", *lines)])
    values = charts.metric_by_bytes(rows, charts.styles(rows))["data"]["values"]
    assert [value["x"] for value in values] == [10]


def test_a_step_is_compute_and_waiting_where_they_were_recorded(tmp_path: Path) -> None:
    first = {"compute": 9.0, "waiting": 9.0}
    phases = [first, {"compute": 1.0, "waiting": 2.0, "up": 9.0}, {"compute": 3.0, "waiting": 4.0, "up": 7.0}]
    split = labeled(tmp_path / "a.jsonl", "THC", *(step(n, phases=p) for n, p in enumerate(phases, 1)))
    whole = labeled(tmp_path / "b.jsonl", "peer", step(1, 5.0))
    rows = summary.summarize([split, whole])
    parts = charts.wall_time(rows, charts.styles(rows))["data"]["values"]
    assert [(part["label"], part["part"], part["seconds"]) for part in parts] == [
        ("THC", "compute", 2.0),
        ("THC", "waiting", 3.0),
        ("peer", "not split", 5.0),
    ]
    overlapped = charts.overlapped_phases(rows, charts.styles(rows))["data"]["values"]
    assert overlapped == [{"label": "THC", "phase": "up", "seconds": 8.0}]


def test_a_png_is_drawn_at_twice_its_size(rows: list[summary.Row], tmp_path: Path) -> None:
    spec = charts.metric_by_seconds(rows, charts.styles(rows))
    data = charts.figure(spec, tmp_path / "chart.png").read_bytes()
    assert struct.unpack(">II", data[16:24]) == (1280, 2 * spec["height"])
    assert spec["width"] == "container"


def test_a_figure_of_another_kind_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'chart\.gif'; let its name end in \.svg or \.png"):
        charts.figure({}, tmp_path / "chart.gif")


def test_a_missing_extra_gets_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ImportError, match=r"needs vl-convert; run pip install 'laconic\[report\]'"):
        charts.figure({}, tmp_path / "chart.svg")
