"""Damaged rows and factors of layers: numbers of a layer's widths, or refused."""

import random

import torch

from laconic.layers.catalog import Layer
from laconic.layers.loads import LayerSetting
from laconic.messages.seals import joined
from laconic.numerics import lowrank
from laconic.numerics.damage import DamagedMessage
from laconic.techniques.dad import DAD, RankDAD
from tests.fuzz.damage import as_tensor, damaged

LAYERS = (
    Layer("a", "a.weight", "a.bias", 5, 9),
    Layer("b", "b.weight", None, 3, 4),
    Layer("c", "c.weight", "c.bias", 1, 2),
)
TECHNIQUES = DAD(), RankDAD(2), RankDAD(2, dtype="bf16"), RankDAD(8, energy=0.9, dtype="fp16")


def fuzz(messages, seed=0):
    """How many of so many damaged messages were understood, and how many were refused."""
    source = random.Random(seed)
    understood = refused = 0
    cases = [_case(technique, layer) for technique in TECHNIQUES for layer in LAYERS]
    for _ in range(messages):
        scheme, layer, message = source.choice(cases)
        known = _read(scheme, layer, [message, damaged(message, source)])
        understood, refused = understood + known, refused + (not known)
    return understood, refused


def _case(technique, layer):
    """A scheme, a layer, and a sound message of some columns, or rows."""
    scheme = technique.bind(LayerSetting(2, layers=(layer,)))
    columns = scheme._columns(layer) or 3
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(columns, width, generator=generator) for width in layer.shape]
    if scheme.factored is None:
        message = joined(rows)
    else:
        bias = torch.ones(layer.outputs if layer.bias is not None else 0)
        energy = torch.zeros((), dtype=torch.float64)
        factors = lowrank.Factors(rows[0].T, rows[1].T, energy.new_zeros(columns), energy)
        message = scheme._message(factors, scheme._columns(layer), bias)
    return scheme, layer, message.numpy().tobytes()


def _read(scheme, layer, messages):
    arrays = list(map(as_tensor, messages))
    try:
        deltas, inputs, bias = scheme._stacked(layer, arrays, range(2))
    except DamagedMessage:
        return False
    assert deltas.shape[1:] == (layer.outputs,)
    assert inputs.shape[1:] == (layer.inputs,)
    assert len(deltas) == len(inputs)
    assert (deltas.numel() + inputs.numel()) * scheme.wire.itemsize <= sum(map(len, messages))
    assert bias.shape in ((layer.outputs,), (0,))
    return True
