import hashlib
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.core.technique import Bucket
from laconic.kernels import coding
from laconic.messages import sign_vote
from laconic.numerics import ternary
from laconic.techniques.sign_vote import SignVote
from tests.support.altered import Altered
from tests.support.by_hand import Group


def _direction(numel, share, seed=0, plus=0.5):
    generator = torch.Generator().manual_seed(seed)
    signs = torch.where(torch.rand(numel, generator=generator) < plus, 1, -1)
    return torch.where(torch.rand(numel, generator=generator) < share, signs, 0)


def _votes(direction):
    places = direction.nonzero().flatten()
    return (2 * places + (direction[places] < 0)).int()


def _reply(direction):
    return ternary.pack(_votes(direction), len(direction))


def _in_rows(numel, seed=0, row=2000):
    """Rows of a matrix that differ in how much of them moves, and where to."""
    generator = torch.Generator().manual_seed(seed)
    some, plus = torch.rand(2, numel // row, generator=generator)
    return torch.cat(
        [_direction(row, float(s), k, float(p)) for k, (s, p) in enumerate(zip(some, plus, strict=True))]
    )


@given(st.integers(0, 3000), st.sampled_from([0.0, 0.001, 0.1, 0.5, 0.7, 1.0]), st.integers(0, 9))
def test_every_reply_comes_back(numel, share, seed):
    votes = _votes(_direction(numel, share, seed))
    reply = sign_vote.coded(ternary.pack(votes, numel), numel)
    assert torch.equal(ternary.unpack(sign_vote.opened(reply, numel), numel), votes)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.3, 0.6, 0.9])
def test_a_reply_is_never_longer_than_gaps(share):
    direction = _direction(100_000, share)
    assert len(sign_vote.coded(_reply(direction), 100_000)) <= len(_reply(direction))


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.625, 0.8])
def test_replies_at_random_are_within_2_percent_of_their_entropy(share):
    """As they are without coding; it is kept where that saves a 64th."""
    numel = 1 << 20
    direction = _direction(numel, share)
    p = float(direction.abs().float().mean())
    entropy = -p * math.log2(p / 2) - (1 - p) * math.log2(1 - p)
    assert 8 * len(sign_vote.coded(_reply(direction), numel)) < 1.02 * entropy * numel


def test_rows_that_differ_are_sent_in_much_less():
    direction = _in_rows(400_000)
    reply = _reply(direction)
    coded = sign_vote.coded(reply, len(direction))
    assert len(coded) < 0.85 * len(reply)
    assert torch.equal(ternary.unpack(sign_vote.opened(coded, 400_000), 400_000), _votes(direction))


def test_a_lost_reply_stays_lost():
    assert torch.equal(sign_vote.coded(ternary.lost(), 100), ternary.lost())
    assert torch.equal(sign_vote.opened(ternary.lost(), 100), ternary.lost())


def test_models_are_equal_on_any_machine():
    """If this fails on some machine, its workers build other codes than others do."""
    weights = sign_vote._family().weights.astype("<i8")
    assert hashlib.sha256(weights.tobytes()).hexdigest()[:16] == "7f6f077ac994538d"


@pytest.mark.parametrize("workers", range(1, 9))
def test_results_are_those_without_coding(workers):
    for numel in (1, 7, 1000, 20_000):
        bucket = Bucket(("w",), (numel,), torch.float32)
        gradients = [_direction(numel, 0.9, k) * torch.rand(numel) for k in range(workers)]
        for density in (0.01, 0.3, 1.0):
            plain, coded = (
                Group(SignVote(density, entropy=entropy), workers).reduce(bucket, gradients)
                for entropy in (False, True)
            )
            assert torch.equal(plain, coded)


def _coded():
    reply = sign_vote.coded(_reply(_in_rows(10_000)), 10_000)
    assert int(reply[0]) == sign_vote.CODED * ternary.FORM
    return reply


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda reply: reply[:1], "is cut short"),
        (lambda reply: reply[:4], "is cut short"),
        (lambda reply: reply[:-2], "is cut short"),
        (lambda reply: reply[:-1], "ends within a word"),
        (lambda reply: torch.cat([reply[:1], reply[:1] * 0 + 7, reply[2:]]), "is of no known kind"),
        (lambda reply: torch.cat([reply[:1], coding.lost()]), "is of no known kind"),
        (
            lambda reply: torch.cat(
                [reply[:1], sign_vote.coded_runs.seal(sign_vote.coded_runs.NONE, reply, reply)]
            ),
            "no known form",
        ),
    ],
)
def test_a_damaged_reply_is_refused(damage, sentence):
    with pytest.raises(ValueError, match=sentence):
        sign_vote.opened(damage(_coded()), 10_000)


def test_without_the_option_a_coded_reply_is_of_no_known_form():
    with pytest.raises(ValueError, match="is of no known form"):
        ternary.unpack(_coded(), 10_000)


class _Damaging:
    """Replies of worker 1 are damaged on their way."""

    def combine(self, desk, messages):
        reply = super().combine(desk, messages)
        if desk.shard == 1:
            reply = reply[:-1]
        return reply


def test_a_damaged_reply_names_its_worker():
    bucket = Bucket(("w",), (40_000,), torch.float32)
    with pytest.raises(ValueError, match="the message of worker 1 ends within a word"):
        Group(Altered(SignVote(1.0, entropy=True), _Damaging), 2).reduce(
            bucket, [_in_rows(40_000).float()] * 2
        )


@pytest.mark.parametrize("value", [1, "yes", None])
def test_a_setting_that_is_no_flag_is_refused(value):
    with pytest.raises(TypeError, match=f"entropy is {value!r}; use True or False"):
        SignVote(entropy=value)
