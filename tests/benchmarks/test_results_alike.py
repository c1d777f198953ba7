"""A page of results compares like with like: seeds, machines, settings, and what was measured at all."""

import pytest

from benchmarks.results import page as report
from benchmarks.results import rules
from benchmarks.results.board import board, sooner
from laconic.lab import records
from laconic.report import packs
from laconic.report.summary import summarize
from tests.support.evidence import DDP, FP16, POWER, THC, timing, trajectory


def _shown(folder):
    return board(records.find([folder]))


def _cells(folder, start, part=0):
    """The cells of the first line that begins so, in a part of the page that a heading begins."""
    page = report.page(_shown(folder), "results").split("### ")[part:]
    line = next(line for line in "".join(page).splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def _pair(folder, *techniques):
    for technique in techniques:
        timing(folder, technique, [0.1])


def test_ratios_are_over_seeds_that_both_have(tmp_path):
    """Plain DDP's second seed learns better than its first; who has the first one alone is not later for it."""
    for seed, best in ((0, 0.8), (1, 0.9)):
        trajectory(tmp_path, DDP, best, seed=seed)
    trajectory(tmp_path, THC, 0.8)
    _pair(tmp_path, DDP, THC)
    plain, thc = _shown(tmp_path).cell("fashion", 4, "100mbit")
    assert thc.seconds_to_target is None  # of both seeds
    assert str(sooner(thc, [plain])) == "1.00×"
    assert [row.faster for row in (plain, thc)] == pytest.approx([1, 1])


def test_rows_without_a_seed_in_common_have_no_ratio(tmp_path):
    trajectory(tmp_path, DDP, seed=0)
    trajectory(tmp_path, THC, seed=1)
    _pair(tmp_path, DDP, THC)
    plain, thc = _shown(tmp_path).cell("fashion", 4, "100mbit")
    assert sooner(thc, [plain]) is None


def test_techniques_timed_on_different_machines_are_refused(tmp_path):
    for technique in (DDP, THC):
        trajectory(tmp_path, technique)
    timing(tmp_path, DDP, [0.1])
    timing(tmp_path, THC, [0.1], machine="a faster one, 64 cores")
    with pytest.raises(ValueError, match="several machines"):
        _shown(tmp_path)


def test_where_nothing_of_ours_arrives_it_is_not_met(tmp_path):
    trajectory(tmp_path, DDP, 0.9)
    trajectory(tmp_path, THC, 0.8)
    _pair(tmp_path, DDP, THC)
    first = rules.verdicts(_shown(tmp_path))[0]
    assert (first.measured, first.met) == ("not reached", False)


def test_a_claim_says_where_the_target_is_not_reached(tmp_path):
    for technique, best in ((DDP, 0.9), (FP16, 0.9), (THC, 0.8)):
        trajectory(tmp_path, technique, best)
    _pair(tmp_path, DDP, FP16, THC)
    assert _cells(tmp_path, "THC (Li et al.")[2] == "fashion, 4 workers, 100mbit: the target is not reached"


def test_without_plain_ddp_there_is_no_target(tmp_path):
    for technique in (FP16, THC):
        trajectory(tmp_path, technique)
    _pair(tmp_path, FP16, THC)
    assert _cells(tmp_path, "THC", part=1)[5:] == ["—"] * 6 + ["1, 1"]
    assert "| THC | — · 90.00 % |" in report.summary(_shown(tmp_path), "docs/results.md")


def test_trainings_that_no_link_uses_have_no_seconds(tmp_path):
    """Many may have shared the machine; what they learned still counts."""
    for technique in (DDP, THC):
        trajectory(tmp_path, technique)
        trajectory(tmp_path, technique, workers=15)
    _pair(tmp_path, DDP, THC)
    cells = _cells(tmp_path, "THC", part=2)
    assert cells[:6] == ["THC", "—", "—", "—", "90.00", "50"]
    assert cells[6:] == ["—"] * 5 + ["1, 0"]
    assert "results_fashion_none.svg" not in report.page(_shown(tmp_path), "results")


def test_a_run_that_has_not_ended_shows_nothing(tmp_path):
    for technique in (DDP, THC):
        path = trajectory(tmp_path, technique)
    _pair(tmp_path, DDP, THC)
    lines = path.read_text(encoding="utf-8").splitlines()[:60]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert _cells(tmp_path, "THC", part=1)[4] == "—"


def test_the_best_plain_row_sets_the_target(tmp_path):
    low = trajectory(tmp_path, DDP | {"spec": "ddp@lr=0.01"}, 0.7, lr=0.01)
    high = trajectory(tmp_path, DDP, 0.9)
    rows = summarize(records.find([low, high]))
    assert rows[0].is_reference
    assert rows[0].target == pytest.approx(0.895)


def test_rates_of_different_splits_are_different_lines(tmp_path):
    for split, lr in (("iid", 0.001), ("labels:2", 0.003)):
        trajectory(tmp_path, THC | {"spec": f"thc@lr={lr}"}, lr=lr, split=split)
    assert "Learning rates" not in report.page(_shown(tmp_path), "results")


def test_a_rate_in_use_that_was_also_tried_is_in_use(tmp_path):
    used, tried = tmp_path / "used", tmp_path / "tried"
    trajectory(used, POWER, 0.9)
    trajectory(tried, POWER, 0.9, started="2026-11-16T08:00:00+00:00")
    trajectory(tried, POWER | {"spec": "powersgd:rank=2@lr=0.2"}, 0.8, lr=0.2)
    page = report.page(_shown(used), "results", records.find([tried]))
    assert "| PowerSGD, rank 2 | **0.05: 90.00** · 0.2: 80.00 | the best |" in page


def test_a_run_in_a_directory_and_in_a_pack_is_one(tmp_path):
    trajectory(tmp_path / "runs", DDP)
    pack = packs.write(tmp_path / "runs", tmp_path / "all.tar.xz")
    assert len(records.find([tmp_path / "runs", pack])) == 1
    trajectory(tmp_path / "runs", DDP, seed=1)
    assert len(records.find([pack, tmp_path / "runs"])) == 2


def test_a_header_without_momentum_makes_a_row(tmp_path):
    for name, lr in (("a", 0.1), ("b", 0.2)):
        trajectory(tmp_path / name, THC, lr=lr, momentum=None)
    assert "momentum 0, 100 steps" in summarize(records.find([tmp_path]))[0].label


def test_rows_are_in_the_order_of_their_numbers(tmp_path):
    for rank in (16, 2, 1):
        named = {"spec": f"powersgd:rank={rank}@lr=0.1", "label": f"PowerSGD, rank {rank}"}
        timing(tmp_path, POWER | named, [0.1])
    _pair(tmp_path, THC, FP16, DDP)
    labels = [row.label for row in _shown(tmp_path).cell("fashion", 4, "100mbit")]
    assert labels == ["plain DDP", "fp16 hook", *(f"PowerSGD, rank {rank}" for rank in (1, 2, 16)), "THC"]
