"""Run records are read as they were written, as far as they got, and others are refused in one sentence."""

import json
import math
import re
from pathlib import Path

import pytest

from laconic.lab import records
from tests.support.recorded import END, HEADER, MIXED, Line, evaluation, header, run, step, write


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    phases = {"compute": 0.1, "waiting": 0.3}
    written = run(tmp_path / "a.jsonl", step(1, 0.4, phases=phases, sent=90), evaluation(1, 0.86, 0.4))
    expected = {name: value for name, value in HEADER.items() if name != "kind"}
    assert vars(written.header) == {**expected, "projected": False, "patience": None}
    assert written.steps == (records.Step(1, 0.4, 1.0, phases, tx=100, rx=100, sent=90),)
    assert written.evals == (records.Eval(1, 0.4, 0.86, tx=100),)
    assert written.end == records.End(83.0, "9f3a", True)


@pytest.mark.parametrize(
    ("written", "today"),
    [
        ("SignVote", "SignVote density=0.01"),
        ("SignVote entropy=True", "SignVote density=0.01 entropy=True"),
        ("SignVote density=0.03", "SignVote density=0.03"),
        ("GenNorm", "GenNorm"),
    ],
)
def test_a_label_that_left_out_what_was_the_default_then_is_read_as_it_is_written_today(
    tmp_path: Path, written: str, today: str
) -> None:
    assert records.read(write(tmp_path / "a.jsonl", [header(label=written)])).header.label == today


def test_unknown_lines_and_fields_are_ignored(tmp_path: Path) -> None:
    more = {"kind": "votes", "share": 0.7}
    later = run(tmp_path / "a.jsonl", more, step(1, rank=4), more, flavor="new")
    assert len(later.steps) == 1


def test_a_record_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    old = {name: value for name, value in HEADER.items() if name != "warning"}
    read = records.read(write(tmp_path / "a.jsonl", [old, step(1), evaluation(1, 0.9, 1.0), END]))
    assert read.header.warning == ""
    assert read.layers == ()
    assert read.evals[0].consensus is None
    assert read.end == records.End(83.0, "9f3a", True, None)


def test_how_layers_travel_is_read(tmp_path: Path) -> None:
    one = {
        "layer": "fc",
        "shape": [10, 128],
        "way": "two ways",
        "numbers": 572,
        "gradient": 2580,
        "saves": 4.5,
    }
    read = run(tmp_path / "a.jsonl", step(1), {"kind": "layers", "layers": [one, one | {"new": 1}]}, step(2))
    assert read.layers == (records.Travel("fc", [10, 128], "two ways", 572, 2580, 4.5),) * 2


def test_a_layer_that_says_too_little_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2, says too little .*'way'"):
        run(tmp_path / "a.jsonl", {"kind": "layers", "layers": [{"layer": "fc", "shape": [1, 2]}]})


def test_consensus_distances_are_read(tmp_path: Path) -> None:
    lines = [header(), evaluation(1, 0.9, 1.0, consensus=3e-4, own_accuracy=0.8), MIXED]
    read = records.read(write(tmp_path / "a.jsonl", lines))
    assert read.evals == (records.Eval(1, 1.0, 0.9, tx=100, consensus=3e-4),)
    assert read.end == records.End(83.0, "9f3a", False, 2.5e-5)


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


def _fields() -> list[tuple[int, str]]:
    return [(number, name) for number, line in enumerate(WHOLE) for name in line if name != "kind"]


TRAVEL: Line = {
    "layer": "fc",
    "shape": [9, 8],
    "way": "two ways",
    "numbers": 572,
    "gradient": 258,
    "saves": 4.5,
}
PHASES = {"compute": 0.1}
WHOLE: list[Line] = [
    header(),
    step(1, phases=PHASES, readings={"rank fc": 2.0}, sent=3, received=3) | {"error": 1.0},
    evaluation(1, 0.9, 1.0, consensus=1e-4, sent=3) | {"loss": 0.5},
    {"kind": "layers", "layers": [TRAVEL]},
    MIXED,
]
FREE = {"error"}  # of no meaning to us


@pytest.mark.parametrize(("number", "name"), _fields())
def test_a_value_of_another_type_is_refused_with_its_file_and_line(
    tmp_path: Path, number: int, name: str
) -> None:
    def reading(value: object) -> None:
        changed = [*WHOLE[:number], WHOLE[number] | {name: value}, *WHOLE[number + 1 :]]
        records.read(write(tmp_path / "a.jsonl", changed))

    reading(WHOLE[number][name])
    if name in FREE or (number == 2 and name == "loss"):
        return
    is_text = isinstance(WHOLE[number][name], str)
    for value in ([3], [[1]], {"a": 0, "b": "c"}, 3 if is_text else "<img src=x onerror=alert(1)>"):
        with pytest.raises(ValueError, match=rf"a\.jsonl, line {number + 1}, has \w+ .*, which is not "):
            reading(value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"shape": [1, 2, 3]}, "has shape [1, 2, 3], which is not two counts"),
        ({"shape": [1, -2]}, "has shape [1, -2], which is not two counts"),
        ({"saves": math.inf}, "has saves inf, which is not a number from 0 on"),
        ({"numbers": True}, "has numbers True, which is not a count"),
        ({"numbers": 2**63}, "which is not a count"),
    ],
)
def test_numbers_that_no_run_has_are_refused(tmp_path: Path, change: Line, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        run(tmp_path / "a.jsonl", {"kind": "layers", "layers": [TRAVEL | change]})


def test_a_time_is_one_with_its_zone(tmp_path: Path) -> None:
    for started in ("yesterday", "2026-11-15T08:00:00"):
        with pytest.raises(ValueError, match=r"line 1, has started .* which is not a time with its zone"):
            run(tmp_path / "a.jsonl", started=started)


def test_of_what_a_technique_reads_and_learns_not_all_numbers_are_finite(tmp_path: Path) -> None:
    diverged = step(1, loss=math.nan, readings={"error": math.inf})
    assert math.isnan(run(tmp_path / "a.jsonl", diverged).steps[0].loss or 0)


def test_text_nested_beyond_reason_is_no_json(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [header()])
    path.write_text(path.read_text() + "[" * 100_000 + "\n" + json.dumps(END))
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2, is not a JSON object"):
        records.read(path)


def test_a_resumed_run_has_every_step_once(tmp_path: Path) -> None:
    first = [header(), evaluation(0, 0.1, 0.0), step(1), step(2, 9.0), evaluation(2, 0.5, 9.0), step(3)]
    later = header(started="2026-11-16T08:00:00+00:00", machine="another")
    read = run(tmp_path / "a.jsonl", *first[1:], later, step(2, 2.0), evaluation(2, 0.6, 2.0), step(3))
    assert [(each.step, each.seconds) for each in read.steps] == [(1, 1.0), (2, 2.0), (3, 1.0)]
    assert [(each.step, each.value) for each in read.evals] == [(0, 0.1), (2, 0.6)]
    assert read.header.machine == HEADER["machine"]


def test_a_run_that_was_resumed_has_not_ended_before_it_does_so_again(tmp_path: Path) -> None:
    assert records.read(write(tmp_path / "a.jsonl", [header(), step(1), END, header(), step(1)])).end is None


def test_two_runs_in_one_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.jsonl, line 3, is the header of another run than line 1"):
        run(tmp_path / "a.jsonl", step(1), header(lr=0.1))


def test_a_growing_record_has_its_complete_lines_once(tmp_path: Path) -> None:
    path, first, second = tmp_path / "a.jsonl", json.dumps(header(note="é")), json.dumps(step(1))
    growing = records.Growing(path)
    growing.look()
    assert growing.header is None
    for text, known, steps in ((first, False, 0), (f"\n{second[:9]}", True, 0), (f"{second[9:]}\n", True, 1)):
        with path.open("a") as file:
            file.write(text)
        for _ in range(2):
            growing.look()
            assert (growing.header is not None, len(growing.steps)) == (known, steps)


def test_a_record_is_the_same_whether_it_grew_or_was_there(tmp_path: Path) -> None:
    lines = [json.dumps(line) for line in (header(), step(1), evaluation(1, 0.9, 1.0), END)]
    path = tmp_path / "a.jsonl"
    growing = records.Growing(path)
    for line in lines:
        with path.open("a") as file:
            file.write(f"{line}\n")
        growing.look()
        assert growing.run() == records.read(path)


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
