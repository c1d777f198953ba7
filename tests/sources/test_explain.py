import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic.sources.explain import explain, table
from laconic.techniques.dad import DAD, RankDAD
from tests.support.workers import run


def _network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.LayerNorm(128), nn.Linear(128, 10))


TABLE = """\
layer  weight  travels  numbers  gradient  saves
0      128×64  rows       6,144    16,640   2.7×
3      10×128  dense      2,580     2,580   1.0×"""


def test_the_table_says_how_each_layer_travels_and_what_that_saves():
    assert explain(_network(), DAD(), rows=16, workers=2) == TABLE


def _explained_and_made(technique):
    model = DistributedDataParallel(_network())
    explained = explain(model, technique, rows=16)
    attachment = laconic.attach(model, technique)
    for _ in range(2):
        model.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
    return explained, table(attachment.choices)


@pytest.mark.parametrize("technique", [DAD(), RankDAD(rank=2, two_way=True), RankDAD(rank=2)], ids=repr)
def test_training_chooses_what_was_explained(technique):
    results = run(2, _explained_and_made, technique)
    assert all(explained == made == results[0][0] for explained, made in results)


def test_private_layers_are_not_in_the_table():
    assert "128×64" not in explain(_network(), DAD(private=("0.",)), rows=4, workers=2)


@pytest.mark.parametrize(
    ("technique", "rows", "said"),
    [
        (DAD(private=("encoder.",)), 4, "private has 'encoder.', but no trained parameter's name begins so"),
        (DAD(private=("0.", "3.")), 4, "no linear layer of this model can share"),
        (DAD(), 0, "rows is 0; use the rows that a worker has in a step"),
        (laconic.Dense(), 4, "serves gradients, not layers"),
    ],
)
def test_what_cannot_be_explained_gets_one_sentence(technique, rows, said):
    with pytest.raises((TypeError, ValueError), match=said):
        explain(_network(), technique, rows=rows, workers=2)
