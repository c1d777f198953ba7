import pytest

from laconic.lab.worker import Settings
from laconic.report import charts
from laconic.studies import goodness, gradient_charts
from laconic.studies.gradient_charts import CURVES, FEWEST, ROWS
from laconic.studies.inspect_gradients import Look, summarize

SETTINGS = Settings("digits", "", 1, "", 6, batch=32, lr=0.1, momentum=0.9, optimizer="sgd", eval_every=6)


def _looks(betas, coordinates=10**6, steps=(1, 11)):
    """Layers with these β, each a little smaller than the one before."""
    return [
        Look(f"layer.{i}", coordinates - i, step, {**dict.fromkeys(goodness.MEASURES, 0.1 * i), "beta": beta})
        for step in steps
        for i, beta in enumerate(betas)
    ]


def _figure(looks):
    return gradient_charts.figure(SETTINGS, looks, summarize(looks))


def _curves(spec):
    return spec["vconcat"][0]["layer"][-1]["encoding"]["color"]["scale"]["domain"]


def _rows(spec):
    return spec["vconcat"][1]["encoding"]["y"]["scale"]["domain"]


@pytest.mark.parametrize(
    "looks",
    [
        _looks([0.5, 1, 2]),
        _looks([0.3], steps=(1,)),
        _looks([0.1, 4]),
        _looks([1.2] * 40),
        _looks([0.7], coordinates=1),
        [Look("zeros", 10, 1, {}), *_looks([0.7])],
        [Look("zeros", 10, 1, {})],
    ],
    ids=["some", "once", "all betas", "many", "tiny", "with zeros", "zeros"],
)
def test_the_figure_is_drawn_without_a_warning(looks, tmp_path, capfd):
    spec = _figure(looks)
    charts.engine().vegalite_to_svg(spec, show_warnings=True)
    assert capfd.readouterr() == ("", "")
    drawn = charts.figure(spec, tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert "6 steps of sgd, lr 0.1, momentum 0.9, batch 32, seed 0" in drawn
    assert all(f">{name}<" in drawn for name in (*_curves(spec), *_rows(spec)))


def test_rows_are_the_largest_layers():
    assert _rows(_figure(_looks([1.0] * 40))) == [f"layer.{i}" for i in range(ROWS)]


def test_curves_go_from_the_highest_beta_to_the_lowest():
    betas = [0.5, 1.9, 0.2] + [0.6 + 0.01 * i for i in range(12)]
    curves = _curves(_figure(_looks(betas)))
    found = [betas[int(name.split(".")[1])] for name in curves]
    assert len(curves) == len(set(curves)) == CURVES
    assert (found[0], found[-1]) == (1.9, 0.2)
    assert found == sorted(found, reverse=True)


def test_all_of_a_few_layers_have_curves():
    for count in range(1, CURVES + 1):
        assert sorted(_curves(_figure(_looks([0.1 * (i + 2) for i in range(count)])))) == [
            f"layer.{i}" for i in range(count)
        ]


def test_small_layers_are_drawn_only_where_there_are_no_others():
    looks = [*_looks([1.0, 1.1]), Look("small", FEWEST - 1, 1, dict.fromkeys(goodness.MEASURES, 0.5))]
    assert "small" not in _rows(_figure(looks))
    assert _rows(_figure(looks[-1:])) == ["small"]


def test_every_beta_is_within_the_axis():
    for betas in ([0.11, 0.2], [3.9], [0.9, 1.1]):
        spec = _figure(_looks(betas))
        encoding = spec["vconcat"][0]["layer"][-1]["encoding"]["y"]
        low, high = encoding["scale"]["domain"]
        assert low < min(betas)
        assert max(betas) < high
        assert 1 in encoding["axis"]["values"]
