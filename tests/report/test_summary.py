"""The summary of runs is what a hand would compute, and compares nothing that cannot be compared."""

import math
from dataclasses import astuple
from pathlib import Path

import pytest

from laconic.lab import records
from laconic.report import summary
from tests.support.recorded import Line, evaluation, header, run, step, write


def test_seeds_make_one_row_with_their_range(tmp_path: Path) -> None:
    finals = (0.80, 0.86)
    seeds = [run(tmp_path / f"{s}.jsonl", evaluation(9, finals[s], 1.0), seed=s) for s in (0, 1)]
    (row,) = summary.summarize(seeds)
    assert row.runs == tuple(seeds)
    assert row.final is not None
    assert astuple(row.final) == pytest.approx((0.83, 0.80, 0.86))


@pytest.mark.parametrize("change", [{"lr": 0.1}, {"optimizer": "adam"}, {"steps": 9}, {"spec": "other"}])
def test_only_seeds_are_averaged(tmp_path: Path, change: Line) -> None:
    rows = summary.summarize([run(tmp_path / "a.jsonl"), run(tmp_path / "b.jsonl", **change)])
    assert len({row.label for row in rows}) == 2
    assert len({row.setting for row in rows}) == 1


@pytest.mark.parametrize("change", [{"link": "1gbit"}, {"task": "text"}, {"workers": 8}, {"shaped": False}])
def test_what_cannot_be_compared_is_another_setting(tmp_path: Path, change: Line) -> None:
    rows = summary.summarize([run(tmp_path / "a.jsonl"), run(tmp_path / "b.jsonl", **change)])
    assert len({row.setting for row in rows}) == 2
    assert all(row.is_reference for row in rows)


def test_the_warm_up_does_not_count(tmp_path: Path) -> None:
    seconds = (90.0, 80.0, 70.0, 1.0, 2.0, 6.0)
    steps = [step(n, s, tx=1000 if n <= 3 else n) for n, s in enumerate(seconds, 1)]
    (row,) = summary.summarize([run(tmp_path / "a.jsonl", *steps)])
    assert row.step_seconds == summary.Spread(2.0, 2.0, 2.0)
    assert row.bytes_per_step == summary.Spread(5.0, 5.0, 5.0)


def test_of_a_short_run_the_second_half_counts(tmp_path: Path) -> None:
    (row,) = summary.summarize([run(tmp_path / "a.jsonl", step(1, 4.0), step(2, 2.0))])
    assert row.step_seconds == summary.Spread(2.0, 2.0, 2.0)


def test_the_target_is_half_a_point_below_plain_ddp(tmp_path: Path) -> None:
    seeds = [run(tmp_path / f"{s}.jsonl", evaluation(9, 0.8 + s / 10, 1.0), seed=s) for s in (0, 1)]
    other = run(tmp_path / "c.jsonl", evaluation(9, 0.99, 1.0), family="laconic", spec="thc")
    rows = summary.summarize([other, *seeds])
    assert [row.target for row in rows] == [pytest.approx(0.845)] * 2
    assert [row.family for row in rows] == ["plain", "laconic"]


def test_the_target_of_a_loss_is_one_percent_above(tmp_path: Path) -> None:
    lines = [evaluation(9, 0.5, 1.0, loss=2.0)]
    (row,) = summary.summarize([run(tmp_path / "a.jsonl", *lines, metric="loss", higher_is_better=False)])
    assert row.target == pytest.approx(2.02)
    assert row.final == summary.Spread(2.0, 2.0, 2.0)


def test_the_way_to_the_target_is_interpolated(tmp_path: Path) -> None:
    plain = run(tmp_path / "a.jsonl", step(1), evaluation(10, 0.405, 10.0), evaluation(30, 0.805, 50.0))
    quick = [evaluation(10, 0.6, 2.0, tx=100), evaluation(20, 1.0, 6.0, tx=300)]
    fast = run(tmp_path / "b.jsonl", step(1), *quick, family="laconic", spec="thc", label="THC")
    reference, row = summary.summarize([plain, fast])
    # The target is 0.8: halfway from 0.6 to 1.0, and 0.395 of 0.4 from 0.405 to 0.805.
    assert row.seconds_to_target is not None
    assert row.seconds_to_target.mean == pytest.approx(4.0)
    assert row.bytes_to_target is not None
    assert row.bytes_to_target.mean == pytest.approx(200.0)
    assert reference.seconds_to_target is not None
    assert reference.seconds_to_target.mean == pytest.approx(10 + 40 * 0.395 / 0.4)
    assert row.faster == pytest.approx(49.5 / 4)
    assert row.fewer_bytes == pytest.approx((1000 + 2000 * 0.395 / 0.4) / 200)
    assert (reference.faster, reference.fewer_bytes) == (1.0, 1.0)


def test_a_falling_metric_is_crossed_from_above(tmp_path: Path) -> None:
    falling = {"metric": "loss", "higher_is_better": False}
    lines = [evaluation(1, 0, 1.0, loss=2.0), evaluation(2, 0, 3.0, loss=1.0)]
    (row,) = summary.summarize([run(tmp_path / "a.jsonl", *lines, **falling)])
    assert row.seconds_to_target is not None
    assert row.seconds_to_target.mean == pytest.approx(1 + 2 * 0.99)


def test_a_row_that_never_gets_there_has_no_ratio(tmp_path: Path) -> None:
    plain = run(tmp_path / "a.jsonl", evaluation(9, 0.9, 1.0))
    weak = run(tmp_path / "b.jsonl", evaluation(9, 0.8, 1.0), family="laconic", spec="thc")
    row = summary.summarize([plain, weak])[1]
    assert (row.seconds_to_target, row.bytes_to_target, row.faster, row.fewer_bytes) == (None,) * 4
    assert row.reached == 0


def test_the_reference_reaches_its_own_target_though_a_seed_does_not(tmp_path: Path) -> None:
    ends = ((10.0, 0.5, 0.80), (10.0, 0.5, 0.90))
    seeds = [
        run(tmp_path / f"{s}.jsonl", evaluation(1, low, 1.0), evaluation(9, high, seconds), seed=s)
        for s, (seconds, low, high) in enumerate(ends)
    ]
    (row,) = summary.summarize(seeds)
    assert row.seconds_to_target is not None
    assert row.seconds_to_target.low <= row.seconds_to_target.mean <= row.seconds_to_target.high <= 10
    assert row.reached == 1


def test_without_plain_ddp_the_first_row_is_the_reference(tmp_path: Path) -> None:
    first = run(tmp_path / "a.jsonl", evaluation(9, 0.9, 4.0), family="peer", spec="fp16", label="fp16")
    second = run(tmp_path / "b.jsonl", evaluation(9, 0.9, 2.0), family="laconic", spec="thc", label="THC")
    reference, row = summary.summarize([first, second])
    assert reference.is_reference
    assert reference.target == pytest.approx(0.895)
    assert row.faster == 2.0


def test_bytes_by_different_counters_are_not_compared(tmp_path: Path) -> None:
    metered: Line = {"tx": None, "sent": 10}
    plain = run(tmp_path / "a.jsonl", step(1), evaluation(1, 0.9, 1.0))
    other = [step(1, **metered), evaluation(1, 0.9, 1.0, **metered)]
    reference, row = summary.summarize([plain, run(tmp_path / "b.jsonl", *other, spec="thc")])
    assert (reference.counter, row.counter) == ("interface", "meter")
    assert row.bytes_per_step == summary.Spread(10, 10, 10)
    assert (row.faster, row.fewer_bytes) == (1.0, None)


def test_the_interface_is_believed_before_the_meter(tmp_path: Path) -> None:
    (row,) = summary.summarize([run(tmp_path / "a.jsonl", step(1, tx=105, sent=100))])
    assert row.bytes_per_step == summary.Spread(105, 105, 105)


def test_uncounted_bytes_are_none(tmp_path: Path) -> None:
    lines = [step(1, tx=None), evaluation(1, 0.9, 1.0, tx=None)]
    (row,) = summary.summarize([run(tmp_path / "a.jsonl", *lines)])
    assert (row.counter, row.bytes_per_step, row.bytes_to_target, row.fewer_bytes) == (None,) * 4


@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_a_diverged_run_reaches_nothing(tmp_path: Path, bad: float | None) -> None:
    good = run(tmp_path / "a.jsonl", evaluation(1, 0.5, 1.0), evaluation(2, 0.9, 2.0))
    diverged = [evaluation(1, 0.5, 1.0), evaluation(2, bad, 2.0)]
    row = summary.summarize([good, run(tmp_path / "b.jsonl", *diverged, spec="thc")])[1]
    assert row.final is not None
    assert not math.isfinite(row.final.mean)
    assert row.seconds_to_target is None
    assert [point.step for point in summary.curve(row.runs)] == [1]


def test_a_diverged_reference_sets_no_target(tmp_path: Path) -> None:
    (row,) = summary.summarize([run(tmp_path / "a.jsonl", evaluation(1, math.nan, 1.0))])
    assert row.target is None


def test_unfinished_seeds_are_left_out_of_a_finished_row(tmp_path: Path) -> None:
    finished = run(tmp_path / "a.jsonl", evaluation(9, 0.9, 1.0))
    cut = records.read(write(tmp_path / "b.jsonl", [header(seed=1), evaluation(2, 0.1, 1.0)]))
    (row,) = summary.summarize([cut, finished])
    assert (row.runs, row.left_out) == ((finished,), (cut,))
    assert row.final == summary.Spread(0.9, 0.9, 0.9)


def test_an_unfinished_row_shows_what_is_there(tmp_path: Path) -> None:
    cut = records.read(write(tmp_path / "b.jsonl", [header(), step(1, 2.0)]))
    (row,) = summary.summarize([cut])
    assert row.step_seconds == summary.Spread(2.0, 2.0, 2.0)
    assert (row.final, row.target) == (None, None)


def test_the_mean_curve_has_the_steps_that_all_seeds_share(tmp_path: Path) -> None:
    one = run(tmp_path / "a.jsonl", evaluation(1, 0.2, 1.0), evaluation(2, 0.4, 2.0))
    two = run(tmp_path / "b.jsonl", evaluation(2, 0.6, 4.0), evaluation(3, 0.8, 6.0), seed=1)
    (point,) = summary.curve([one, two])
    assert (point.step, point.seconds, point.sent) == (2, 3.0, 200)
    assert astuple(point.value) == pytest.approx((0.5, 0.4, 0.6))
