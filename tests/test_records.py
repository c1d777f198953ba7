"""Run records are read as they were written, and their summary is what a hand would compute."""

import json
import math
import random
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from laconic import records

Line = dict[str, Any]
HEADER: Line = {
    "kind": "header",
    "version": 1,
    "label": "plain DDP",
    "spec": "plain",
    "technique": "DistributedDataParallel",
    "family": "plain",
    "task": "fashion",
    "metric": "accuracy",
    "higher_is_better": True,
    "workers": 4,
    "link": "100mbit",
    "shaped": True,
    "note": "",
    "seed": 0,
    "split": "iid",
    "batch": 32,
    "steps": 200,
    "lr": 0.05,
    "optimizer": "sgd",
    "parameters": 3_800_000,
    "versions": {"laconic": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11.7"},
    "kernels": "cpu: avx512",
    "machine": "AMD EPYC, 2 cores",
    "started": "2026-11-15T08:00:00+00:00",
}
END: Line = {"kind": "end", "seconds": 83.0, "checksum": "9f3a", "replicas_equal": True}

# label, spec, family, seconds a step, bytes a step, how much slower it learns
TECHNIQUES = (
    ("plain DDP", "plain", "plain", 2.05, 22_900_000, 1.0),
    ("fp16 hook", "fp16", "peer", 1.09, 11_500_000, 1.0),
    ("PowerSGD rank 2", "powersgd:rank=2", "peer", 0.31, 420_000, 1.35),
    ("Dense bf16", "dense:dtype=bf16", "laconic", 1.12, 11_480_000, 1.02),
    ("THC 4 bit", "thc:bits=4", "laconic", 0.47, 2_900_000, 1.06),
)


def header(**changes: object) -> Line:
    """The header of a plain run with these changes."""
    return HEADER | changes


def step(number: int, seconds: float = 1.0, **changes: object) -> Line:
    """A step line of 100 bytes."""
    line = {"kind": "step", "step": number, "seconds": seconds, "loss": 1.0, "tx": 100, "rx": 100}
    return line | {"sent": None, "received": None, "phases": {}, "error": None} | changes


def evaluation(number: int, accuracy: float | None, seconds: float, **changes: object) -> Line:
    """An evaluation line after so many steps of 100 bytes."""
    loss = None if accuracy is None else 1 - accuracy
    line = {"kind": "eval", "step": number, "accuracy": accuracy, "loss": loss, "seconds": seconds}
    return line | {"tx": 100 * number, "sent": None} | changes


def write(path: Path, lines: Iterable[Line]) -> Path:
    """The lines are in the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def run(path: Path, *lines: Line, **changes: object) -> records.Run:
    """A finished run of these lines, under a header with these changes."""
    return records.read(write(path, [header(**changes), *lines, END]))


def synthetic(folder: Path, seeds: int = 2, steps: int = 200, **changes: object) -> list[records.Run]:
    """Realistic runs of five techniques, recorded in the folder."""
    paths = [
        write(folder / f"{spec.replace(':', '-')}-{seed}.jsonl", _lines(row, seed, steps, changes))
        for row in TECHNIQUES
        for seed in range(seeds)
        for spec in [row[1]]
    ]
    return records.find(paths)


def _lines(row: tuple[str, str, str, float, int, float], seed: int, steps: int, changes: Line) -> list[Line]:
    label, spec, family, seconds, size, delay = row
    rng = random.Random(f"{label} {seed}")
    named = {"label": label, "spec": spec, "family": family, "technique": f"{spec}()", "seed": seed}
    lines, clock, sent = [header(steps=steps, **named | changes)], 0.0, 0
    for number in range(1, steps + 1):
        lines.append(_synthetic_step(rng, number, family, seconds, size, delay))
        clock, sent = clock + lines[-1]["seconds"], sent + lines[-1]["tx"]
        if number % 20 == 0:
            share = 0.895 - 0.55 * math.exp(-number / (32 * delay)) + rng.gauss(0, 0.004)
            extra = {"tx": sent, "sent": sent if family == "laconic" else None}
            lines.append(evaluation(number, round(share, 4), round(clock, 3), **extra))
    return [*lines, END]


def _synthetic_step(
    rng: random.Random, number: int, family: str, seconds: float, size: int, delay: float
) -> Line:
    loss = 0.33 + 1.97 * math.exp(-number / (26 * delay)) + abs(rng.gauss(0, 0.05))
    took = seconds * rng.uniform(0.96, 1.06) + (0.8 if number == 1 else 0)
    phases = {"compute": 0.11, "waiting": took - 0.11}
    if family == "laconic":
        moving = took - 0.15
        phases |= {
            "encode": 0.011,
            "up": 0.52 * moving,
            "combine": 0.014,
            "down": 0.46 * moving,
            "decode": 0.009,
        }
    sent = round(size * rng.uniform(0.995, 1.005))
    return step(number, took, loss=loss, tx=sent, rx=sent, phases=phases)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    phases = {"compute": 0.1, "waiting": 0.3}
    written = run(tmp_path / "a.jsonl", step(1, 0.4, phases=phases, sent=90), evaluation(1, 0.86, 0.4))
    expected = {name: value for name, value in HEADER.items() if name != "kind"}
    assert vars(written.header) == expected
    assert written.steps == (records.Step(1, 0.4, 1.0, phases, tx=100, rx=100, sent=90),)
    assert written.evals == (records.Eval(1, 0.4, 0.86, tx=100),)
    assert written.end == records.End(83.0, "9f3a", True)


def test_unknown_lines_and_fields_are_ignored(tmp_path: Path) -> None:
    more = {"kind": "votes", "share": 0.7}
    later = run(tmp_path / "a.jsonl", more, step(1, rank=4), more, flavor="new")
    assert len(later.steps) == 1


def test_a_cut_last_line_leaves_an_unfinished_run(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [header(note="é"), step(1), step(2)])
    whole = path.read_bytes()
    for kept in range(len(json.dumps(header(note="é"))) + 1, len(whole)):
        path.write_bytes(whole[:kept])
        read = records.read(path)
        assert read.end is None
        assert len(read.steps) == sum(kept >= len(line) for line in _prefixes(whole)[1:])


def _prefixes(whole: bytes) -> list[bytes]:
    """The file up to the last brace of each of its lines."""
    ends = [place for place, letter in enumerate(whole) if letter == ord("\n")]
    return [whole[:end] for end in ends]


def test_a_cut_character_does_not_hide_the_run(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [header(), step(1)])
    path.write_bytes(path.read_bytes() + '{"kind": "note", "text": "é'.encode()[:-1])
    assert len(records.read(path).steps) == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "does not begin with a header line"),
        ("\n\n", "does not begin with a header line"),
        ("\x00\xff\x7f", "does not begin with a header line"),
        ('{"kind": "header", "lab', "does not begin with a header line"),
        (json.dumps(step(1)), "does not begin with a header line"),
        ("[1, 2]\n" + json.dumps(HEADER), "line 1, is not a JSON object"),
        (json.dumps(HEADER) + "\n{oops\n" + json.dumps(END), "line 2, is not a JSON object"),
        (json.dumps({"kind": "header", "label": "THC"}), "'spec'"),
        (json.dumps(HEADER) + '\n{"kind": "eval", "step": 1, "seconds": 2}', "'value'"),
        (json.dumps(HEADER | {"version": 2}), "record version 2, not 1; update laconic"),
    ],
)
def test_an_unreadable_record_gets_one_sentence(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=r"a\.jsonl") as caught:
        records.read(path)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_record_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere is not a file; give a run record"):
        records.find([tmp_path / "nowhere"])


def test_a_directory_without_records_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no \*\.jsonl file in .*; name run records"):
        records.find([tmp_path])


def test_records_are_found_recursively_and_once(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, [header()]) for name in ("b.jsonl", "deep/er/a.jsonl", "deep/c.jsonl")]
    write(tmp_path / "notes.txt", [header()])
    found = records.find([tmp_path / "deep/c.jsonl", tmp_path, tmp_path / "deep"])
    assert sorted(run.path for run in found) == sorted(paths)
    assert found[0].path == tmp_path / "deep/c.jsonl"


def test_seeds_make_one_row_with_their_range(tmp_path: Path) -> None:
    finals = (0.80, 0.86)
    seeds = [run(tmp_path / f"{s}.jsonl", evaluation(9, finals[s], 1.0), seed=s) for s in (0, 1)]
    (row,) = records.summarize(seeds)
    assert row.runs == tuple(seeds)
    assert row.final is not None
    assert astuple(row.final) == pytest.approx((0.83, 0.80, 0.86))


@pytest.mark.parametrize("change", [{"lr": 0.1}, {"optimizer": "adam"}, {"steps": 9}, {"spec": "other"}])
def test_only_seeds_are_averaged(tmp_path: Path, change: Line) -> None:
    rows = records.summarize([run(tmp_path / "a.jsonl"), run(tmp_path / "b.jsonl", **change)])
    assert len({row.label for row in rows}) == 2
    assert len({row.setting for row in rows}) == 1


@pytest.mark.parametrize("change", [{"link": "1gbit"}, {"task": "text"}, {"workers": 8}, {"shaped": False}])
def test_what_cannot_be_compared_is_another_setting(tmp_path: Path, change: Line) -> None:
    rows = records.summarize([run(tmp_path / "a.jsonl"), run(tmp_path / "b.jsonl", **change)])
    assert len({row.setting for row in rows}) == 2
    assert all(row.is_reference for row in rows)


def test_the_warm_up_does_not_count(tmp_path: Path) -> None:
    seconds = (90.0, 80.0, 70.0, 1.0, 2.0, 6.0)
    steps = [step(n, s, tx=1000 if n <= 3 else n) for n, s in enumerate(seconds, 1)]
    (row,) = records.summarize([run(tmp_path / "a.jsonl", *steps)])
    assert row.step_seconds == records.Spread(2.0, 2.0, 2.0)
    assert row.bytes_per_step == records.Spread(5.0, 5.0, 5.0)


def test_a_run_shorter_than_the_warm_up_counts_whole(tmp_path: Path) -> None:
    (row,) = records.summarize([run(tmp_path / "a.jsonl", step(1, 4.0), step(2, 2.0))])
    assert row.step_seconds == records.Spread(3.0, 3.0, 3.0)


def test_the_target_is_half_a_point_below_plain_ddp(tmp_path: Path) -> None:
    seeds = [run(tmp_path / f"{s}.jsonl", evaluation(9, 0.8 + s / 10, 1.0), seed=s) for s in (0, 1)]
    other = run(tmp_path / "c.jsonl", evaluation(9, 0.99, 1.0), family="laconic", spec="thc")
    rows = records.summarize([other, *seeds])
    assert [row.target for row in rows] == [pytest.approx(0.845)] * 2
    assert [row.family for row in rows] == ["plain", "laconic"]


def test_the_target_of_a_loss_is_one_percent_above(tmp_path: Path) -> None:
    lines = [evaluation(9, 0.5, 1.0, loss=2.0)]
    (row,) = records.summarize([run(tmp_path / "a.jsonl", *lines, metric="loss", higher_is_better=False)])
    assert row.target == pytest.approx(2.02)
    assert row.final == records.Spread(2.0, 2.0, 2.0)


def test_the_way_to_the_target_is_interpolated(tmp_path: Path) -> None:
    plain = run(tmp_path / "a.jsonl", step(1), evaluation(10, 0.405, 10.0), evaluation(30, 0.805, 50.0))
    quick = [evaluation(10, 0.6, 2.0, tx=100), evaluation(20, 1.0, 6.0, tx=300)]
    fast = run(tmp_path / "b.jsonl", step(1), *quick, family="laconic", spec="thc", label="THC")
    reference, row = records.summarize([plain, fast])
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
    (row,) = records.summarize([run(tmp_path / "a.jsonl", *lines, **falling)])
    assert row.seconds_to_target is not None
    assert row.seconds_to_target.mean == pytest.approx(1 + 2 * 0.99)


def test_a_row_that_never_gets_there_has_no_ratio(tmp_path: Path) -> None:
    plain = run(tmp_path / "a.jsonl", evaluation(9, 0.9, 1.0))
    weak = run(tmp_path / "b.jsonl", evaluation(9, 0.8, 1.0), family="laconic", spec="thc")
    row = records.summarize([plain, weak])[1]
    assert (row.seconds_to_target, row.bytes_to_target, row.faster, row.fewer_bytes) == (None,) * 4
    assert row.reached == 0


def test_the_reference_reaches_its_own_target_though_a_seed_does_not(tmp_path: Path) -> None:
    ends = ((10.0, 0.5, 0.80), (10.0, 0.5, 0.90))
    seeds = [
        run(tmp_path / f"{s}.jsonl", evaluation(1, low, 1.0), evaluation(9, high, seconds), seed=s)
        for s, (seconds, low, high) in enumerate(ends)
    ]
    (row,) = records.summarize(seeds)
    assert row.seconds_to_target is not None
    assert row.seconds_to_target.low <= row.seconds_to_target.mean <= row.seconds_to_target.high <= 10
    assert row.reached == 1


def test_without_plain_ddp_the_first_row_is_the_reference(tmp_path: Path) -> None:
    first = run(tmp_path / "a.jsonl", evaluation(9, 0.9, 4.0), family="peer", spec="fp16", label="fp16")
    second = run(tmp_path / "b.jsonl", evaluation(9, 0.9, 2.0), family="laconic", spec="thc", label="THC")
    reference, row = records.summarize([first, second])
    assert reference.is_reference
    assert reference.target == pytest.approx(0.895)
    assert row.faster == 2.0


def test_bytes_by_different_counters_are_not_compared(tmp_path: Path) -> None:
    metered: Line = {"tx": None, "sent": 10}
    plain = run(tmp_path / "a.jsonl", step(1), evaluation(1, 0.9, 1.0))
    other = [step(1, **metered), evaluation(1, 0.9, 1.0, **metered)]
    reference, row = records.summarize([plain, run(tmp_path / "b.jsonl", *other, spec="thc")])
    assert (reference.counter, row.counter) == ("interface", "meter")
    assert row.bytes_per_step == records.Spread(10, 10, 10)
    assert (row.faster, row.fewer_bytes) == (1.0, None)


def test_the_interface_is_believed_before_the_meter(tmp_path: Path) -> None:
    (row,) = records.summarize([run(tmp_path / "a.jsonl", step(1, tx=105, sent=100))])
    assert row.bytes_per_step == records.Spread(105, 105, 105)


def test_uncounted_bytes_are_none(tmp_path: Path) -> None:
    lines = [step(1, tx=None), evaluation(1, 0.9, 1.0, tx=None)]
    (row,) = records.summarize([run(tmp_path / "a.jsonl", *lines)])
    assert (row.counter, row.bytes_per_step, row.bytes_to_target, row.fewer_bytes) == (None,) * 4


@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_a_diverged_run_reaches_nothing(tmp_path: Path, bad: float | None) -> None:
    good = run(tmp_path / "a.jsonl", evaluation(1, 0.5, 1.0), evaluation(2, 0.9, 2.0))
    diverged = [evaluation(1, 0.5, 1.0), evaluation(2, bad, 2.0)]
    row = records.summarize([good, run(tmp_path / "b.jsonl", *diverged, spec="thc")])[1]
    assert row.final is not None
    assert not math.isfinite(row.final.mean)
    assert row.seconds_to_target is None
    assert [point.step for point in records.curve(row.runs)] == [1]


def test_a_diverged_reference_sets_no_target(tmp_path: Path) -> None:
    (row,) = records.summarize([run(tmp_path / "a.jsonl", evaluation(1, math.nan, 1.0))])
    assert row.target is None


def test_unfinished_seeds_are_left_out_of_a_finished_row(tmp_path: Path) -> None:
    finished = run(tmp_path / "a.jsonl", evaluation(9, 0.9, 1.0))
    cut = records.read(write(tmp_path / "b.jsonl", [header(seed=1), evaluation(2, 0.1, 1.0)]))
    (row,) = records.summarize([cut, finished])
    assert (row.runs, row.left_out) == ((finished,), (cut,))
    assert row.final == records.Spread(0.9, 0.9, 0.9)


def test_an_unfinished_row_shows_what_is_there(tmp_path: Path) -> None:
    cut = records.read(write(tmp_path / "b.jsonl", [header(), step(1, 2.0)]))
    (row,) = records.summarize([cut])
    assert row.step_seconds == records.Spread(2.0, 2.0, 2.0)
    assert (row.final, row.target) == (None, None)


def test_the_mean_curve_has_the_steps_that_all_seeds_share(tmp_path: Path) -> None:
    one = run(tmp_path / "a.jsonl", evaluation(1, 0.2, 1.0), evaluation(2, 0.4, 2.0))
    two = run(tmp_path / "b.jsonl", evaluation(2, 0.6, 4.0), evaluation(3, 0.8, 6.0), seed=1)
    (point,) = records.curve([one, two])
    assert (point.step, point.seconds, point.sent) == (2, 3.0, 200)
    assert astuple(point.value) == pytest.approx((0.5, 0.4, 0.6))
