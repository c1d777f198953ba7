"""A page of results has what the records show, a dash for what they do not, and whether it is enough."""

import pytest

from benchmarks.results import method
from benchmarks.results import page as report
from benchmarks.results.__main__ import main
from benchmarks.results.board import board
from laconic.lab import records
from tests.support.evidence import DDP, FP16, POWER, THC, full, timing, trajectory
from tests.support.recorded import END, MIXED, evaluation, header, step, write


@pytest.fixture
def paper(tmp_path):
    """Plain DDP at 1 s a step, fp16 at 0.5, PowerSGD at 0.2, and THC at 0.1."""
    for technique, seconds in ((DDP, 1.0), (FP16, 0.5), (POWER, 0.2), (THC, 0.1)):
        for seed in range(2):
            trajectory(tmp_path / "runs", technique, seed=seed)
            timing(tmp_path / "runs", technique, [seconds], sent=int(1e6 * seconds), seed=seed)
    full(tmp_path / "runs", THC, seconds=9.8)
    return tmp_path / "runs"


def _page(folder):
    return report.page(board(records.find([folder])), "results")


def _line(page, start):
    """The cells of the first line of a table that begins so."""
    line = next(line for line in page.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_has_its_step_its_bytes_its_accuracy_and_its_time_to_the_target(paper):
    cells = _line(_page(paper), "THC")
    target = (0.895 - 0.72) / (0.9 - 0.72) * 10 + 40  # steps, between two evaluations
    expected = [
        "THC",
        "100",
        "10.00×",
        "0.1",
        "90.00",
        f"{target:.0f}",
        f"{target / 10:.1f}",
        f"{target / 10:.3g}",
    ]
    assert cells == [*expected, "10.0×", "5.00×", "2.00×", "2, 2"]


def test_what_should_hold_is_met_or_not_or_not_measured(paper):
    page = _page(paper)
    assert _line(page, "fashion, 4 workers, 100mbit: Laconic's best against plain")[2:] == [
        "10.0× (THC)",
        "met",
    ]
    for seed in range(2):  # twice as slow: 5 times sooner than plain DDP is not 8
        timing(paper, THC, [0.2], seed=seed)
    page = _page(paper)
    plain = _line(page, "fashion, 4 workers, 100mbit: Laconic's best against plain")
    assert plain[1:] == ["at least 8× sooner", "5.00× (THC)", "**not met**"]
    assert _line(page, "text, 4 workers, 100mbit: Laconic's best against plain")[2:] == ["—", "not measured"]


def test_accuracy_that_is_lost_is_not_met(paper):
    assert _line(_page(paper), "fashion, 4 workers: THC ends")[2:] == ["by 0.00 points", "met"]
    for seed in range(2):
        trajectory(paper, THC, best=0.89, seed=seed)
    assert _line(_page(paper), "fashion, 4 workers: THC ends")[2:] == ["by 1.00 points", "**not met**"]


def test_a_row_that_diverges_is_not_met(paper):
    trajectory(paper, THC, best=float("nan"))
    assert _line(_page(paper), "fashion, 4 workers: THC ends")[2:] == ["diverged", "**not met**"]


def test_a_peer_that_never_arrives_is_a_bound(paper):
    for seed in range(2):
        trajectory(paper, POWER, best=0.8, seed=seed)
    page = _page(paper)
    assert "not reached" in _line(page, "PowerSGD")
    bound = _line(page, "fashion, 4 workers, 100mbit: Laconic's best against the best PowerSGD")
    assert bound[2].startswith("> 4.0")  # 20 s of training against 5 to the target
    assert bound[3] == "met"


def test_a_missing_cell_is_a_dash_and_the_seeds_are_counted(paper):
    timing(paper, DDP, [0.1], link="1gbit")
    timing(paper, FP16, [0.1], link="1gbit", seed=1)
    (paper / "none-fp16 hook-0-.jsonl").unlink()
    (paper / "none-fp16 hook-1-.jsonl").unlink()
    slow, fast = _page(paper).split("### fashion, 1gbit")
    assert _line(fast, "THC")[1:] == ["—"] * 11
    assert _line(slow, "fp16 hook")[1] == "500"
    assert _line(slow, "fp16 hook")[4:] == [*["—"] * 7, "0, 2"]
    assert _line(fast, "plain DDP")[-1] == "2, 1"


def test_a_technique_of_another_batch_is_not_missing(paper):
    trajectory(paper, THC | {"spec": "thc:bits=3", "label": "THC bits=3"}, batch=16, workers=15)
    slow, bare = _page(paper).split("### fashion, bare machine")
    assert "THC bits=3" not in slow.split("### fashion")[1]
    assert "fp16 hook" not in bare.split("## The papers")[0]


def test_short_runs_alone_reach_no_target(tmp_path):
    for technique, seconds in ((DDP, 1.0), (THC, 0.1)):
        timing(tmp_path, technique, [seconds])
    page = _page(tmp_path)
    assert _line(page, "THC")[1:6] == ["100", "10.00×", "0.001", "—", "—"]
    assert _line(page, "fashion, 4 workers, 100mbit: Laconic's best against plain")[3] == "not measured"


def test_the_check_of_the_projection_counts_who_agrees(paper):
    page = _page(paper)
    assert "In 1 of 1 full runs the product agrees within 10 %" in page
    assert _line(page, "fashion, 4 workers, 100mbit: THC, seed 0")[1:] == [
        "10.0",
        "9.8",
        "1.020",
        "90.00",
        "90.00",
    ]
    full(paper, DDP, seconds=50.0)
    assert "In 1 of 2 full runs" in _page(paper)


def test_a_full_run_is_checked_against_the_round_next_to_it_in_time(paper):
    timing(paper, THC, [0.4], seed=2, started="2026-11-15T20:00:00+00:00")  # the machine has slowed down
    assert _line(_page(paper), "fashion, 4 workers, 100mbit: THC, seed 0")[3] == "1.020"
    full(paper, THC, seconds=40.0, seed=1, started="2026-11-15T21:00:00+00:00")
    assert _line(_page(paper), "fashion, 4 workers, 100mbit: THC, seed 1")[3] == "1.000"


def test_a_link_that_was_not_shaped_is_not_the_link(paper):
    for path in paper.glob("timing-*"):
        path.write_text(path.read_text().replace('"shaped": true', '"shaped": false'))
    page = _page(paper)
    assert _line(page, "fashion, 4 workers, 100mbit: Laconic's best against plain")[2:] == [
        "—",
        "not measured",
    ]
    assert "The link was **not shaped**." in page


def test_who_is_at_the_target_from_the_start_is_not_so_many_times_sooner(tmp_path):
    for technique in (DDP, THC):
        start = [header(**technique), evaluation(0, 0.1, 0.0), evaluation(9, 0.1, 1.0)]
        write(tmp_path / f"{technique['label']}.jsonl", [*start, step(1), END])
    assert _line(_page(tmp_path), "THC")[8] == "—"


def test_replicas_are_counted_and_gossip_has_its_distance(tmp_path):
    lines = [step(1), evaluation(1, 0.5, 1.0)]
    equal = write(tmp_path / "a.jsonl", [header(), *lines, END])
    unequal = write(tmp_path / "b.jsonl", [header(seed=1), *lines, END | {"replicas_equal": False}])
    apart = write(tmp_path / "c.jsonl", [header(spec="crossover", label="Crossover"), *lines, MIXED])
    cut = write(tmp_path / "d.jsonl", [header(seed=2), *lines])
    text = method.replicas(records.find([equal, unequal, apart, cut]))
    assert "In 1 of 2 finished synchronous runs" in text
    assert "They differ in plain DDP, fashion, 4 workers, 100mbit, seed 1." in text
    assert "1 records are of unfinished runs" in text
    assert _line(text, "fashion, 4 workers: Crossover")[1:] == ["2.5e-05", "1"]


def test_the_commands_make_the_same_records(tmp_path):
    trajectory(tmp_path, DDP, lr=0.1, seed=2)
    trajectory(tmp_path, THC | {"spec": "thc"}, lr=0.05)
    trajectory(tmp_path, THC | {"spec": "sign_vote@lr=0.001,momentum=0"}, lr=0.001, momentum=0.0)
    (command,) = method.commands(records.find([tmp_path]))
    assert command == (
        "laconic compare fashion --workers 4 --link none --steps 100 --batch 32 --eval-every 10 "
        "--lr 0.05 --momentum 0.9 --optimizer sgd --seeds 3 --techniques sign_vote@lr=0.001,momentum=0 thc ddp@lr=0.1"
    )


def test_the_papers_claims_stand_beside_what_was_measured(paper):
    page = _page(paper)
    assert _line(page, "THC (Li et al.")[2] == "fashion, 4 workers, 100mbit: 5.00× sooner than the fp16 hook"
    assert _line(page, "S³GD-MV")[2] == "—"


def test_sparse_votes_stand_beside_the_signs_of_everything(tmp_path):
    for density, best, sent in (("0.1", 0.9, 30), ("1", 0.8, 40)):
        vote = {"spec": f"sign_vote:density={density}@lr=0.1", "label": density, "family": "laconic"}
        lines = [step(1, tx=None, rx=None, sent=sent), evaluation(1, best, 1.0, tx=None)]
        bare = {"link": "none", "workers": 15, "shaped": False}
        write(tmp_path / f"{density}.jsonl", [header(**vote | bare), *lines, END])
    words = "fashion, iid: 90.00 % against 80.00 %, with 0.75 of the bytes"
    assert _line(_page(tmp_path), "S³GD-MV")[2] == words


def test_the_bare_machine_comes_last_and_numbers_in_their_order(paper):
    for density in ("0.1", "0.03", "1"):
        vote = {"spec": f"sign_vote:density={density}", "label": f"SignVote density={density}"}
        trajectory(paper, THC | vote, workers=15)
    page = _page(paper)
    titles = [line for line in page.splitlines() if line.startswith("### fashion")]
    assert titles == ["### fashion, 100mbit", "### fashion, bare machine"]
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| SignVote")]
    assert rows[:3] == [f"SignVote density={density}" for density in ("0.03", "0.1", "1")]


def test_the_command_writes_the_page_its_figures_and_the_summary(paper, tmp_path, capsys):
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- results -->\nold\n<!-- /results -->\nafter\n", encoding="utf-8")
    out = tmp_path / "docs" / "results.md"
    assert main([str(paper), "--out", str(out), "--readme", str(readme)]) == 0
    assert capsys.readouterr().out.split() == [
        str(path) for path in (out, out.with_name("results_fashion_100mbit.svg"), readme)
    ]
    assert "(results_fashion_100mbit.svg)" in out.read_text(encoding="utf-8")
    assert "<svg" in out.with_name("results_fashion_100mbit.svg").read_text(encoding="utf-8")
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- results -->\n|")
    assert text.endswith("\n<!-- /results -->\nafter\n")
    assert "| THC | 10.0× · 90.00 % |" in text
    assert "(docs/results.md)" in text
    assert "old" not in text


def _labels(folder):
    """The rows of the summary."""
    lines = report.summary(board(records.find([folder])), "results.md").splitlines()
    return [line.split("|")[1].strip() for line in lines if line.startswith("| ")][2:]


def test_the_summary_has_who_is_first_of_the_hooks_and_of_ours(paper):
    assert _labels(paper) == ["plain DDP", "PowerSGD, rank 2", "THC"]
    sooner = THC | {"spec": "thc:bits=2", "label": "THC bits=2"}
    for seed in range(2):
        trajectory(paper, sooner, seed=seed)
        timing(paper, sooner, [0.05], seed=seed)
    assert _labels(paper) == ["plain DDP", "PowerSGD, rank 2", "THC bits=2"]


def test_where_nobody_arrives_the_summary_has_who_ends_best(tmp_path):
    for technique, end in ((DDP, 0.9), (POWER, 0.7), (FP16, 0.8), (THC, 0.6)):
        trajectory(tmp_path, technique, end)
        timing(tmp_path, technique, [1.0])
    assert _labels(tmp_path) == ["plain DDP", "fp16 hook", "THC"]


def test_learning_rates_that_were_tried_stand_beside_the_one_in_use(paper, tmp_path):
    slow, fast = tmp_path / "slow", tmp_path / "fast"
    trajectory(slow, THC | {"spec": "thc@lr=0.02"}, 0.91, lr=0.02)
    trajectory(fast, POWER | {"spec": "powersgd:rank=2@lr=0.2"}, 0.8, lr=0.2)
    trajectory(fast, DDP | {"spec": "ddp@lr=0.2"}, 0.95, lr=0.2, seed=7)  # a seed that nobody else has
    timing(fast, FP16 | {"spec": "fp16@lr=0.2"}, [0.1], lr=0.2)
    used, others = records.find([paper]), records.find([slow, fast])
    page = report.page(board(used), "results", others)
    assert (
        "| fashion, 4 workers | THC | 0.02: 91.00 · **0.05: 90.00** | 1.00 points behind the best |" in page
    )
    assert "| fashion, 4 workers | PowerSGD, rank 2 | **0.05: 90.00** · 0.2: 80.00 | the best |" in page
    assert "| plain DDP | **0.05" not in page
    assert "| fp16 hook | **0.05" not in page
    assert "Learning rates" not in _page(paper)


def test_a_readme_without_markers_is_left_alone(paper, tmp_path, capsys):
    readme = tmp_path / "README.md"
    readme.write_text("<!-- results -->\nopen\n", encoding="utf-8")
    words = [str(paper), "--out", str(tmp_path / "results.md"), "--readme", str(readme)]
    assert main(words) == 2
    assert "README.md has no place for the table; write <!-- results --> and" in capsys.readouterr().err
    assert readme.read_text(encoding="utf-8") == "<!-- results -->\nopen\n"


def test_panels_share_colors_for_all_labels_that_any_of_them_draws(tmp_path):
    trajectory(tmp_path, DDP)
    trajectory(tmp_path, DDP, workers=8)
    trajectory(tmp_path, THC, workers=8)
    shown = board(records.find([tmp_path]))
    (figure,) = report._figures(shown, "results").values()
    scales = [panel["encoding"]["color"]["scale"] for panel in figure["hconcat"]]
    assert scales[0] == scales[1]
    assert scales[0]["domain"] == ["plain DDP", "THC"]
    assert len(set(scales[0]["range"])) == 2


def test_the_page_names_every_commit_that_records_were_made_at(paper):
    assert "| records made at | b7cb441 |" in _page(paper)
    trajectory(paper, THC, seed=2, commit=None)
    assert "| records made at | an unknown commit; b7cb441 |" in _page(paper)


def test_consensus_is_that_of_full_trainings(paper):
    gossip = {"label": "Crossover", "spec": "crossover"}
    last = {**END, "replicas_equal": False}
    bare = {"link": "none", "shaped": False, "steps": 2}
    middle, late = evaluation(1, 0.5, 1.0), evaluation(2, 0.6, 2.0)
    write(
        paper / "long.jsonl",
        [header(**gossip, **bare), step(1), middle, step(2), late, {**last, "consensus": 1e-9}],
    )
    write(
        paper / "short.jsonl",
        [header(**gossip, steps=2), step(1), step(2), late, {**last, "consensus": 1e-3}],
    )
    assert _line(_page(paper), "fashion, 4 workers: Crossover")[1:] == ["1e-09", "1"]
