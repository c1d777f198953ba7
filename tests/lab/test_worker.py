import json
import os
import subprocess
import sys

import pytest
import torch

from laconic import RankDAD
from laconic.lab import records
from laconic.lab import worker as worker_module
from laconic.lab.compare import execute
from laconic.lab.links import Lab
from laconic.lab.worker import Settings, Traffic, Worker, checksum
from tests.support.workers import run

TUNED = {"steps": 4, "batch": 8, "lr": 0.05, "momentum": 0.9, "optimizer": "sgd", "eval_every": 2}


class _Silent:
    def look(self):
        pass


def _settings(tmp_path, **changes):
    basic = {"task": "digits", "spec": "dense", "workers": 2, "record": str(tmp_path / "run.jsonl")}
    return Settings(**basic | TUNED | changes)


def test_the_meter_agrees_with_the_interface(tmp_path):
    with Lab([10**8, 10**9]) as lab:
        if not lab.isolated:
            pytest.skip(lab.note)
        settings = _settings(tmp_path, size="wide", link="100mbit,1gbit", interface=lab.interface)
        execute(settings, lab, _Silent())
    steps = records.read(tmp_path / "run.jsonl").steps
    for metered, counted in (("sent", "tx"), ("received", "rx")):
        ours, theirs = (sum(getattr(step, name) for step in steps) for name in (metered, counted))
        assert theirs * 0.9 <= ours <= theirs  # frames take 5 %, and what a busy machine drops is sent again


def _work(path):
    settings = Settings(**json.loads(path.read_text()))
    worker = Worker(settings)
    worker.run()
    return checksum(worker.model), next(worker.batches).targets.tolist()


def _run(tmp_path, **changes):
    settings = _settings(tmp_path, **changes)
    results = run(2, _work, settings.save(tmp_path / "run.json"))
    return results, records.read(tmp_path / "run.jsonl")


def test_when_a_run_has_ended_no_thread_of_gloo_is_left(tmp_path):
    """One that lets go of its last tensor when Python has ended would end the process by a signal, now and then."""
    specs = ("ddp", "thc", "crossover")
    paths = [_settings(tmp_path, spec=spec, workers=1).save(tmp_path / f"{spec}.json") for spec in specs]
    program = (
        "import pathlib, sys; from laconic.lab import worker\n"
        "for path in sys.argv[1:]:\n"
        "    worker.main(path)\n"
        "    print(*[each.read_text().strip() for each in pathlib.Path('/proc/self/task').glob('*/comm')])"
    )
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    command = [sys.executable, "-c", program, *map(str, paths)]
    ended = subprocess.run(command, env={**os.environ, **alone}, capture_output=True, text=True, check=True)
    assert len(ended.stdout.splitlines()) == len(specs)
    assert "gloo" not in ended.stdout


def test_a_record_has_every_step_and_evaluation_and_the_proof_of_equal_replicas(tmp_path):
    results, record = _run(tmp_path)
    assert record.header.technique == "Dense(dtype='fp32', error_feedback=False)"
    assert record.header.family == "laconic"
    assert [step.step for step in record.steps] == [1, 2, 3, 4]
    assert [point.step for point in record.evals] == [0, 2, 4]
    assert record.end.replicas_equal
    assert {checksum for checksum, _ in results} == {record.end.checksum}
    assert record.end.seconds == pytest.approx(sum(step.seconds for step in record.steps), rel=1e-5)
    for step in record.steps:
        parts = step.phases["compute"] + step.phases["waiting"]
        assert parts == pytest.approx(step.seconds, rel=1e-5)  # numbers have six digits
        assert {"encode", "up", "combine", "down", "decode"} <= set(step.phases)
        assert step.sent > 0
    assert record.evals[-1].sent == sum(step.sent for step in record.steps)


def test_a_steps_numbers_are_short(tmp_path):
    _run(tmp_path, spec="gennorm")
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    numbers = [
        number
        for step in steps
        for number in (step["seconds"], step["loss"], *step["phases"].values(), *step["readings"].values())
    ]
    assert len(numbers) > 8 * len(steps)
    assert all(number == float(f"{number:.6g}") for number in numbers)


def test_a_record_says_once_how_each_layer_travels(tmp_path):
    _, record = _run(tmp_path, spec="rank_dad:rank=2")
    assert [layer.way for layer in record.layers].count("one way") > 0
    first = record.layers[0]
    assert first.gradient == 2 * (first.shape[0] * first.shape[1] + first.shape[0])
    assert first.saves == first.gradient / first.numbers
    assert len({layer.layer for layer in record.layers}) == len(record.layers)
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert kinds.count("layers") == 1
    assert kinds.index("layers") < kinds.index("step") + 4
    assert record.header.warning == RankDAD.warning


def test_a_record_of_gossip_has_consensus_distances_and_no_layers(tmp_path):
    _, record = _run(tmp_path, spec="crossover:segments=2,every=3")
    assert record.layers == ()
    assert [point.consensus is not None for point in record.evals] == [True, True, True]
    assert record.end.consensus > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "spec", ["ddp", "fp16", "powersgd:rank=1", "gennorm", "dad", "crossover:overlap=true"]
)
def test_a_run_trains_on_a_gpu_as_on_the_cpu(tmp_path, spec):
    ends = []
    for device in ("cpu", "cuda"):
        (tmp_path / device).mkdir()
        _, record = _run(tmp_path / device, spec=spec, task="text", size="small", device=device)
        assert (torch.cuda.get_device_name() in record.header.machine) == (device == "cuda")
        assert record.end.replicas_equal or "crossover" in spec
        ends.append(record.evals[-1].value)
    assert ends[1] == pytest.approx(ends[0], rel=2e-3)


def test_every_technique_sees_the_same_batches_and_workers_different_ones(tmp_path):
    for name in ("dense", "plain"):
        (tmp_path / name).mkdir()
    dense, _ = _run(tmp_path / "dense", spec="dense:dtype=bf16")
    plain, _ = _run(tmp_path / "plain", spec="ddp")
    assert [batch for _, batch in dense] == [batch for _, batch in plain]
    assert plain[0][1] != plain[1][1]


def test_the_learning_rate_falls_to_zero_along_a_cosine(tmp_path):
    rates = run(1, _rates, _settings(tmp_path, workers=1).save(tmp_path / "run.json"))[0]
    assert rates == pytest.approx([0.05, 0.05 * 0.853553, 0.025, 0.05 * 0.146447], rel=1e-4)


def _rates(path):
    worker = Worker(Settings(**json.loads(path.read_text())))
    rates = []
    for step in range(1, 5):
        worker._step(step, next(worker.batches))
        rates.append(worker.optimizer.param_groups[0]["lr"])
    return rates


def test_one_changed_bit_changes_the_checksum():
    model = torch.nn.Linear(3, 3)
    before = checksum(model)
    with torch.no_grad():
        model.bias[0] = torch.nextafter(model.bias[0], torch.tensor(10.0))
    assert checksum(model) != before


def test_traffic_in_a_pause_is_left_out(monkeypatch):
    counters = iter([(0, 0), (100, 10), (150, 20), (250, 30)])
    monkeypatch.setattr(worker_module, "interface_counters", lambda _: next(counters))
    traffic = Traffic("eth0", None)
    assert traffic.step()[0] == (100, 10)
    traffic.pause()
    assert traffic.step()[0] == (100, 10)
    assert traffic.total() == (200, None)
