"""A trajectory times a median step is the run that a link would have seen."""

import pytest

from laconic.lab import records
from laconic.report import page as report
from laconic.report import projection, summary
from laconic.report.projection import project
from tests.support.evidence import DDP, STEPS, THC, full, timing, trajectory
from tests.support.recorded import END, evaluation, header, step, write


def _evidence(folder):
    return project(records.find([folder]))


def test_a_projected_run_is_the_trajectory_at_the_links_pace(tmp_path):
    trajectory(tmp_path, DDP, seed=0)
    trajectory(tmp_path, DDP, seed=1, best=0.8)
    first = (9.0, 10_000)
    timing(tmp_path, DDP, [0.4, 0.5, 0.9], sent=1000, seed=0, first=first)
    timing(
        tmp_path, DDP, [0.5, 0.7], sent=3000, seed=1, first=first
    )  # all five together: seconds 0.5, bytes 1000
    evidence = _evidence(tmp_path)
    assert [(run.header.seed, run.header.link, run.header.projected) for run in evidence.runs] == [
        (0, "100mbit", True),
        (1, "100mbit", True),
    ]
    for run, best in zip(evidence.runs, (0.9, 0.8), strict=True):
        assert run.header.shaped
        assert run.header.steps == STEPS
        assert [(e.step, e.seconds, e.tx) for e in run.evals] == [
            (n, pytest.approx(2 * 9.0 + 0.5 * (n - 2)), 2 * 10_000 + 1000 * (n - 2))
            for n in range(10, 101, 10)
        ]
        assert run.evals[-1].value == best
        assert run.end.seconds == pytest.approx(67)
        assert {(s.seconds, s.tx, s.phases["waiting"]) for s in run.steps[2:]} == {(0.5, 1000, 0.4)}
        assert [(s.seconds, s.tx) for s in run.steps[:2]] == [first] * 2
    assert evidence.runs[0].steps[3].loss == pytest.approx(1 / 4)
    (row,) = summary.summarize(evidence.runs)
    assert row.step_seconds.mean == 0.5
    assert row.bytes_per_step.mean == 1000


def test_a_full_run_checks_the_product_and_is_no_row(tmp_path):
    trajectory(tmp_path, DDP)
    timing(tmp_path, DDP, [0.5])
    full(tmp_path, DDP, seconds=40.0)
    evidence = _evidence(tmp_path)
    assert len(evidence.runs) == 1
    (check,) = evidence.checks
    assert (check.label, check.setting.link, check.measured) == ("plain DDP", "100mbit", 40.0)
    assert check.projected == pytest.approx(50)
    assert check.ratio == pytest.approx(1.25)


@pytest.mark.parametrize(
    "other",
    [{"lr": 0.3}, {"workers": 8}, {"batch": 8}, {"split": "labels:2"}, {"parameters": 5}, {"momentum": 0.0}],
)
def test_a_timing_of_other_settings_is_not_multiplied(tmp_path, other):
    trajectory(tmp_path, DDP)
    timing(tmp_path, DDP, [0.5], **other)
    assert not any(run.header.projected for run in _evidence(tmp_path).runs)


def test_each_link_has_its_own_pace(tmp_path):
    trajectory(tmp_path, DDP)
    timing(tmp_path, DDP, [0.5])
    timing(tmp_path, DDP, [0.1], link="1gbit")
    ends = {run.header.link: run.end.seconds for run in _evidence(tmp_path).runs}
    assert ends == {"100mbit": pytest.approx(50), "1gbit": pytest.approx(10)}


def test_a_timing_without_a_trajectory_shows_its_step_and_no_accuracy_beside_others(tmp_path):
    trajectory(tmp_path, DDP)
    timing(tmp_path, DDP, [0.5])
    timing(tmp_path, THC, [0.25])
    plain, thc = summary.summarize(_evidence(tmp_path).runs)
    assert plain.final is not None
    assert thc.step_seconds.mean == 0.25
    assert thc.final is None
    assert thc.seconds_to_target is None


def test_what_is_no_timing_stays_as_it_is(tmp_path):
    trajectory(tmp_path, DDP)
    full(tmp_path, DDP, seconds=40.0)
    runs = records.find([tmp_path])
    assert set(map(id, project(runs).runs)) == set(map(id, runs))
    alone = [run for run in runs if run.header.link != "none"]
    assert project(alone).runs == tuple(alone)


def test_the_report_says_what_is_projected_and_checks_it(tmp_path):
    trajectory(tmp_path, DDP)
    trajectory(tmp_path, THC)
    timing(tmp_path, DDP, [0.5])
    timing(tmp_path, THC, [0.1])
    full(tmp_path, THC, seconds=12.5)
    page = report.page(records.find([tmp_path]))
    assert page.count("<section>") == 1
    assert "fashion over 100mbit, 4 workers" in page
    assert page.count("Seconds and bytes are projected: ") == 1
    assert '<th scope="row">THC, seed 0</th><td>10.0\u00a0s</td><td>12.5\u00a0s</td><td>0.80</td>' in page
    assert "5.0×" in page
    ordinary = report.page([run for run in records.find([tmp_path]) if run.header.link == "none"])
    assert "projected" not in ordinary[ordinary.index("<main>") : ordinary.index("<details>")]


def test_bytes_of_messages_that_shrink_are_the_trajectorys():
    step = records.Step(0, 0.5, None, {}, tx=220, sent=200)
    past = records.Eval(10, 1.0, 0.9, sent=500)
    on_link = projection._eval_on(past, projection.Pace((), step))
    assert (on_link.seconds, on_link.sent, on_link.tx) == (5.0, 500, 550)


def test_timings_of_two_machines_are_not_mixed(tmp_path):
    trajectory(tmp_path, DDP, machine="another, 16 cores")
    timing(tmp_path, DDP, [0.5])
    assert len(_evidence(tmp_path).runs) == 1
    timing(tmp_path, DDP, [0.1], seed=1, machine="a third, 4 cores")
    with pytest.raises(
        ValueError, match=r"on several machines \(plain DDP on AMD EPYC, 2 cores, plain DDP on a th"
    ):
        _evidence(tmp_path)


def test_a_short_run_on_the_bare_machine_is_no_row(tmp_path):
    trajectory(tmp_path, DDP)
    timing(tmp_path, DDP, [0.5])
    timing(tmp_path, DDP, [0.1], link="none", shaped=False)
    timing(tmp_path, THC, [0.1], link="none", shaped=False)
    assert [run.header.projected for run in _evidence(tmp_path).runs] == [True]


def test_steps_that_exchange_nothing_count_as_often_as_there_are(tmp_path):
    """Gossip every fourth step: its pace is not that of a step by itself."""
    steps = [step(n, 1.0 if n % 4 == 0 else 0.1, sent=100 * (n % 4 == 0)) for n in range(1, 41)]
    path = write(tmp_path / "a.jsonl", [header(steps=40), *steps, evaluation(40, 0.1, 13.0), END])
    then = projection._pace([records.read(path)]).then
    assert then.seconds == pytest.approx(0.325)
    assert then.sent == 25
