import dataclasses
from pathlib import Path

import pytest

from laconic import DAD, RankDAD
from laconic.cli.runs import run_lines
from laconic.lab import compare as compare_module
from laconic.lab import contestants, records
from laconic.lab.compare import (
    ROOM,
    SHARE,
    TURN,
    Comparison,
    Line,
    compare,
    is_complete,
    rounds,
    rows_abreast,
)
from laconic.lab.jobs import WorkerError
from laconic.lab.links import Lab, parse_links
from laconic.lab.worker import Settings
from tests.support.recorded import END, header, step, write

BASE = Settings(
    task="digits",
    spec="",
    workers=2,
    record="",
    steps=2,
    batch=8,
    lr=0.1,
    momentum=0.9,
    optimizer="sgd",
    eval_every=2,
)


class _Lab:
    isolated, interface, shaped, note = True, "eth0", False, None


class _Watcher:
    def __init__(self):
        self.started = []

    def start(self, settings):
        self.started.append((settings.spec, settings.seed))

    def look(self):
        pass

    def finish(self):
        pass


def _finished(settings, *lines):
    label = contestants.parse(settings.spec).label
    write(Path(settings.record), [header(**settings.told(), label=label), *(lines or (step(1), END))])


def test_all_techniques_of_a_seed_come_before_the_next_seed(tmp_path):
    runs = Comparison(BASE, ("ddp", "dense:dtype=bf16"), (0, 1)).runs(tmp_path, _Lab())
    for settings in runs:
        _finished(settings)
    watcher = _Watcher()
    records = compare([[(settings, _Lab())] for settings in runs], watcher)
    assert watcher.started == [("ddp", 0), ("dense:dtype=bf16", 0), ("ddp", 1), ("dense:dtype=bf16", 1)]
    assert len(set(records)) == 4


def test_a_run_is_complete_only_with_its_end_and_just_these_settings(tmp_path):
    (settings,) = Comparison(BASE, ("ddp",), (0,)).runs(tmp_path, _Lab())
    assert not is_complete(settings)
    _finished(settings, step(1))
    assert not is_complete(settings)
    _finished(settings)
    assert is_complete(settings)
    assert not is_complete(dataclasses.replace(settings, lr=0.2))
    assert not is_complete(dataclasses.replace(settings, device="cuda"))


def test_a_run_with_another_default_of_then_is_not_complete(tmp_path):
    (settings,) = Comparison(BASE, ("sign_vote",), (0,)).runs(tmp_path, _Lab())
    _finished(settings)
    assert is_complete(settings)
    write(Path(settings.record), [header(**settings.told(), label="SignVote"), step(1), END])
    assert not is_complete(settings)


@pytest.mark.parametrize("text", ["", "{}", "[]\n[]", '{"kind": "header", "ta', "\x00"])
def test_what_is_no_record_is_no_complete_run(tmp_path, text):
    (settings,) = Comparison(BASE, ("ddp",), (0,)).runs(tmp_path, _Lab())
    Path(settings.record).write_text(text)
    assert not is_complete(settings)


def test_a_later_versions_record_is_not_run_over(tmp_path):
    (settings,) = Comparison(BASE, ("ddp",), (0,)).runs(tmp_path, _Lab())
    write(Path(settings.record), [header(**settings.told(), version=2), END])
    with pytest.raises(ValueError, match="update laconic"):
        is_complete(settings)


def test_a_record_of_an_earlier_version_is_complete_where_settings_are_as_usual(tmp_path):
    (settings,) = Comparison(BASE, ("ddp",), (0,)).runs(tmp_path, _Lab())
    _finished(settings)
    record = Path(settings.record)
    record.write_text(record.read_text().replace('"device": "cpu"', '"since": "then"'))
    assert is_complete(settings)
    assert not is_complete(dataclasses.replace(settings, device="cuda"))


def test_all_lines_of_a_seed_come_before_the_next_seed_of_any():
    long, short = Comparison(BASE, ("ddp", "dense"), (0, 1, 2)), Comparison(BASE, ("ddp",), (0, 1))
    order = [
        [(line.name, line.plan.specs, line.plan.seeds) for alike in together for line in alike]
        for together in rounds([Line("long", long), Line("short", short)])
    ]
    assert order == [
        [("long", ("ddp", "dense"), (0,)), ("short", ("ddp",), (0,))],
        [("long", ("ddp", "dense"), (1,)), ("short", ("ddp",), (1,))],
        [("long", ("ddp", "dense"), (2,))],
    ]


def test_lines_that_differ_in_nothing_but_the_link_are_together():
    lines = [
        Line(
            f"{workers}-{link}",
            Comparison(dataclasses.replace(BASE, workers=workers, link=link), ("ddp",), (0,)),
        )
        for link in ("none", "100mbit")
        for workers in (2, 4)
    ]
    (together,) = rounds(lines)
    names = [[line.name for line in alike] for alike in together]
    assert names == [["2-none", "2-100mbit"], ["4-none", "4-100mbit"]]


def _abreast(directory, *links, **changes):
    """Runs of plain DDP on these links, as `compare` takes them."""
    labs = [Lab(parse_links(link, BASE.workers)) for link in links]
    bases = [dataclasses.replace(BASE, link=link, steps=TURN + 2, **changes) for link in links]
    plans = [
        Comparison(base, ("ddp",), (0,)).runs(directory / str(n), labs[n]) for n, base in enumerate(bases)
    ]
    for settings in plans:
        Path(settings[0].record).parent.mkdir()
    return [(settings[0], lab) for settings, lab in zip(plans, labs, strict=True)]


def test_runs_abreast_take_turns_and_learn_the_same(tmp_path):
    class Links(_Watcher):
        def start(self, settings):
            self.started.append(settings.link)

    watcher, links = Links(), ("none", "50mbit")
    runs = _abreast(tmp_path, *links)
    try:
        paths = compare([runs], watcher)
    finally:
        for _, lab in runs:
            lab.close()
    assert (
        watcher.started == [*links] * 4
    )  # before the first step, after ten, after all; and then all are done
    first, second = map(records.read, paths)
    assert [step.loss for step in first.steps] == [step.loss for step in second.steps]
    assert (len(first.steps), first.end.checksum) == (TURN + 2, second.end.checksum)
    assert not list(tmp_path.glob("*/*.turn"))


def test_rows_are_abreast_as_far_as_memory_goes():
    for room, expected in {0: 1, 7: 1, 8: 1, 16: 2, 31: 3, 800: 100}.items():
        assert rows_abreast(8, memory=(room + 0.5) * ROOM / SHARE) == expected


def test_rows_abreast_have_links_of_their_own(monkeypatch, tmp_path):
    """Else each would count the others' bytes."""
    plans = [
        Comparison(dataclasses.replace(BASE, link=link), ("ddp", "fp16", "dense", "thc", "gennorm"), (0,))
        for link in ("none", "100mbit")
    ]
    seen = []
    monkeypatch.setattr(compare_module, "rows_abreast", lambda workers: {4: 2}[workers])
    monkeypatch.setattr(compare_module, "compare", lambda abreast, _table: seen.extend(abreast) or [])
    run_lines([(plan, tmp_path) for plan in plans], set())
    assert [[(s.spec, s.link) for s, _ in crowd] for crowd in seen] == [
        [(spec, link) for spec in specs for link in ("none", "100mbit")]
        for specs in (("ddp", "fp16"), ("dense", "thc"), ("gennorm",))
    ]
    assert all(len({id(lab) for _, lab in crowd}) == len(crowd) for crowd in seen)


def test_where_one_abreast_fails_all_end_and_the_failure_is_told(tmp_path):
    runs = _abreast(tmp_path, "none", "none", data="nowhere", task="fashion", size="small")
    try:
        with pytest.raises(WorkerError, match="nowhere"):
            compare([runs], _Watcher())
    finally:
        for _, lab in runs:
            lab.close()
    assert not list(tmp_path.glob("*/*.turn"))


def test_a_run_stays_complete_when_its_directory_moves(tmp_path):
    (settings,) = Comparison(BASE, ("ddp",), (0,)).runs(tmp_path, _Lab())
    _finished(settings)
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    (elsewhere,) = Comparison(BASE, ("ddp",), (0,)).runs(moved, _Lab())
    assert elsewhere.record != settings.record
    assert is_complete(elsewhere)


@pytest.mark.parametrize(("link", "complete"), [("none", True), ("100mbit", False)])
def test_only_a_bare_links_run_counts_wherever_it_was_made(tmp_path, link, complete):
    class Bare:
        isolated, interface, shaped, note = False, "lo", False, "No namespaces here."

    base = dataclasses.replace(BASE, link=link)
    (elsewhere,) = Comparison(base, ("ddp",), (0,)).runs(tmp_path, Bare())
    _finished(elsewhere)
    (here,) = Comparison(base, ("ddp",), (0,)).runs(tmp_path, _Lab())
    assert is_complete(here) == complete


def test_a_technique_may_have_settings_of_its_own(tmp_path):
    plain, voted = Comparison(BASE, ("ddp", "sign_vote@lr=0.001,momentum=0"), (0,)).runs(tmp_path, _Lab())
    assert (plain.lr, plain.momentum) == (0.1, 0.9)
    assert (voted.lr, voted.momentum) == (0.001, 0.0)
    assert "@" not in voted.record


@pytest.mark.parametrize("bad", ["lr=0", "lr=nan", "momentum=1", "optimizer=adan"])
def test_settings_that_cannot_be_trained_with_are_refused(bad):
    with pytest.raises(ValueError, match=bad.split("=")[0] + " is"):
        Comparison(BASE, ("ddp@" + bad,), (0,))


def test_a_plan_has_the_warnings_of_its_techniques_once():
    plan = Comparison(BASE, ("ddp", "dad", "rank_dad", "rank_dad:rank=2", "dense"), (0, 1))
    assert plan.warnings == [DAD.warning, RankDAD.warning]


def test_tuples_of_different_words_have_different_records(tmp_path):
    runs = Comparison(BASE, ("dad:private=a+b", "dad:private=a-b"), (0,)).runs(tmp_path, _Lab())
    assert len({settings.record for settings in runs}) == 2


def test_a_bad_technique_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="unknown technique 'dence'"):
        Comparison(BASE, ("ddp", "dence"), (0,))
