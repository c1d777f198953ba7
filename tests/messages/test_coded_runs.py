import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.kernels import coding
from laconic.messages import coded_runs
from laconic.messages.coded_runs import Family
from laconic.numerics import bits


def _family(symbols, models=4, lengths=(16, 64)):
    """Models from flat to steep."""
    steep = np.exp(-np.outer(np.arange(models), np.arange(symbols)) / symbols)
    shares = steep / steep.sum(1, keepdims=True)
    return Family(1 + np.floor(shares * coded_runs.TOTAL).astype(np.int64), lengths)


FAMILIES = {symbols: _family(symbols) for symbols in (2, 3, 16, 17, 243, 255, 256)}


def _draw(family, model, count, seed=0):
    shares = family.weights[model] / family.weights[model].sum()
    drawn = np.random.default_rng(seed).choice(len(shares), count, p=shares)
    return torch.from_numpy(drawn.astype(np.uint8))


def _plain(symbols):
    return bits.pack(symbols.long()[None], 8)[0]


@given(
    st.sampled_from(sorted(FAMILIES)),
    st.integers(0, 700),
    st.integers(0, 3),
    st.binary(max_size=5),
    st.data(),
)
def test_what_is_sealed_comes_out(symbols, count, model, side, data):
    family, seed = FAMILIES[symbols], data.draw(st.integers(0, 99))
    drawn = _draw(family, model, count, seed)
    opened = coded_runs.unseal(family, coded_runs.seal(family, drawn, _plain(drawn), side), count, len(side))
    assert opened.side == side
    said = opened.plain if opened.symbols is None else opened.symbols
    assert torch.equal(said, drawn)


@pytest.mark.parametrize("symbols", sorted(FAMILIES))
def test_messages_are_close_to_their_entropy(symbols):
    family = FAMILIES[symbols]
    drawn = torch.cat([_draw(family, model, 1 << 15) for model in (3, 0)])
    entropy = sum(_entropy(family.weights[model]) * (1 << 15) for model in (3, 0))
    long = Family(family.weights, (4096,))
    size = 8 * (len(coded_runs.seal(long, drawn, torch.empty(1 << 20, dtype=torch.uint8))) - coding.HEAD)
    assert (
        size < 1.015 * entropy + 8 * 16 + 4 * 8 * 32
    )  # a model a run, a number a lane; half a percent is chance


def _entropy(weights):
    shares = weights / weights.sum()
    return -(shares * np.log2(shares)).sum()


@given(st.sampled_from(sorted(FAMILIES)), st.integers(0, 300), st.integers(0, 300))
def test_a_message_is_longer_than_plain_by_a_head_at_most(symbols, count, room):
    drawn = _draw(FAMILIES[symbols], 0, count)
    plain = torch.zeros(room, dtype=torch.uint8)
    assert len(coded_runs.seal(FAMILIES[symbols], drawn, plain, b"ab")) <= coding.HEAD + 2 + 1 + room


def test_runs_that_differ_get_short_runs_and_others_long_ones():
    family = _family(16, lengths=(16, 256))
    alike = _draw(family, 3, 4096)
    mixed = torch.cat([part for _ in range(32) for part in (alike[:64], 15 - alike[:64])])
    both = Family(np.concatenate([family.weights, family.weights[:, ::-1]]), (16, 256))
    forms = [
        int(coded_runs.seal(both, drawn, _plain(drawn))[coding.HEAD]) % coded_runs.FORM
        for drawn in (alike, mixed)
    ]
    assert forms == [8, 4]


def test_without_models_everything_is_plain():
    plain = torch.arange(10, dtype=torch.uint8)
    opened = coded_runs.unseal(coded_runs.NONE, coded_runs.seal(coded_runs.NONE, plain, plain), 10)
    assert opened.symbols is None
    assert torch.equal(opened.plain, plain)


def test_ends_are_told_apart():
    family = FAMILIES[256]
    drawn = torch.tensor([0, 255] * 200 + [255] * 5 + [0] * 9, dtype=torch.uint8)
    message = coded_runs.seal(family, drawn, torch.empty(1000, dtype=torch.uint8))
    assert torch.equal(coded_runs.unseal(family, message, len(drawn)).symbols, drawn)


def _change(place, value):
    def change(message):
        message[place] = value
        return message

    return change


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda message: message[:0], "is cut short"),
        (lambda message: message[:1], "is cut short"),
        (_change(0, coding.LOST), "is of no known kind"),
        (_change(0, 9), "is of no known kind"),
        (_change(coding.HEAD, 7), "is of no known form"),
        (_change(coding.HEAD, 200), "is of no known form"),
        (_change(coding.HEAD + 1, 77), "has a model that there is not"),
        (lambda message: message[: coding.HEAD + 3], "is cut short"),
        (lambda message: message[:-2], "is cut short"),
        (lambda message: torch.cat([message, message[-2:]]), "is longer than it says"),
    ],
)
def test_a_damaged_message_is_refused(damage, sentence):
    drawn = _draw(FAMILIES[16], 3, 500)
    message = coded_runs.seal(FAMILIES[16], drawn, _plain(drawn))
    with pytest.raises(ValueError, match=f"^{sentence}"):
        coded_runs.unseal(FAMILIES[16], damage(message), 500)


@pytest.mark.parametrize("number", [0, 3, 2**32 - 1])
def test_a_wrong_number_of_ends_is_refused(number):
    family, drawn = FAMILIES[256], _draw(FAMILIES[256], 1, 1000)
    message = coded_runs.seal(family, drawn, torch.empty(2000, dtype=torch.uint8))
    length = 1 << int(message[coding.HEAD]) % coded_runs.FORM
    place = coding.HEAD + 1 + -(-1000 // length)
    message[place : place + 4] = torch.tensor(list(number.to_bytes(4, "little")), dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"^(is|has|does|ends) "):
        coded_runs.unseal(family, message, 1000)
