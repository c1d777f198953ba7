"""SignVote's Triton kernels give the reference's bits: on a CUDA device, and without one in Triton's interpreter.

In the interpreter programs are made small, so that small work has many of them; on a device the work is larger.
"""

import math
import random

import pytest
import torch

from laconic.kernels import sign_vote as ops
from laconic.numerics import rng, ternary
from tests.support.interpreted import DEVICE, INTERPRETED, MARKS, interpret, on_a_device, without_a_device

MORE = 1 if INTERPRETED else 64
SMALL = {
    "TILE": 64,
    "GROUP": 128,
    "SAMPLE": 64,
    "CHUNK": 64,
    "PART": 256,
    "VOTES": 256,
    "BYTES": 32,
    "SCAN": 8,
}

pytestmark = MARKS


@without_a_device
@pytest.mark.timeout(450)
def test_the_interpreter_gives_the_references_bits():
    interpret(__file__)


@pytest.fixture
def kernels(monkeypatch):
    from laconic.kernels.sign_vote import launch

    for name, value in SMALL.items() if INTERPRETED else ():
        monkeypatch.setattr(launch, name, value)
    return launch


def _chart(sizes, density):
    starts = torch.tensor([0, *sizes]).cumsum(0)[:-1].tolist()
    keeps = [min(size, max(1, math.ceil(density * size))) for size in sizes]
    return torch.tensor(list(zip(starts, sizes, keeps, strict=True)))


def _normal(numel, seed=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def _selected(function, grad, old, memory, chart):
    votes = torch.zeros(int(chart[:, 2].sum()), dtype=torch.int32, device=DEVICE)
    new = None if old is None else torch.full_like(old, 7.0)
    cast = function(grad, old, memory, chart, new, votes)
    return cast, votes, None if new is None else new.view(torch.int32)


def _check_select(kernels, grad, chart, old=None, memory=1.0):
    cast, votes, new = _selected(ops.sign_select.reference, grad, old, memory, chart)
    our_cast, our_votes, our_new = _selected(kernels.sign_select, grad, old, memory, chart)
    assert our_cast == cast
    assert torch.equal(our_votes[:cast], votes[:cast])
    assert new is None or torch.equal(our_new, new)
    return votes[:cast]


@on_a_device
@pytest.mark.parametrize("density", [0.001, 0.03, 0.5, 0.9, 1.0])
def test_the_largest_of_tensors_of_all_sizes(kernels, density):
    sizes = (1, 400 * MORE, 17, 70 * MORE)
    grad = _normal(sum(sizes))
    _check_select(kernels, grad, _chart(sizes, density), 0.1 * _normal(sum(sizes), seed=1))


@on_a_device
def test_very_many_tensors(kernels):
    sizes = [1 + 7 * k % 40 for k in range(12 * MORE * MORE)]
    _check_select(kernels, _normal(sum(sizes)), _chart(sizes, 0.1), _normal(sum(sizes), seed=1))


@on_a_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("memory", [0.3, None])
def test_every_format_and_memory(kernels, dtype, memory):
    sizes = (300 * MORE, 9)
    grad = _normal(sum(sizes)).to(dtype)
    old = None if memory is None else _normal(sum(sizes), seed=1)
    _check_select(kernels, grad, _chart(sizes, 0.05), old, memory or 0.0)


@on_a_device
@pytest.mark.parametrize("density", [0.02, 0.4])
def test_of_equals_the_first_ones(kernels, density):
    sizes = (200 * MORE, 350 * MORE)
    rounded = (_normal(sum(sizes)) * 2).round() / 2
    _check_select(kernels, rounded, _chart(sizes, density), torch.zeros_like(rounded))
    _check_select(kernels, torch.full_like(rounded, -0.7), _chart(sizes, density))


@on_a_device
@pytest.mark.parametrize("share", [0.0, 0.03, 0.6])
def test_zeros_have_nothing_to_say(kernels, share):
    sizes = (40, 500 * MORE)
    grad = _normal(sum(sizes))
    grad = torch.where(_normal(len(grad), seed=2).abs() < _quantile(share), grad, -0.0)
    _check_select(kernels, grad, _chart(sizes, 0.05), torch.zeros_like(grad))


def _quantile(share):
    return float(torch.distributions.Normal(0, 1).icdf(torch.tensor(0.5 + share / 2)))


@on_a_device
def test_the_smallest_numbers_count(kernels):
    grad = _normal(500 * MORE) * 1e-38
    grad[::3] *= 1e-5
    _check_select(kernels, grad, _chart((500 * MORE,), 0.9), 1e-40 * _normal(len(grad), seed=1))


@on_a_device
def test_a_bar_that_was_guessed_too_high_or_too_low_is_found_out(kernels):
    """The sample is of other coordinates than those that matter."""
    numel = 500 * MORE
    index = torch.arange(kernels.SAMPLE)
    word = torch.tensor([_hash(int(i)) for i in index]) % (numel // kernels.SAMPLE)
    drawn = (index * (numel // kernels.SAMPLE) + word).to(DEVICE)
    for high, low in ((1.0, 0.01), (0.01, 1.0)):
        grad = low * _normal(numel)
        grad[drawn] *= high / low
        _check_select(kernels, grad, _chart((numel,), 0.1), torch.zeros_like(grad))


def _hash(word):
    word = (word ^ word >> 16) * rng.MULTIPLIERS[0] & rng.LOW
    word = (word ^ word >> 15) * rng.MULTIPLIERS[1] & rng.LOW
    return word ^ word >> 16


@on_a_device
@pytest.mark.parametrize(("bad", "where"), [("inf", 0), ("-inf", 77), ("nan", -1)])
def test_what_is_not_finite_is_told(kernels, bad, where):
    sizes = (3, 100 * MORE, 5)
    grad = _normal(sum(sizes))
    grad[where] = float(bad)
    votes = torch.zeros(sum(sizes), dtype=torch.int32, device=DEVICE)
    assert kernels.sign_select(grad, None, 1.0, _chart(sizes, 0.1), None, votes) == -1


def _packed(function, votes, numel, width, shards, offset=0):
    room = ternary.room(width)
    messages = torch.full((shards * room + offset,), 255, dtype=torch.uint8, device=DEVICE)[offset:]
    messages, sizes = messages.view(shards, room), torch.zeros(shards, dtype=torch.int64, device=DEVICE)
    function(votes, numel, width, messages, sizes)
    return [row[:size] for row, size in zip(messages, sizes.tolist(), strict=True)]


def _check_pack(kernels, votes, numel, shards, offset=0):
    width = -(-numel // shards)
    messages = _packed(ops.sign_pack.reference, votes, numel, width, shards)
    ours = _packed(kernels.sign_pack, votes, numel, width, shards, offset)
    assert [len(message) for message in ours] == [len(message) for message in messages]
    assert all(torch.equal(*pair) for pair in zip(ours, messages, strict=True))
    return messages


def _votes(numel, density, seed=0):
    values = _normal(numel, seed)
    places = (values.abs() < _quantile(density)).nonzero().flatten() if density < 1 else torch.arange(numel)
    return (2 * places.to(DEVICE) + (values[places.to(DEVICE)] < 0)).int()


def _forms(messages):
    return {int(message[0]) // ternary.FORM for message in messages}


@on_a_device
@pytest.mark.parametrize(
    ("form", "density"),
    [
        *((ternary.VOTES, density) for density in (0.0, 0.0005, 0.01, 0.1, 0.4)),
        (ternary.TRITS, 0.66),
        *((ternary.REST, density) for density in (0.9, 0.999, 1.0)),
    ],
)
def test_messages_of_every_form(kernels, density, form):
    numel = 900 * MORE
    assert _forms(_check_pack(kernels, _votes(numel, density), numel, 2, offset=3)) == {form}


@on_a_device
def test_shards_of_different_forms_and_of_none(kernels):
    numel = 600 * MORE
    third = numel // 3
    parts = [_votes(third, density) + 2 * third * k for k, density in enumerate((0.02, 0.66, 0.95))]
    assert len(_forms(_check_pack(kernels, torch.cat(parts), numel, 3))) == 3
    _check_pack(kernels, torch.cat(parts), numel, 4)
    _check_pack(kernels, _votes(7, 0.5), 7, 5)
    _check_pack(kernels, _votes(1, 1.0), 1, 2)


@on_a_device
def test_gaps_of_very_different_sizes(kernels):
    numel = 1 << 22
    places = torch.cat([torch.arange(300), 1000 + 17 * torch.arange(200), torch.tensor([numel - 1])])
    _check_pack(kernels, (2 * places).int().to(DEVICE), numel, 2)
    _check_pack(kernels, torch.tensor([2 * numel - 1], dtype=torch.int32, device=DEVICE), numel, 1)


COINS = torch.tensor([(0, 77, 0x9E3779B9), (50, 0, 1), (51, 31, 0), (51, 5, 2), (170, 2**33, 0xFFFFFFFF)])


def _combined(function, messages, weights, numel, coins):
    held = torch.full((ternary.room(numel) + 14,), 255, dtype=torch.uint8, device=DEVICE)
    counts = torch.full((4 + 2 * len(messages),), 7, dtype=torch.int64, device=DEVICE)
    try:
        size = function(messages, weights, numel, coins, held[7:-7], counts)
    finally:
        assert (held[:7] == 255).all()
        assert (held[-7:] == 255).all()
    return held[7 : 7 + size].tolist(), counts.tolist()


def _check_combine(kernels, messages, numel, weights=None, coins=None):
    weights = [1] * len(messages) if weights is None else weights
    inputs = messages, torch.tensor(weights, device=DEVICE), numel, coins
    assert _combined(kernels.sign_combine, *inputs) == _combined(ops.sign_combine.reference, *inputs)


def _messages(numel, *densities):
    return [ternary.pack(_votes(numel, density, seed), numel) for seed, density in enumerate(densities)]


@on_a_device
@pytest.mark.parametrize(
    "densities", [(0.01, 0.02, 0.01, 0.05), (0.3, 0.7, 0.95, 0.0), (1.0,), (0.9, 1.0), (0.66,)]
)
def test_votes_on_messages_of_every_form(kernels, densities):
    numel = 500 * MORE
    messages = _messages(numel, *densities)
    _check_combine(kernels, messages, numel)


@on_a_device
def test_weights_change_the_vote(kernels):
    numel = 300 * MORE
    messages = _messages(numel, 0.4, 0.66, 0.9, 0.3)
    _check_combine(kernels, messages, numel, [64, 290, -290, 0], COINS)
    _check_combine(kernels, messages[:2], numel, [511, -511], COINS[:2])


@on_a_device
def test_very_many_messages(kernels):
    many = 10 if INTERPRETED else 1023
    messages = _messages(40, *[0.5] * (many // 10)) * 10
    _check_combine(kernels, messages, 40, [511] * len(messages), COINS[:1])
    _check_combine(kernels, [ternary.pack(_votes(3, 1.0), 3)] * many, 3, [511] * many)


@on_a_device
@pytest.mark.parametrize("numel", [0, 1, 4])
def test_votes_on_few_coordinates(kernels, numel):
    _check_combine(kernels, _messages(numel, 1.0, 0.5), numel)


@on_a_device
def test_one_lost_message_makes_the_reply_a_lost_one(kernels):
    _check_combine(kernels, [*_messages(90, 0.1, 0.7), ternary.lost(DEVICE)], 90)


def _places_beyond(message, numel):
    """The same with one place more than there are coordinates, and a message that is well formed."""
    votes = ternary.unpack(message, numel)
    return ternary.pack(torch.cat([votes, votes.new_tensor([2 * numel])]), numel + 1)


DAMAGES = {
    "cut": lambda message, numel: message[:-1],
    "cut to a header": lambda message, numel: message[:5],
    "cut to less": lambda message, numel: message[:3],
    "longer": lambda message, numel: torch.cat([message, message[-1:]]),
    "longer by a zero": lambda message, numel: torch.cat([message, 0 * message[-1:]]),
    "no form": lambda message, numel: torch.cat([message[:1] | 128, message[1:]]),
    "a lost one with a body": lambda message, numel: torch.cat([ternary.lost(DEVICE), message]),
    "an impossible b": lambda message, numel: torch.cat([message[:1] | 31, message[1:]]),
    "too many": lambda message, numel: torch.cat([message[:1], message[1:5] | 255, message[5:]]),
    "one more": lambda message, numel: torch.cat([message[:1], message[1:2] ^ 1, message[2:]]),
    "beyond": _places_beyond,
    "all ones": lambda message, numel: torch.cat([message[:5], message[5:] | 255]),
    "all zeros": lambda message, numel: torch.cat([message[:5], message[5:] & 0]),
    "anything": lambda message, numel: torch.cat([message[:5], message[5:] ^ (37 * message[5:])]),
    "a large b": lambda message, numel: torch.cat([message[:1] | 30, message[1:]]),
    "nothing": lambda message, numel: message,
}


def _told(function, *inputs):
    try:
        return function(*inputs)
    except ValueError as error:
        return str(error)


def _check_refusals(kernels, messages, numel):
    """All messages are read at once, as the reference reads them one by one, and nothing else is written."""
    mail = kernels._opened(messages, [numel] * len(messages), numel)
    held = torch.full((numel * len(messages) + 14,), 7.0, device=DEVICE)
    held[7:-7] = 0
    kernels._use(mail, "store", held[7:-7], None, None)
    assert (held[:7] == 7).all()
    assert (held[-7:] == 7).all()
    refused = 0
    for status, message, grad in zip(
        mail.status[1:].tolist(), messages, held[7:-7].split(numel), strict=True
    ):
        votes = _told(ternary.unpack, message.cpu(), numel)
        assert (status != 0) == isinstance(votes, str)
        if status == 0:
            said = torch.zeros(numel)
            said[(votes >> 1).long()] = 1.0 - 2 * (votes & 1)
            assert torch.equal(grad.cpu(), said)
        refused += status != 0
    assert len(messages) / 2 < refused < len(messages)


@on_a_device
def test_what_the_reference_refuses_is_refused(kernels):
    sound = _messages(203, 0.0, 0.05, 0.66, 0.9, 1.0)
    _check_refusals(kernels, [damage(each, 203) for each in sound for damage in DAMAGES.values()], 203)


@on_a_device
def test_messages_damaged_at_random_are_refused_or_read_as_by_the_reference(kernels):
    source, sound = random.Random(0), [each.cpu() for each in _messages(99, 0.02, 0.3, 0.66, 0.9)]
    many = 40 if INTERPRETED else 1000
    _check_refusals(kernels, [_changed(source.choice(sound), source).to(DEVICE) for _ in range(many)], 99)


def _changed(message, source):
    message = bytearray(message.tolist())
    for _ in range(source.randrange(1, 3)):
        place = source.randrange(len(message))
        if source.random() < 0.8:
            message[place] ^= 1 << source.randrange(8)
        else:
            message = message[: place + 1] + source.randbytes(source.randrange(4))
    return torch.tensor(list(message), dtype=torch.uint8)


@on_a_device
@pytest.mark.parametrize("damage", ["cut", "no form", "beyond"])
def test_a_damaged_message_is_told_in_the_references_words(kernels, damage):
    numel = 203
    good, other = _messages(numel, 0.1, 0.1)
    messages = [good, DAMAGES[damage](other, numel)]
    inputs = messages, torch.ones(2, dtype=torch.int64, device=DEVICE), numel, None
    said = _told(_combined, kernels.sign_combine, *inputs)
    assert said.startswith("the message of worker 1 ")
    assert said == _told(_combined, ops.sign_combine.reference, *inputs)
    grad = torch.zeros(2 * numel, device=DEVICE)
    assert _told(kernels.sign_decode, messages, numel, grad) == said
    few = [good], numel, grad
    assert _told(kernels.sign_decode, *few) == _told(ops.sign_decode.reference, *few)


@on_a_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_replies_of_every_form_in_every_format(kernels, dtype):
    width = 300 * MORE
    replies = [*_messages(width, 0.02, 0.3, 0.66, 0.9), *_messages(width - 13, 0.5), *_messages(0, 1.0)]
    grads = [torch.full((5 * width - 13,), 7.0, dtype=dtype, device=DEVICE) for _ in range(2)]
    kernels.sign_decode(replies, width, grads[0])
    ops.sign_decode.reference(replies, width, grads[1])
    assert torch.equal(*grads)


@on_a_device
def test_a_lost_reply_makes_everything_nan(kernels):
    grad = torch.zeros(150, device=DEVICE)
    kernels.sign_decode([*_messages(50, 0.1, 0.7), ternary.lost(DEVICE)], 50, grad)
    assert grad.isnan().all()
