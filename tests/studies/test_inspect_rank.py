import csv
import dataclasses

import pytest
import torch

from laconic.cli import main
from laconic.lab.worker import Settings
from laconic.layers.catalog import Layer
from laconic.studies import inspect_gradients, inspect_rank
from laconic.studies.inspect_rank import Look, measure

SETTINGS = Settings("digits", "", 1, "", 6, batch=32, lr=0.1, momentum=0.9, optimizer="sgd", eval_every=6)
SMALL, LARGE = Layer("small", "small.weight", None, 2, 3), Layer("large", "large.weight", None, 50, 70)


def _looks(*ranks, layer=SMALL):
    """A layer with these ranks at so many steps."""
    return {
        layer: [
            Look(layer, step, 32, {**measure(torch.ones(9)), "rank": rank})
            for step, rank in enumerate(ranks, 1)
        ]
    }


def _read(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def _cells(table):
    """The cells of a table's last line."""
    return table.splitlines()[-1].split()


@pytest.mark.parametrize("task", ["digits", "text"])
def test_what_is_measured_is_the_gradient_of_plain_training(task):
    settings = dataclasses.replace(
        SETTINGS, task=task, size="small" if task == "text" else "default", steps=3, batch=2
    )
    looks = {layer.weight: every[-1] for layer, every in inspect_rank.watch(settings).items()}
    for _, model in inspect_gradients.training(settings):  # the last step's is wanted
        grads = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    for name, look in looks.items():
        sigma = torch.linalg.svdvals(grads[name].double())
        assert look.step == 3
        for place, value in enumerate(
            sigma[:8].tolist(), 1
        ):  # float32 rounds the gradient to about 1e-7 of σ₁
            found = look.measured.get(f"sigma_{place}", 0.0)
            assert found == pytest.approx(value, rel=1e-4, abs=1e-5 * float(sigma[0]))


@pytest.mark.parametrize(
    ("every", "steps"), [(None, [1, 2, 3, 4, 5, 6]), (2, [1, 3, 5]), (5, [1, 6]), (99, [1])]
)
def test_every_layer_is_looked_at_from_the_first_step_on(every, steps):
    looks = inspect_rank.watch(SETTINGS, every)
    assert [layer.name for layer in looks] == ["0", "2", "4"]
    for layer_looks in looks.values():
        assert [look.step for look in layer_looks] == steps
        assert all(look.rows == 32 for look in layer_looks)


def test_looking_changes_nothing_and_seeds_do():
    often, once = (inspect_rank.watch(SETTINGS, every) for every in (1, 5))
    assert [looks[-1] for looks in often.values()] == [looks[-1] for looks in once.values()]
    assert inspect_rank.watch(dataclasses.replace(SETTINGS, seed=1), 5) != once


def test_a_gradient_that_is_not_finite_names_its_layer_and_step():
    with pytest.raises(
        ValueError, match=r"the gradient of \d\.weight at step \d+ is not finite; use a smaller --lr"
    ):
        inspect_rank.watch(dataclasses.replace(SETTINGS, steps=9, lr=1e30))


def test_ranks_count_singular_values_and_shares_their_squares():
    measured = measure(torch.tensor([10.0, 1.5, 0.9, 0.2, 0.01]))
    assert [measured[name] for name in ("rank", "above_1", "above_10")] == [1, 4, 2]
    total = 100 + 2.25 + 0.81 + 0.04 + 0.0001
    for rank, energy in {1: 100, 2: 102.25, 4: total - 0.0001, 8: total}.items():
        assert measured[f"kept_{rank}"] == pytest.approx(energy / total)
    assert [name for name in measured if name.startswith("sigma")] == [f"sigma_{i}" for i in range(1, 6)]


def test_equal_singular_values_take_95_percent_of_their_number():
    assert measure(torch.ones(100))["rank"] == 95


@pytest.mark.parametrize("sigma", [torch.zeros(0), torch.zeros(4)], ids=["no rows", "zero"])
def test_no_gradient_has_rank_zero(sigma):
    measured = measure(sigma)
    assert [measured[name] for name in ("rank", "above_1", "above_10")] == [0, 0, 0]
    assert not any(name.startswith("kept") for name in measured)


def test_steps_without_a_gradient_have_no_share():
    zero, one = (Look(SMALL, 1, rows, measure(torch.ones(rows))) for rows in (0, 1))
    for looks, written in (([zero], "–"), ([zero, one, zero], "100.0")):
        _, table = inspect_rank.text({SMALL: looks}).split("\n\n")
        assert _cells(table) == ["small", *[written] * 4]


@pytest.mark.parametrize(
    ("ranks", "written"),
    [
        ((7,), ["7", "7", "7", "7"]),
        ((9, 3), ["9", "9", "3", "6"]),
        ((9, 5, 1), ["9", "5", "1", "5"]),
        ((9, 8, 7, 4, 5, 6, 1, 1, 2), ["8", "5", "1", "5"]),
    ],
)
def test_the_table_has_medians_of_the_thirds_of_training(ranks, written):
    table, _ = inspect_rank.text(_looks(*ranks)).split("\n\n")
    assert _cells(table) == ["small", "2×3", "32", *written, "9", "9"]


def test_the_table_has_percents_and_lines_of_one_width():
    for table in inspect_rank.text(_looks(1, 2) | _looks(30, 4, layer=LARGE)).split("\n\n"):
        _, *lines = table.splitlines()
        assert len({len(line) for line in lines}) == 1
        assert [line.split()[0] for line in lines] == ["layer", "small", "large"]
    assert _cells(table) == ["large", "11.1", "22.2", "44.4", "88.9"]


def test_the_file_has_a_line_for_every_layer_and_step(tmp_path):
    looks = {SMALL: [Look(SMALL, step, 5, measure(torch.tensor([2.0, 1 / 3]))) for step in (1, 11)]}
    first, second = _read(inspect_rank.write_csv(looks, tmp_path / "rank.csv"))
    assert list(first) == ["layer", "outputs", "inputs", "step", "rows", *inspect_rank.MEASURES]
    assert first == second | {"step": "1"}
    assert [second[name] for name in ("layer", "outputs", "inputs", "step")] == ["small", "2", "3", "11"]
    assert [first[f"sigma_{place}"] for place in (1, 2, 3, 8)] == ["2", "0.333333", "", ""]


def test_the_command_writes_a_table_and_a_figure(tmp_path, capsys):
    command = "inspect rank digits --steps 20 --every 10 --lr 0.05 --optimizer adam --seed 3 --out"
    assert main.main([*command.split(), str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.split()[-2:] == [str(tmp_path / name) for name in ("rank.csv", "rank.svg")]
    assert [row["step"] for row in _read(tmp_path / "rank.csv")] == ["1", "11"] * 3
    assert "20 steps of adam, lr 0.05, batch 32, seed 3" in (tmp_path / "rank.svg").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("digit", "unknown task 'digit', nearest to 'digits'"),
        ("digits --every 0", "--every is 0; it must be above zero"),
        ("digits --lr 1e30 --steps 9", "is not finite; use a smaller --lr"),
        ("digits --out /proc/nowhere", "cannot write to /proc/nowhere"),
    ],
)
def test_bad_options_get_one_sentence(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main.main(["inspect", "rank", *words.split()]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
