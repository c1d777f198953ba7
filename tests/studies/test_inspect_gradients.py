import csv
import dataclasses
import math
import sys

import pytest
import torch

from laconic.cli import main
from laconic.lab import tasks
from laconic.lab.worker import Settings
from laconic.studies import goodness, inspect_gradients
from laconic.studies.inspect_gradients import Layer, Look

SETTINGS = Settings("digits", "", 1, "", 6, batch=32, lr=0.1, momentum=0.9, optimizer="sgd", eval_every=6)


def _measured(value):
    return dict.fromkeys(goodness.MEASURES, value)


def _read(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def _last_gradient(settings):
    """Of every parameter at the last step, where the rate falls along a cosine."""
    task = tasks.load(settings.task)
    model = task.model(settings.seed)
    optimizer = torch.optim.SGD(model.parameters(), momentum=settings.momentum)
    batches = task.batches(0, 1, batch=settings.batch, seed=settings.seed)
    for step in range(settings.steps):
        optimizer.step()
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = settings.lr * (1 + math.cos(math.pi * step / settings.steps)) / 2
        task.loss(model, next(batches)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("steps", [1, 6])
def test_what_is_measured_is_the_gradient_of_plain_training(steps):
    settings = dataclasses.replace(SETTINGS, steps=steps)
    expected = {name: goodness.measure(grad) for name, grad in _last_gradient(settings).items()}
    looks = [look for look in inspect_gradients.watch(settings) if look.step == steps]
    assert [look.layer for look in looks] == list(expected)
    for look in looks:  # rates are rounded in another order, and β has steps of 1.5 %
        assert look.measured == pytest.approx(expected[look.layer], rel=0.03)


@pytest.mark.parametrize(
    ("every", "steps"), [(None, [1, 2, 3, 4, 5, 6]), (2, [1, 3, 5]), (5, [1, 6]), (99, [1])]
)
def test_every_layer_is_looked_at_from_the_first_step_on(every, steps):
    looks = inspect_gradients.watch(SETTINGS, every)
    for layer in {look.layer for look in looks}:
        assert [look.step for look in looks if look.layer == layer] == steps
    assert len(looks) == 6 * len(steps)


def test_looking_changes_nothing_and_seeds_do():
    often, once = (inspect_gradients.watch(SETTINGS, every) for every in (1, 5))
    assert [look for look in often if look.step == 6] == [look for look in once if look.step == 6]
    other = inspect_gradients.watch(dataclasses.replace(SETTINGS, seed=1), 5)
    assert [look.measured for look in other] != [look.measured for look in once]


def test_a_gradient_that_is_not_finite_names_its_layer_and_step():
    with pytest.raises(
        ValueError, match=r"the gradient of \d\.\w+ at step \d+ is not finite; use a smaller --lr"
    ):
        inspect_gradients.watch(dataclasses.replace(SETTINGS, steps=9, lr=1e30))


def test_layers_are_in_order_of_size_with_medians_of_beta_and_means_of_bits():
    looks = [
        Look(name, size, step, _measured(value))
        for name, size in (("small", 3), ("large", 50))
        for step, value in enumerate([1.0, 2.0, 6.0])
    ]
    large, small = inspect_gradients.summarize(looks)
    assert (large.name, large.coordinates, small.name) == ("large", 50, "small")
    for measure, value in large.measured.items():
        assert value == (2 if measure == "beta" or measure.startswith("w2") else 3)


def test_steps_without_a_gradient_do_not_count_and_layers_without_one_have_no_numbers():
    looks = [Look("a", 2, 1, {}), Look("a", 2, 2, _measured(1.5)), Look("b", 1, 1, {}), Look("b", 1, 2, {})]
    layers = inspect_gradients.summarize(looks)
    assert layers == [Layer("a", 2, _measured(1.5)), Layer("b", 1, {})]
    assert inspect_gradients.text(layers).count("–") == 4 + 2 * len(goodness.CODES)


def test_tables_have_lines_of_one_width_and_the_largest_layers_only():
    layers = [Layer(f"layer {i}" + "x" * i, 10**6 - i, _measured(i)) for i in range(30)]
    *tables, last = inspect_gradients.text(layers).split("\n\n")
    assert last == "10 smaller layers are in the file:"
    for table in tables:
        _, *lines = table.split("\n")
        assert len(lines) == 1 + inspect_gradients.PRINTED
        assert len({len(line) for line in lines}) == 1


def test_the_file_has_all_layers_and_numbers(tmp_path):
    layers = [Layer("a", 7, _measured(0.123456789)), Layer("b", 1, {})]
    path = inspect_gradients.write_csv(layers, tmp_path / "table.csv")
    first, second = _read(path)
    assert first == {"layer": "a", "coordinates": "7", **dict.fromkeys(goodness.MEASURES, "0.123457")}
    assert second == {"layer": "b", "coordinates": "1", **dict.fromkeys(goodness.MEASURES, "")}


def test_the_command_writes_a_table_and_a_figure(tmp_path, capsys):
    command = "inspect gradients digits --steps 20 --every 10 --lr 0.05 --optimizer adam --seed 3 --out"
    assert main.main([*command.split(), str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.split()[-2:] == [str(tmp_path / name) for name in ("gradients.csv", "gradients.svg")]
    rows = _read(tmp_path / "gradients.csv")
    sizes = [int(row["coordinates"]) for row in rows]
    assert sizes == [8192, 8192, 640, 128, 64, 10]
    for row in rows:
        assert row["layer"] in captured.out
        assert all(math.isfinite(float(row[measure])) for measure in goodness.MEASURES)
    assert "20 steps of adam, lr 0.05, batch 32, seed 3" in (tmp_path / "gradients.svg").read_text()


def test_the_table_goes_to_a_fresh_directory(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main.main(["inspect", "gradients", "digits", "--steps", "1"]) == 0
    (directory,) = (tmp_path / "runs").iterdir()
    assert directory.name.startswith("inspect-digits-")
    assert {file.name for file in directory.iterdir()} == {"gradients.csv", "gradients.svg"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("digit", "unknown task 'digit', nearest to 'digits'"),
        ("digits --every 0", "--every is 0; it must be above zero"),
        ("digits --steps 0", "--steps is 0; it must be above zero"),
        ("digits --batch -1", "--batch is -1"),
        ("digits --lr 0", "lr is 0.0; it must be above zero"),
        ("digits --lr 1e30 --steps 9", "is not finite; use a smaller --lr"),
        ("digits --size huge", "unknown digits size 'huge'"),
        ("fashion --data /nonexistent", "/nonexistent"),
        ("digits --out /proc/nowhere", "cannot write to /proc/nowhere"),
    ],
)
def test_bad_options_get_one_sentence(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main.main(["inspect", "gradients", *words.split()]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_only_gradients_can_be_inspected(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["laconic", "inspect", "weights", "digits"])
    with pytest.raises(SystemExit) as ended:
        main.main(["inspect", "weights", "digits"])
    assert ended.value.code == 2
    assert "gradients" in capsys.readouterr().err
