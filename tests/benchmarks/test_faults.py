"""What workers make of what goes wrong, in a few trials; `make faults` has many."""

import pytest

from benchmarks.faults import kinds, launched, page, trial
from benchmarks.faults.stage import Stage, Worker
from laconic.lab.links import Lab, parse_links


@pytest.fixture(scope="module")
def stage():
    with Lab(parse_links("100mbit", 4)) as lab:
        if not lab.shaped:
            pytest.skip(lab.note)
        with Stage(lab) as stage:
            yield stage


def _kind(name):
    return next(kind for kind in kinds.KINDS if kind.name == name)


@pytest.mark.parametrize(
    ("name", "technique", "number"),
    [
        ("killed", "thc", 0),
        ("killed", "crossover", 1),
        ("killed", "crossover:overlap=true", 2),
        ("link cut for good", "sign_vote", 3),
        ("raises an error", "dense", 1),
        ("catches its error, lives on", "rank_dad", 2),
        ("a bit of its parameters changed", "thc", 1),
        ("a bit changed on the wire", "crossover", 1),
    ],
)
def test_whoever_is_left_ends_soon_and_names_the_worker(stage, name, technique, number, tmp_path):
    outcome = trial.play(stage, _kind(name), technique, number, tmp_path, {})
    assert outcome.named == outcome.survivors, outcome
    assert outcome.signals == 0
    assert outcome.well == 0
    assert outcome.seconds < trial.LIMIT


def test_a_bit_changed_in_what_goes_around_a_ring_is_refused_by_all(stage, tmp_path):
    """Who is named is who said it, not who passed it on."""
    outcome = trial.play(stage, _kind("a bit changed on the wire"), "sign_vote", 1, tmp_path, {})
    assert (outcome.well, outcome.signals) == (0, 0), outcome
    assert "the message of worker" in outcome.sentence
    assert "is damaged" in outcome.sentence


@pytest.fixture(scope="module")
def undisturbed(stage, tmp_path_factory):
    workers = stage.start({"technique": "thc", "steps": trial.STEPS}, tmp_path_factory.mktemp("undisturbed"))
    assert trial.until(lambda: all(worker.ended for worker in workers), trial.START)
    known = trial.parameters(workers)
    assert len(known) == 4
    return known


@pytest.mark.parametrize("name", ["stopped for 5 s", "link cut for 5 s"])
def test_what_passes_changes_nothing(stage, name, undisturbed, tmp_path):
    outcome = trial.play(stage, _kind(name), "thc", 1, tmp_path, undisturbed)
    assert (outcome.well, outcome.alike) == (4, True), outcome


@pytest.mark.parametrize("kind", launched.KINDS)
def test_workers_end_well_with_torchrun_and_without(kind, tmp_path):
    outcome = launched.play(kind, "crossover:overlap=true", tmp_path)
    assert (outcome.well, outcome.signals) == (launched.WORKERS, 0), outcome
    assert outcome.seconds is not None


@pytest.mark.parametrize(
    ("sentence", "named"),
    [
        ("worker 2 of 4 is gone (connection closed, seen by worker 1 at step 5)", True),
        ("workers 2 and 3 of 4 are gone", True),
        ("Connection closed by peer [10.77.0.2]:35542", False),
        ("worker 1 of 4 is gone", False),
    ],
)
def test_a_sentence_names_a_worker_or_does_not(sentence, named):
    assert trial.names(sentence, 2) == named


@pytest.mark.parametrize(
    ("text", "said"), [("", None), ("step ", None), ("step 1\nstep 12", "1"), ("step 12\n", "12")]
)
def test_half_a_line_says_nothing_yet(text, said, tmp_path):
    log = tmp_path / "worker0.log"
    log.write_text(text)
    assert Worker(0, [log]).said("step") == said


def test_a_cell_says_what_is_not_as_it_should_be():
    good = trial.Outcome("killed", "thc", 1, 2.0, 3, 3, 0, 0, True, "")
    bad = trial.Outcome("killed", "thc", 1, None, 3, 1, 1, 1, False, "")
    assert page.cell([good, good]) == "2.0 s"
    assert page.cell([good, bad]) == (
        "2.0 s, 1 of 6 end well, 4 of 6 name it, 1 of 2 hang, 1 signals, 1 of 2 end apart"
    )
    assert page.cell([]) == "—"
