"""`python -m benchmarks.compare` is `laconic compare` with the large presets."""

import pytest

from benchmarks import compare
from benchmarks.presets import PRESETS
from benchmarks.results import __main__ as results


def test_trajectories_timings_and_a_check_make_one_report_and_one_page(monkeypatch, tmp_path, capsys):
    """The evidence, end to end, in small."""
    line = "digits --techniques ddp --workers 2"
    long, short = "--steps 12 --eval-every 3", "--steps 6 --eval-every 6"
    lines = (f"{line} --link none {long}", f"{line} --link 1gbit {short}", f"{line} --link 1gbit {long}")
    monkeypatch.setitem(PRESETS, "votes", lines)
    assert compare.main(["--preset", "votes", "--out", str(tmp_path)]) == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"digits-2-none", "digits-2-1gbit", "digits-2-1gbit-12", "report.html"}
    page = (tmp_path / "report.html").read_text()
    assert "Seconds and bytes are projected" in page
    assert "plain DDP, seed 0</th>" in page
    assert results.main([str(tmp_path), "--out", str(tmp_path / "results.md")]) == 0
    assert "of 1 full runs the product agrees" in (tmp_path / "results.md").read_text()
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("fashion --preset votes", "--preset votes has tasks of its own; leave out fashion"),
        (
            "--preset votes --only digits",
            "no line of votes has 'digits' in its name; they are fashion-15-none, fashion-15-none-labels-2",
        ),
        ("digits --only digits", "--only digits chooses lines of a preset; name one"),
        ("--preset papr", "unknown preset 'papr'; there is quick, paper, rates, votes, adam\n"),
        ("--preset paper --link 10gbit", "--preset paper has lines with --link of their own"),
        ("--preset=paper --workers=2", "--preset paper has lines with --workers of their own"),
    ],
)
def test_what_a_preset_cannot_do_is_said(words, sentence, capsys):
    assert compare.main(words.split()) == 2
    assert sentence in capsys.readouterr().err
