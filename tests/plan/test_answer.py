import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic.cli import main
from laconic.lab import contestants
from laconic.plan import answer as plan
from laconic.plan import charts, sampled_rates, scaling, text
from laconic.plan.charges import Model, tariff
from laconic.plan.cost import Link
from laconic.plan.units import duration, parse_count, parse_seconds
from tests.support import recorded
from tests.support.workers import run

CPU = torch.device("cpu")
FEW = ["fp16", "thc", "sign_vote"]


@pytest.fixture(scope="module")
def answer():
    """350 M parameters, 64 workers on 1 Gbit/s."""
    question = plan.Question(64, Link(1e9, 5e-5), Model(350_000_000), 0.25)
    return plan.ask(question, plan.parse(FEW), CPU)


def _asked(answer, **changes):
    return dataclasses.replace(answer, question=dataclasses.replace(answer.question, **changes))


@pytest.mark.parametrize(
    ("text", "count"), [("350M", 350_000_000), ("1.3B", 1_300_000_000), ("12k", 12_000), ("7", 7)]
)
def test_counts_have_units(text, count):
    assert parse_count("--params", text) == count


@pytest.mark.parametrize(
    ("text", "seconds"), [("0.25s", 0.25), ("250ms", 0.25), ("50us", 5e-5), ("1e-3s", 1e-3)]
)
def test_times_have_units(text, seconds):
    assert parse_seconds("--compute", text) == pytest.approx(seconds)


def _sent(technique, width, rows):
    """Bytes that the second step of a model of two square layers sends; the first tells layers their rows."""
    net = nn.Sequential(nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False))
    model = DistributedDataParallel(net)
    attachment = laconic.attach(model, technique)
    counts = []
    for step in range(2):
        torch.manual_seed(2 * step + torch.distributed.get_rank())
        model.zero_grad()
        model(torch.randn(rows, width)).square().sum().backward()
        counts.append(attachment.stats().sent)
    return counts[1] - counts[0]


@pytest.mark.parametrize("technique", [laconic.THC(), laconic.Dense(), laconic.Dense(dtype="bf16")])
def test_planned_bytes_are_those_of_the_meter(technique):
    """Of buckets, all but headers: 1 % is more than THC's last, padded blocks."""
    planned = tariff(contestants.Attached(technique), Model(2 * 512**2, 512, 4), 2, CPU).exchange
    for sent in run(2, _sent, technique, 512, 4):
        assert sent == pytest.approx(planned.sent, rel=0.01)


@pytest.mark.parametrize("technique", [laconic.RankDAD(), laconic.DAD()])
def test_planned_bytes_of_layers_are_those_of_the_meter(technique):
    planned = tariff(contestants.Attached(technique), Model(2 * 256**2, 256, 16), 2, CPU).exchange
    for sent in run(2, _sent, technique, 256, 16):
        assert sent == pytest.approx(planned.sent, rel=0.01)


def test_thc_takes_wider_sums_among_more_workers():
    few, many = (sampled_rates.measure(laconic.THC(), workers, CPU, rounds=1).sent for workers in (16, 64))
    # 4 bits up and 8 down, or 10 where 64 workers' 0 to 15 are summed; norms of blocks are up to 4 % more
    assert few == pytest.approx(1.5 * 15 / 16, rel=0.05)
    assert many == pytest.approx(1.75 * 63 / 64, rel=0.05)


def test_a_plan_says_what_is_fastest_and_by_how_much(answer):
    said = text.verdict(answer)
    best = answer.best()
    times = answer.seconds(answer.plain) / answer.seconds(best)
    assert best.label == "SignVote density=0.03"
    step = duration(answer.seconds(best))  # kernels are timed here, so it may be more or less than a second
    assert said.startswith(f"SignVote density=0.03 is fastest: {step} a step, {times:.1f}× as fast")
    assert "The best of PyTorch's hooks, fp16 hook, takes" in said


def test_nothing_pays_where_nobody_waits(answer):
    said = text.verdict(_asked(answer, compute=1000.0))
    assert said.startswith("Nothing pays: the network is not what you wait for.")


def test_nothing_pays_where_kernels_take_longer_than_the_wire(answer):
    ours = dataclasses.replace(answer, rows=[row for row in answer.rows if row.family != "peer"])
    said = text.verdict(_asked(ours, link=Link(1e11), compute=0.0))
    assert said.startswith("Nothing pays: plain DDP waits")


def test_beyond_the_break_even_nothing_pays(answer):
    limit = answer.break_even()
    assert 1e9 < limit < 1e12
    assert answer.pays(limit)
    assert not any(answer.pays(rate) for rate in plan.RATES if rate > limit)


def test_steps_are_shorter_on_faster_links(answer):
    for row in answer.rows:
        assert answer.seconds(row, 1e8) > answer.seconds(row, 1e9) > answer.seconds(row, 1e12)


def test_who_cannot_serve_is_left_out_with_the_reason():
    question = plan.Question(1024, Link(1e9), Model(10**6), 0.1)
    left_out = plan.ask(question, plan.parse(["sign_vote"]), CPU).left_out
    assert left_out == (
        "SignVote density=0.03 is left out: there are 1024 workers; SignVote serves up to 1023",
    )


def test_bytes_of_gossip_do_not_grow_with_workers(answer, monkeypatch):
    monkeypatch.setattr(scaling, "WORKERS", (2, 64))
    points = scaling.planned(answer.question, plan.parse(["crossover"]), CPU)
    sent = {(point.label, point.workers): point.sent for point in points}
    assert sent["Crossover", 2] == sent["Crossover", 64] == 4 * 350_000_000
    assert sent["plain DDP", 2] == 4 * 350_000_000 < sent["plain DDP", 64]


def test_figures_have_a_line_for_every_technique_and_mark_the_link(answer):
    lines, rule = charts.by_rate(answer)["vconcat"][0]["layer"]
    assert {value["label"] for value in lines["data"]["values"]} == {row.label for row in answer.rows}
    assert rule["data"]["values"] == [{"x": 1000}]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--params", "0"], "--params is '0'; use a number above zero"),
        (["--params", "many"], "--params is 'many'"),
        (["--params", "1e400"], "--params is '1e400'"),
        (["--link", "fast"], "link rate 'fast'"),
        (["--link", "none"], "--link is none"),
        (["--compute=-1s"], "--compute is '-1s'"),
        (["--latency", "soon"], "--latency is 'soon'"),
        (["--workers", "1"], "--workers is 1"),
        (["--techniques", "thx"], "unknown technique 'thx'; did you mean 'thc'?"),
        (["--rows", "0"], "--rows is 0"),
        (["--cores", "0"], "--cores is 0"),
        (["--scaling"], "say where with --out"),
        (["--runs", "/nonexistent", "--out", "."], "/nonexistent"),
    ],
)
def test_bad_input_gets_one_clear_sentence(arguments, sentence, capsys):
    assert main.main(["plan", *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_records_of_bare_links_show_no_scaling(tmp_path, capsys):
    recorded.run(tmp_path / "a.jsonl", recorded.step(1, 1.0), link="none", shaped=False)
    assert main.main(["plan", "--runs", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "none of these records is of a shaped link" in capsys.readouterr().err


def test_a_technique_is_planned_once_however_it_trains():
    labels = [contestant.label for contestant in plan.parse(["ddp@lr=0.1", "thc@lr=0.1", "thc"])]
    assert labels == ["plain DDP", "THC"]


def test_the_command_prints_a_table_a_verdict_and_assumptions(capsys, tmp_path):
    words = "plan --workers 8 --link 100mbit --params 10M --compute 50ms --techniques fp16 sign_vote --out"
    assert main.main([*words.split(), str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "SignVote density=0.03 is fastest" in said
    assert "Computing takes 50 ms a step: as given." in said
    assert "β = 0.7" in said
    assert "<svg" in (tmp_path / "plan.svg").read_text()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_bytes_are_the_same_on_a_device():
    for technique in (laconic.THC(), laconic.SignVote(), laconic.GenNorm()):
        here, there = (
            sampled_rates.measure(technique, 4, torch.device(kind)).sent for kind in ("cpu", "cuda")
        )
        assert there == pytest.approx(here, rel=0.01)  # THC's norms are added in another order
