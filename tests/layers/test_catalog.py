import pytest
from torch import nn

from laconic.layers.catalog import Layer, choose, find


def _found(model, frozen=()):
    trained = {name: value for name, value in model.named_parameters() if name not in frozen}
    return find(model, trained)


def _layer(outputs, inputs, bias=True):
    return Layer("layer", "layer.weight", "layer.bias" if bias else None, outputs, inputs)


# The paper page's examples, with four workers.
@pytest.mark.parametrize(
    ("layer", "ways", "rows", "rank", "way", "saves"),
    [
        (_layer(512, 784, bias=False), ["rows"], 32, 32, "rows", 2 * 512 * 784 / (4 * 32 * 1296)),
        (_layer(3072, 768), ["rows"], 4096, 4096, "dense", 1.0),
        (_layer(3072, 768, bias=False), ["two ways"], 4096, 8, "two ways", 768 * 3072 / (8 * 3840)),
        (_layer(10, 512), ["rows"], 32, 32, "dense", 1.0),
        (_layer(1024, 3136, bias=False), ["one way"], 32, 4, "one way", 2 * 1024 * 3136 / (4 * 4 * 4160)),
    ],
)
def test_the_cheapest_way_is_chosen(layer, ways, rows, rank, way, saves):
    choice = choose(layer, ways, rows, rank, 4)
    assert choice.way == way
    assert choice.saves == pytest.approx(saves)


def test_factors_have_no_more_columns_than_there_are_rows():
    choice = choose(_layer(100, 100, bias=False), ["one way"], rows=2, rank=50, workers=3)
    assert choice.numbers["one way"] == 3 * 2 * 200


def test_a_bias_is_counted_where_it_travels_beside_factors():
    with_bias, without = (choose(_layer(10, 20, bias), ["two ways"], 8, 1, 2) for bias in (True, False))
    assert with_bias.numbers["two ways"] - without.numbers["two ways"] == 2 * 10
    assert with_bias.numbers["dense"] - without.numbers["dense"] == 2 * 10


def test_layers_are_found_in_order_with_their_shapes():
    model = nn.Sequential(
        nn.Linear(4, 3), nn.LayerNorm(3), nn.Conv2d(2, 5, 3, bias=False), nn.Embedding(4, 4)
    )
    assert list(_found(model)) == [
        Layer("0", "0.weight", "0.bias", 3, 4),
        Layer("2", "2.weight", None, 5, 18, convolution=True),
    ]


def test_a_frozen_weight_is_no_layer_and_a_frozen_bias_is_not_the_layers():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    assert list(_found(model, frozen={"0.weight", "1.bias"})) == [Layer("1", "1.weight", None, 2, 3)]


def test_modules_that_share_weight_and_bias_are_one_layer():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight, model[1].bias = model[0].weight, model[0].bias
    assert _found(model) == {Layer("0", "0.weight", "0.bias", 4, 4): [model[0], model[1]]}


@pytest.mark.parametrize("other", ["embedding", "own bias", "no bias", "convolution"])
def test_a_weight_that_is_shared_with_something_else_is_no_layer(other):
    model = nn.Sequential(
        nn.Linear(4, 4, bias=other != "embedding"), nn.Linear(4, 4, bias=other == "own bias")
    )
    if other == "embedding":
        model[1] = nn.Embedding(4, 4)
    if other == "convolution":
        model = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.Conv2d(4, 4, 1, groups=4, bias=False))
        model[1] = nn.ConvTranspose2d(4, 4, 1, bias=False)
    model[1].weight = model[0].weight
    assert not _found(model)


def test_normalized_weights_are_no_layers():
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.utils.spectral_norm(nn.Linear(3, 3))
    )
    assert not _found(model)
