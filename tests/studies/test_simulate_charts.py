import math

import pytest

from laconic.cli import studies
from laconic.report import charts
from laconic.studies import simulate_charts
from laconic.studies.simulate_charts import figures
from laconic.studies.simulate_table import best
from tests.studies.test_simulate_table import DIGITS, TEXT, a_run

METHODS = studies.METHODS.split()


def rows(task=DIGITS, methods=METHODS, workers=(4, 8), batches=(8,), seeds=2, distances=(0.1, 0.01)):
    runs = [
        a_run(0.9 - 0.01 * seed, method, task, number, batch, seed=seed, distances=distances)
        for method in methods
        for number in workers
        for batch in batches
        for seed in range(seeds)
    ]
    return best(runs, task)


def drawn(spec, capfd):
    svg = charts.engine().vegalite_to_svg(spec, show_warnings=True)
    assert capfd.readouterr() == ("", "")
    return svg


def values(spec):
    return [value for panel in spec["vconcat"] for value in panel["data"]["values"]]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"workers": (4,)},
        {"batches": (8, 16)},
        {"methods": ["sgp"]},
        {"seeds": 1},
        {"task": TEXT},
        {"distances": (0.1, math.nan)},
    ],
    ids=str,
)
def test_figures_are_drawn_without_a_warning(options, capfd):
    found = rows(**options)
    for spec in figures(found, options.get("task", DIGITS)).values():
        svg = drawn(spec, capfd)
        for row in found:
            assert f">{row.name}<" in svg


def test_every_method_has_its_own_look():
    assert list(simulate_charts.LOOKS) == [method.replace("_", " ") for method in METHODS]
    assert len({color for color, _ in simulate_charts.LOOKS.values()}) == len(METHODS)


def test_there_is_a_figure_against_batches_only_where_there_are_several():
    assert list(figures(rows(), DIGITS)) == ["accuracy-by-workers", "consensus-by-step"]
    several = figures(rows(batches=(8, 16)), DIGITS)
    assert list(several) == ["accuracy-by-workers", "accuracy-by-batch", "consensus-by-step"]
    assert {value["x"] for value in values(several["accuracy-by-batch"])} == {8, 16}


def test_without_gossip_there_are_no_distances():
    assert list(figures(rows(methods=["allreduce"], distances=(0.0, 0.0)), DIGITS)) == ["accuracy-by-workers"]


def test_a_point_is_the_mean_of_its_seeds_in_their_range():
    (point,) = values(figures(rows(methods=["sgp"], workers=(4,)), DIGITS)["accuracy-by-workers"])
    assert point == {"method": "sgp", "x": 4, "value": pytest.approx(0.895), "low": 0.89, "high": 0.9}


def test_steps_without_a_distance_are_left_out():
    distances = figures(rows(distances=(0.0, 0.5, math.nan, 0.25)), DIGITS)["consensus-by-step"]
    assert {(value["x"], value["value"]) for value in values(distances)} == {(2, 0.5), (4, 0.25)}


def test_settings_have_a_panel_each_with_its_words():
    spec = figures(rows(batches=(8, 16)), DIGITS)["consensus-by-step"]
    assert [panel["title"]["text"] for panel in spec["vconcat"]] == [
        f"{workers} workers, batches of {batch}" for workers in (4, 8) for batch in (8, 16)
    ]
