"""The large presets have every cell of the evidence, and the learning rates beside it."""

import pytest

from benchmarks.presets import PRESETS
from laconic.cli import compare as command
from laconic.lab import contestants
from laconic.lab.presets import PRESETS as QUICK


def test_what_comes_with_laconic_is_among_them():
    assert PRESETS.items() > QUICK.items()


@pytest.mark.parametrize("name", sorted(PRESETS.keys() - QUICK.keys()))
def test_every_line_is_a_comparison_whose_rows_have_their_rates(name):
    for line in PRESETS[name]:
        for spec in command._parsed(line.split()).techniques:
            assert contestants.parse(spec).label
            assert contestants.training(spec)["lr"] > 0


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
