import re

import pytest
import torch

from laconic import DAD, EDAD, THC, Dense, RankDAD, SignVote
from laconic.lab import contestants
from tests.support.toys import parallel, train
from tests.support.workers import run


@pytest.mark.parametrize(
    ("text", "contestant", "label"),
    [
        ("ddp", contestants.Plain(), "plain DDP"),
        ("fp16", contestants.Fp16(), "fp16 hook"),
        ("powersgd:rank=4", contestants.PowerSGD(rank=4), "PowerSGD, rank 4"),
        ("dense", contestants.Attached(Dense()), "Dense"),
        ("thc:bits=3,tail=0.01", contestants.Attached(THC(bits=3, tail=0.01)), "THC bits=3 tail=0.01"),
        (
            "dense:dtype=bf16,error_feedback=true",
            contestants.Attached(Dense("bf16", error_feedback=True)),
            "Dense dtype=bf16 error_feedback=True",
        ),
        ("sign_vote:density=auto", contestants.Attached(SignVote("auto")), "SignVote density=auto"),
        ("edad:skip_inputs=true", contestants.Attached(EDAD(skip_inputs=True)), "EDAD skip_inputs=True"),
        (
            "rank_dad:private=encoder.+head.,rank=2",
            contestants.Attached(RankDAD(rank=2, private=("encoder.", "head."))),
            "RankDAD rank=2 private=encoder.+head.",
        ),
        ("dad:private=encoder.", contestants.Attached(DAD(private=("encoder.",))), "DAD private=encoder."),
        ("dad:private=0.+1", contestants.Attached(DAD(private=("0.", "1"))), "DAD private=0.+1"),
        ("sign_vote:memory=1e+0", contestants.Attached(SignVote(memory=1.0)), "SignVote density=0.03"),
    ],
)
def test_a_short_text_describes_a_contestant(text, contestant, label):
    assert contestants.parse(text) == contestant
    assert contestants.parse(text).label == label


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "dnse",
            "unknown technique 'dnse'; did you mean 'dense'? (known: crossover, dad, ddp, dense, edad, fp16, ",
        ),
        ("zzz", "unknown technique 'zzz'; (known: crossover, dad"),
        ("dense:dtyp=bf16", "Dense has no option 'dtyp'; did you mean 'dtype'?"),
        ("dense:error_feedback=maybe", "option error_feedback takes a value like False, not 'maybe'"),
        ("sign_vote:memory=much", "option memory takes a value like 1.0, not 'much'"),
        ("sign_vote:density=much", "density is 'much'; use a share"),
        ("powersgd:rank=0", "rank 0 keeps nothing; use at least 1"),
        ("dense:dtype=int8", "is not a wire format"),
    ],
)
def test_a_bad_text_gets_one_sentence(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        contestants.parse(text)


def test_a_tuple_without_words_gets_one_sentence():
    with pytest.raises(TypeError, match=r"private is .*; use a tuple of beginnings of names"):
        contestants.parse("dad:private=encoder.+")


def test_a_row_may_have_a_learning_rate_of_its_own():
    text = "sign_vote:density=0.1@lr=0.001,momentum=0,optimizer=adam"
    assert contestants.parse(text) == contestants.Attached(SignVote(0.1))
    assert contestants.training(text) == {"lr": 0.001, "momentum": 0.0, "optimizer": "adam"}
    assert contestants.training("ddp") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ddp@moment=1", "a row cannot have its own 'moment'; did you mean 'momentum'?"),
        ("ddp@lr=fast", "lr takes a number, not 'fast'"),
    ],
)
def test_a_bad_setting_of_a_row_gets_one_sentence(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        contestants.training(text)


def _trained(text):
    contestant = contestants.parse(text)
    model = parallel(**contestant.ddp_options)
    contestant.apply(model, torch.optim.SGD(model.parameters()))
    return train(model, range(12))


@pytest.mark.parametrize(
    "text",
    ["ddp", "fp16", "powersgd:rank=1", "powersgd:rank=4", "dense", "sign_vote", "dad", "edad", "rank_dad"],
)
def test_every_contestant_trains_on_gloo(text):
    losses = torch.tensor(run(2, _trained, text)).mean(0)
    assert losses[-3:].mean() < losses[:3].mean()
