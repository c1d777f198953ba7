"""A damaged message is one error, whatever the technique, with the worker that sent it as a field."""

import pickle

import pytest
import torch

import laconic
from laconic import THC, DamagedMessage, GenNorm, SignVote
from laconic.core.technique import Bucket
from laconic.layers.catalog import Layer
from laconic.layers.loads import LayerSetting, LayerTurn
from tests.support.altered import Altered
from tests.support.by_hand import Group

BUCKET = Bucket(("a.weight", "b.weight"), (20_000, 9_000), torch.float32)


@pytest.mark.parametrize(
    "technique", [THC(entropy=True), SignVote(0.1), GenNorm(), GenNorm(coder="rans")], ids=repr
)
@pytest.mark.parametrize("worker", [0, 2])
def test_the_error_knows_who_sent_it(technique, worker):
    def cut(messages):
        messages[worker][1] = messages[worker][1][:-1]
        return messages

    gradients = list(torch.randn(3, BUCKET.numel, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(DamagedMessage) as caught:
        Group(technique, 3).reduce(BUCKET, gradients, damage=cut)
    assert caught.value.worker == worker
    assert str(caught.value).startswith(f"the message of worker {worker} ")
    assert str(caught.value).endswith(caught.value.fault)


class _Twice:
    """Worker 1 adds everybody's message twice."""

    def combine(self, desk, messages):
        return super().combine(desk, messages.repeat(1 + (desk.shard == 1), 1))


class _Fewer:
    """Worker 1 leaves one out."""

    def combine(self, desk, messages):
        return super().combine(desk, messages[:2] if desk.shard == 1 else messages)


class _None:
    """Worker 1 says that it heard nobody."""

    def combine(self, desk, messages):
        reply = super().combine(desk, messages)
        reply[-4:] *= desk.shard != 1
        return reply


@pytest.mark.parametrize(
    ("entropy", "miscounting", "fault"),
    [
        (False, _None, "has 0 contributors where there are 3 workers"),
        (False, _Twice, "has 6 contributors where there are 3 workers"),
        (False, _Fewer, "has 2 contributors where others have 3"),
        (True, _Fewer, "has 2 contributors where others have 3"),
    ],
)
def test_a_sum_of_other_contributors_than_there_can_be_names_who_made_it(entropy, miscounting, fault):
    technique = Altered(THC(entropy=entropy, granularity=15), miscounting)
    with pytest.raises(DamagedMessage, match="the message of worker 1 ") as caught:
        Group(technique, 3).reduce(BUCKET, [torch.ones(BUCKET.numel)] * 3)
    assert caught.value.fault == fault


LAYERS = tuple(Layer(name, f"{name}.weight", f"{name}.bias", 5, 9) for name in ("fc", "head"))


def _decoded(technique, sizes):
    """Messages of so many bytes about the second layer are decoded by one of four workers."""
    scheme = technique.bind(LayerSetting(4, layers=LAYERS))
    turn = LayerTurn(scheme.piece(LAYERS[1], torch.float32), 0, 0)
    scheme.decode(turn, [torch.zeros(size, dtype=torch.uint8) for size in sizes], torch.empty(0))
    return turn


@pytest.mark.parametrize(
    ("technique", "sound", "size", "fault"),
    [
        (laconic.DAD(), 168, 167, "has 167 bytes, which are no whole rows of 56"),
        (laconic.DAD(), 168, 172, "has 172 bytes, which are no whole rows of 56"),
        (laconic.RankDAD(2), 132, 128, "has 128 bytes, which are no whole rows of 56"),
        (laconic.RankDAD(2), 132, 19, "has 19 bytes, which are no whole rows of 56"),
        (laconic.RankDAD(2), 132, 76, "has 1 columns, where 2 were agreed on"),
        (laconic.RankDAD(energy=0.9, dtype="bf16"), 48, 49, "has 49 bytes, which are no whole rows of 28"),
    ],
)
def test_rows_that_are_not_whole_name_who_sent_them(technique, sound, size, fault):
    assert len(_decoded(technique, [sound, sound]).products) == 2
    with pytest.raises(DamagedMessage) as caught:
        _decoded(technique, [sound, size])
    assert (caught.value.worker, caught.value.fault) == (1, fault)


def test_of_a_damaged_reply_about_a_layer_its_owner_is_named():
    with pytest.raises(DamagedMessage, match="the message of worker 1 has 7 bytes"):
        _decoded(laconic.RankDAD(2, two_way=True), [7])


def test_the_error_may_travel():
    told = pickle.loads(pickle.dumps(laconic.DamagedMessage(3, "is cut short", "fc.weight")))
    assert (told.worker, told.fault, told.about) == (3, "is cut short", "fc.weight")
    assert str(told) == "the message of worker 3 about fc.weight is cut short"
