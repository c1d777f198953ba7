import re

import pytest
import torch

from laconic.lab.worker import Settings
from laconic.layers.catalog import Layer
from laconic.report import charts, rank_charts, summary
from laconic.report.rank_charts import STRETCHES
from laconic.studies.inspect_rank import Look, measure
from tests.support.recorded import evaluation, run, step

SETTINGS = Settings("digits", "", 1, "", 6, batch=32, lr=0.1, momentum=0.9, optimizer="sgd", eval_every=6)


def _looks(ranks, steps=(1, 11)):
    """A layer for each rank, which it has at all steps."""
    layers = [Layer(f"layer.{i}", f"layer.{i}.weight", None, 64, 128 + i) for i, _ in enumerate(ranks)]
    return {
        layer: [Look(layer, step, 1500, {**measure(torch.ones(1)), "rank": rank}) for step in steps]
        for layer, rank in zip(layers, ranks, strict=True)
    }


def _row(tmp_path, *seeds):
    """A row of runs, each with these readings at its steps."""
    runs = [
        run(
            tmp_path / f"{seed}.jsonl",
            *(step(number, readings=readings) for number, readings in enumerate(steps, 1)),
            evaluation(1, 0.9, 1.0),
            seed=seed,
        )
        for seed, steps in enumerate(seeds)
    ]
    (row,) = summary.summarize(runs)
    return row


def _names(spec):
    return spec["encoding"]["y"]["scale"]["domain"]


def _cells(spec):
    return {(value["layer"], value["step"]): value["rank"] for value in spec["data"]["values"]}


def _drawn(spec, capfd):
    sized = {**spec, "width": 640} if spec["width"] == "container" else spec
    svg = charts.engine().vegalite_to_svg(sized, show_warnings=True)
    assert capfd.readouterr() == ("", "")
    return svg


@pytest.mark.parametrize(
    "looks",
    [
        _looks([2, 16, 7]),
        _looks([1], steps=(1,)),
        _looks([0, 3]),
        _looks([0]),
        _looks([500] * 60),
        _looks([3], steps=range(1, 800)),
    ],
    ids=["some", "once", "no gradient", "nothing", "many layers", "many steps"],
)
def test_the_figure_is_drawn_without_a_warning(looks, capfd):
    drawn = _drawn(rank_charts.figure(SETTINGS, looks), capfd)
    assert "6 steps of sgd, lr 0.1, momentum 0.9, batch 32, seed 0" in drawn
    for layer, (look, *_) in looks.items():
        assert f">{layer.name}<" in drawn
        assert f">{look.measured['rank']}<" in drawn
        assert f">{layer.outputs}×{layer.inputs}, 1,500 rows<" in drawn


def test_layers_have_the_order_of_the_model():
    looks = _looks([3, 1, 2])
    turned = dict(reversed(looks.items()))
    assert _names(rank_charts.figure(SETTINGS, turned)) == ["layer.2", "layer.1", "layer.0"]


def test_a_darker_cell_has_a_higher_rank(capfd):
    drawn = _drawn(rank_charts.figure(SETTINGS, _looks([1, 4, 64], steps=(1,))), capfd)
    first, second, third = (int(red) for red in re.findall(r'fill="rgb\((\d+)', drawn))
    assert first > second > third


def test_a_chart_of_a_run_has_a_cell_for_every_layer_and_step(tmp_path, capfd):
    row = _row(tmp_path, [{}, {"rank fc.10": 3.0, "rank fc.2": 5.0, "kept fc.2": 0.9}, {"rank fc.2": 4.0}])
    spec = rank_charts.rank_by_step(row)
    assert _names(spec) == ["fc.2", "fc.10"]
    assert _cells(spec) == {("fc.2", 2): 5, ("fc.2", 3): 4, ("fc.10", 2): 3}
    assert ">fc.10<" in _drawn(spec, capfd)


def test_many_steps_and_seeds_are_medians_over_stretches(tmp_path):
    seeds = [
        [{"rank fc": float(number // 4 + more)} for number in range(4 * STRETCHES)] for more in (1, 2, 2)
    ]
    cells = _cells(rank_charts.rank_by_step(_row(tmp_path, *seeds)))
    assert cells == {("fc", 4 * (index + 1)): index + 2 for index in range(STRETCHES)}


def test_a_run_without_ranks_has_no_chart(tmp_path):
    assert rank_charts.rank_by_step(_row(tmp_path, [{}, {"error": 0.1}]))["data"]["values"] == []
