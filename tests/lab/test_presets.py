"""A preset is some comparisons that run seed by seed, can be cut and taken up again, and make one report."""

import json

import pytest

from laconic.cli import compare as command
from laconic.cli import main
from laconic.lab import compare, contestants, records
from laconic.lab.presets import PRESETS

LINE = "digits --techniques ddp sign_vote@lr=0.001 --workers 2 --link none --steps 9 --seeds 2"


@pytest.fixture
def two_lines(monkeypatch):
    monkeypatch.setitem(PRESETS, "votes", (LINE, f"{LINE} --split labels:5"))


@pytest.fixture
def executed(monkeypatch):
    """The runs that were really run, in order; each leaves a record of its end."""
    order = []

    def run(settings, _lab, _watcher):
        order.append((settings.split, settings.seed, settings.spec))
        header = json.dumps({"kind": "header", **settings.told()})
        compare.Path(settings.record).write_text(f'{header}\n{{"kind": "end"}}\n')

    monkeypatch.setattr(compare, "execute", run)
    monkeypatch.setattr(command, "report_on", lambda _records, directory: directory / "report.html")
    return order


def _run(tmp_path, *more):
    words = ["--debug", "compare", *more, "--eval-every", "3", "--out", str(tmp_path), "--preset=votes"]
    return main.main(words)


def test_a_preset_is_some_comparisons_in_one_report(two_lines, tmp_path, capsys):
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
    assert [path.name for path in tmp_path.iterdir()] == ["digits-2-none-labels-5"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("fashion --preset votes", "--preset votes has tasks of its own; leave out fashion"),
        (
            "--preset votes --only digits",
            "no line of votes has 'digits' in its name; they are fashion-15-none, fashion-15-none-labels-2",
        ),
        ("digits --only digits", "--only digits chooses lines of a preset; name one"),
        ("--preset paper --link 10gbit", "--preset paper has lines with --link of their own"),
        ("--preset=paper --workers=2", "--preset paper has lines with --workers of their own"),
    ],
)
def test_what_a_preset_cannot_do_is_said(words, sentence, capsys):
    assert main.main(["compare", *words.split()]) == 2
    assert sentence in capsys.readouterr().err


def test_without_a_task_quick_runs_in_the_directory_itself(executed, tmp_path):
    assert main.main(["--debug", "compare", "--workers", "2", "--steps", "3", "--out", str(tmp_path)]) == 0
    assert len(executed) == 8
    assert len(list(tmp_path.glob("*.jsonl"))) == 8


def test_trajectories_timings_and_a_check_make_one_report_and_one_page(monkeypatch, tmp_path, capsys):
    """The evidence, end to end, in small."""
    line = "digits --techniques ddp --workers 2"
    long, short = "--steps 12 --eval-every 3", "--steps 6 --eval-every 6"
    lines = (f"{line} --link none {long}", f"{line} --link 1gbit {short}", f"{line} --link 1gbit {long}")
    monkeypatch.setitem(PRESETS, "votes", lines)
    assert main.main(["compare", "--preset", "votes", "--out", str(tmp_path)]) == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"digits-2-none", "digits-2-1gbit", "digits-2-1gbit-12", "report.html"}
    page = (tmp_path / "report.html").read_text()
    assert "Seconds and bytes are projected" in page
    assert "plain DDP, seed 0</th>" in page
    assert main.main(["results", str(tmp_path), "--out", str(tmp_path / "results.md")]) == 0
    assert "of 1 full runs the product agrees" in (tmp_path / "results.md").read_text()
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("name", PRESETS)
def test_every_line_of_a_preset_is_a_comparison(name):
    for line in PRESETS[name]:
        for spec in command._parsed(line.split()).techniques:
            assert contestants.parse(spec).label
            assert name == "quick" or contestants.training(spec)["lr"] > 0


def test_paper_has_every_cell_once_and_full_runs_to_check():
    lines = {name: command._parsed(words.split()) for name, words in command.named(PRESETS["paper"]).items()}
    cells = {
        f"{task}-{workers}-{link}"
        for task in ("fashion", "text")
        for workers in (4, 8)
        for link in ("none", "100mbit", "1gbit")
    }
    bare = {f"{task}-{workers}-none-60" for task in ("fashion", "text") for workers in (4, 8)}
    two = {"fashion-2-none", "fashion-2-100mbit"}
    assert set(lines) == cells | bare | two | {"fashion-4-100mbit-800"}
    for name in bare | two:
        assert (lines[name].steps, lines[name].eval_every) == (60, 60)
    for name in cells:
        options = lines[name]
        assert len(options.techniques) >= 13
        assert options.seeds == 3
        assert options.steps // options.eval_every == (16 if options.link == "none" else 1)
    check = lines["fashion-4-100mbit-800"]
    assert check.steps == lines["fashion-4-none"].steps
    assert set(check.techniques) < set(lines["fashion-4-100mbit"].techniques)


def test_other_rates_are_half_and_twice_those_of_the_paper_and_of_votes():
    trained = [
        next(line for line in PRESETS["paper"] if line.startswith(f"{task} --workers 4 --link none"))
        for task in ("fashion", "text")
    ] + [*PRESETS["votes"]]
    for line, other in zip(trained, PRESETS["rates"], strict=True):
        used, tried = (_rates_by_row(words) for words in (line, other))
        assert tried == {row: [rates[0] / 2, rates[0] * 2] for row, rates in used.items() if row in tried}
        left = {row.partition(":")[0] for row, *_ in used.keys() - tried.keys()}
        assert left == (set() if line in PRESETS["votes"] else {"dad", "dense", "powersgd"})


def _rates_by_row(line):
    """The rates of every technique with all that it trains with beside."""
    rates = {}
    for spec in command._parsed(line.split()).techniques:
        training = contestants.training(spec)
        row = (spec.partition("@")[0], *sorted((name, training[name]) for name in training if name != "lr"))
        rates.setdefault(row, []).append(training["lr"])
    return rates
