"""A preset is some comparisons that run seed by seed, can be cut and taken up again, and make one report."""

import pytest

from laconic.cli import compare as command
from laconic.cli import main
from laconic.lab import compare, contestants, records
from laconic.lab.presets import DEFAULT, PRESETS
from tests.support.recorded import END, header, step, write

LINE = "digits --techniques ddp sign_vote@lr=0.001 --workers 2 --link none --steps 9 --seeds 2"


@pytest.fixture
def two_lines(monkeypatch):
    monkeypatch.setitem(PRESETS, "two", (LINE, f"{LINE} --split labels:5"))


@pytest.fixture
def executed(monkeypatch):
    """The runs that were really run, in order; each leaves a record of its end."""
    order = []

    def run(settings, _lab, _watcher):
        order.append((settings.split, settings.seed, settings.spec))
        steps = [step(number) for number in range(1, settings.steps + 1)]
        label = contestants.parse(settings.spec).label
        write(compare.Path(settings.record), [header(**settings.told(), label=label), *steps, END])

    monkeypatch.setattr(compare, "execute", run)
    return order


def _run(tmp_path, *more):
    words = ["--debug", "compare", *more, "--eval-every", "3", "--out", str(tmp_path), "--preset=two"]
    return main.main(words)


def test_a_preset_is_some_comparisons_in_one_report(two_lines, executed, tmp_path, capsys):
    """That runs really run is in tests/benchmarks/test_compare.py."""
    assert _run(tmp_path, "--steps", "3", "--seeds", "1") == 0
    runs = [run.header for run in records.find([tmp_path])]
    assert {(h.spec, h.split, h.steps) for h in runs} == {
        (spec, split, 3) for spec in ("ddp", "sign_vote@lr=0.001") for split in ("iid", "labels:5")
    }
    assert capsys.readouterr().out.split() == [str(tmp_path / "report.html")]


def test_every_line_runs_a_seed_before_any_runs_the_next(two_lines, executed, tmp_path):
    assert _run(tmp_path) == 0
    assert executed == [
        (split, seed, spec)
        for seed in (0, 1)
        for split in ("iid", "labels:5")
        for spec in ("ddp", "sign_vote@lr=0.001")
    ]


def test_a_preset_is_taken_up_where_it_was_cut_even_elsewhere(two_lines, executed, tmp_path):
    assert _run(tmp_path / "here") == 0
    (tmp_path / "here" / "digits-2-none-labels-5" / "ddp-1.jsonl").unlink()
    executed.clear()
    (tmp_path / "here").rename(tmp_path / "there")
    assert _run(tmp_path / "there") == 0
    assert executed == [("labels:5", 1, "ddp")]


def test_only_the_lines_with_the_text_in_their_name_run(two_lines, executed, tmp_path):
    assert _run(tmp_path, "--only", "labels") == 0
    assert {split for split, _, _ in executed} == {"labels:5"}
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"digits-2-none-labels-5"}


def test_without_a_task_quick_runs_in_the_directory_itself(executed, tmp_path):
    assert main.main(["--debug", "compare", "--workers", "2", "--steps", "3", "--out", str(tmp_path)]) == 0
    assert len(executed) == 8
    assert len(list(tmp_path.glob("*.jsonl"))) == 8


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("fashion --preset two", "--preset two has tasks of its own; leave out fashion"),
        (
            "--preset two --only text",
            "no line of two has 'text' in its name; they are digits-2-none, digits-2-none-labels-5",
        ),
        ("digits --only digits", "--only digits chooses lines of a preset; name one with --preset"),
        ("--preset two --link 10gbit", "--preset two has lines with --link of their own"),
        ("--preset=two --workers=2", "--preset two has lines with --workers of their own"),
        (
            "--preset three",
            "unknown preset 'three'; there is quick, two; python -m benchmarks.compare has more, in a clone",
        ),
    ],
)
def test_what_a_preset_cannot_do_is_said(two_lines, words, sentence, capsys):
    assert main.main(["compare", *words.split()]) == 2
    assert sentence in capsys.readouterr().err


def test_every_row_of_quick_is_a_technique():
    (line,) = PRESETS[DEFAULT]
    for spec in command._parsed(line.split()).techniques:
        assert contestants.parse(spec).label
