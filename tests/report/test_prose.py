"""The headline is honest, and numbers have the digits and the unit that people read."""

from pathlib import Path

import pytest

from laconic.lab import records
from laconic.report import prose, summary
from tests.support.recorded import MIXED, THC, evaluation, header, rows_of, run, step, technique, write


@pytest.mark.parametrize(
    ("seconds", "sent", "expected"),
    [
        (2.5, 125, "THC reached 89.5 % 4.0× sooner than plain DDP, with 8.0× fewer bytes."),
        (12.0, 500, "THC took 1.2× as long as plain DDP to reach 89.5 %, with 2.0× fewer bytes."),
        (10.1, 1010, "THC reached 89.5 % in about the same time as plain DDP, with about as many bytes."),
        (5.0, 3000, "THC reached 89.5 % 2.0× sooner than plain DDP, with 3.0× the bytes."),
    ],
)
def test_the_headline_is_honest(tmp_path: Path, seconds: float, sent: int, expected: str) -> None:
    rows = rows_of(tmp_path, THC | {"seconds": seconds, "sent": sent})
    assert prose.headline(rows).replace("\u00a0", " ") == expected


def test_the_headline_names_a_peer_that_was_sooner(tmp_path: Path) -> None:
    peer = {"label": "PowerSGD", "family": "peer", "seconds": 1.0, "sent": 10}
    rows = rows_of(tmp_path, THC | {"seconds": 5.0, "sent": 500}, peer)
    assert prose.headline(rows).endswith(" PowerSGD was sooner still, after 1.00\u00a0s.")


def test_the_headline_says_that_the_target_was_missed(tmp_path: Path) -> None:
    weak = run(tmp_path / "weak.jsonl", evaluation(1, 0.5, 1.0), spec="weak", label="weak", family="laconic")
    rows = summary.summarize([technique(tmp_path / "plain.jsonl", 9.0, 9), weak])
    assert prose.headline(rows).startswith("No other technique reached 89.5")


def test_the_headline_of_a_run_without_evaluations_sets_no_target(tmp_path: Path) -> None:
    rows = summary.summarize([run(tmp_path / "plain.jsonl", step(1))])
    assert prose.headline(rows) == "plain DDP sets no target: it has no finite evaluation."


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 B"),
        (999.0, "999 B"),
        (999.7, "1.00 kB"),
        (2_900_000, "2.90 MB"),
        (4.58e9, "4.58 GB"),
        (3e15, "3000 TB"),
    ],
)
def test_bytes_have_three_digits_and_a_unit(value: float, text: str) -> None:
    assert prose.bytes_text(value).replace("\u00a0", " ") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 s"), (0.4123, "0.412 s"), (83.0, "83.0 s"), (900.0, "15.0 min"), (9000.0, "2.50 h")],
)
def test_seconds_have_three_digits_and_a_unit(value: float, text: str) -> None:
    assert prose.seconds_text(value).replace("\u00a0", " ") == text


def test_a_warning_is_given_once_and_first(tmp_path: Path) -> None:
    loud = {"warning": "DAD is not private.", "note": "No root here."}
    seeds = [technique(tmp_path / f"{seed}.jsonl", 1.0, 1, seed=seed, **loud) for seed in (0, 1)]
    other = technique(tmp_path / "b.jsonl", 1.0, 1, spec="b", **loud)
    assert prose.notices(summary.summarize([*seeds, other])) == ["DAD is not private.", "No root here."]


def test_gossip_is_told_how_far_workers_are_apart_and_not_that_replicas_differ(tmp_path: Path) -> None:
    gossip = records.read(write(tmp_path / "a.jsonl", [header(label="Crossover"), step(1), MIXED]))
    (notice,) = prose.notices(summary.summarize([gossip]))
    assert notice == (
        "Crossover, seed 0, ended with workers' parameters 2.5e-05 apart (consensus distance, relative to their "
        "mean); what is evaluated is their mean."
    )
