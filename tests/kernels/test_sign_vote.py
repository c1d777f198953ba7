"""SignVote's C++ kernels give the reference's bits, on every instruction set, and refuse what it refuses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic import kernels
from laconic.core.technique import Bucket
from laconic.kernels import sign_vote as ops
from laconic.numerics import ternary
from laconic.techniques.sign_vote import chart_of

pytestmark = pytest.mark.skipif(kernels.native is None, reason="needs the native extension")
SETS = kernels.native.instruction_sets() if kernels.native else []
SIZES = (20_000, 1, 37, 5_000, 4_096, 100)
GENERATOR = torch.Generator().manual_seed(0)


@pytest.fixture(params=SETS, autouse=True)
def _every_instruction_set(request):
    chosen = kernels.native.chosen()
    kernels.native.choose(request.param)
    yield
    kernels.native.choose(chosen)


def _random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def _selected(op, grad, old, memory, chart):
    new = None if old is None else torch.full((len(grad),), 7.0)
    votes = torch.full((int(chart[:, 2].sum()),), -1, dtype=torch.int32)
    cast = op(grad, old, memory, chart, new, votes)
    return cast, votes, new


def _check_selection(grad, old, memory, chart):
    ours = _selected(ops.sign_select, grad, old, memory, chart)
    theirs = _selected(ops.sign_select.reference, grad, old, memory, chart)
    assert ours[0] == theirs[0]
    if ours[0] >= 0:
        assert torch.equal(ours[1], theirs[1])
        assert old is None or torch.equal(ours[2], theirs[2])


def _charted(density, sizes=SIZES, scope="tensor"):
    return chart_of(Bucket(tuple("abcdefgh"[: len(sizes)]), sizes, torch.float32), density, scope)


@pytest.mark.parametrize("density", [1e-4, 0.01, 0.1, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("memory", [None, 1.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_largest_speak(density, memory, dtype):
    grad = _random(sum(SIZES)).to(dtype)
    old = None if memory is None else _random(2, sum(SIZES))[1]
    for scope in ("tensor", "bucket"):
        _check_selection(grad, old, memory or 0.0, _charted(density, scope=scope))


def _equal(n):
    return torch.ones(n)


def _few_values(n):
    return torch.randint(-2, 3, (n,), generator=torch.Generator().manual_seed(2)).float()


def _mostly_zeros(n):
    return torch.where(_random(n) > 2.8, _random(2, n)[0], 0.0)


def _denormals(n):
    return _random(n) * 1e-42


def _large_at_the_end(n):
    return torch.cat([torch.zeros(n - 300), _random(300)])


def _large_where_no_sample_is(n):
    values = torch.full((n,), 1e-3)
    values[::7] = 1.0
    values[0:n:256] = 5.0
    return values


@pytest.mark.parametrize(
    "values",
    [
        torch.zeros,
        _equal,
        _few_values,
        _mostly_zeros,
        _denormals,
        _large_at_the_end,
        _large_where_no_sample_is,
    ],
)
@pytest.mark.parametrize("density", [0.001, 0.02, 0.3, 0.9])
def test_whatever_the_magnitudes_are(values, density):
    for sizes in ((30_000,), (3_000, 17_000)):
        grad = values(sum(sizes))
        _check_selection(grad, None, 0.0, _charted(density, sizes))
        _check_selection(grad, -0.5 * grad, 1.0, _charted(density, sizes))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 19_999, 20_000, 29_000])
def test_what_is_not_finite_is_not_voted_on(bad, place):
    grad = _random(sum(SIZES))
    grad[place] = bad
    for density in (0.01, 1.0):
        assert _selected(ops.sign_select, grad, None, 0.0, _charted(density))[0] == -1


def _votes(numel, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    places = (torch.rand(numel, generator=generator) < density).nonzero().flatten()
    return (2 * places + torch.randint(0, 2, (len(places),), generator=generator)).int()


def _packed(op, votes, numel, shards):
    width = -(-numel // shards)
    rows = torch.full((shards, ternary.room(width)), 9, dtype=torch.uint8)
    sizes = torch.empty(shards, dtype=torch.int64)
    op(votes, numel, width, rows, sizes)
    return [row[:size] for row, size in zip(rows, sizes.tolist(), strict=True)]


DENSITIES = [0, 1e-4, 0.01, 0.1, 0.4, 0.5, 0.6, 0.66, 0.75, 0.95, 1]


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize(("numel", "shards"), [(30_011, 3), (1, 4), (7, 5), (640, 1), (0, 2)])
def test_messages_are_the_references(density, numel, shards):
    votes = _votes(numel, density)
    ours, theirs = (_packed(op, votes, numel, shards) for op in (ops.sign_pack, ops.sign_pack.reference))
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


COINS = torch.tensor([(0, 77, 0x9E3779B9), (5_000, 0, 1), (5_001, 31, 0), (17_000, 2**33, 0xFFFFFFFF)])


def _combined(op, messages, weights, numel, coin):
    reply = torch.full((ternary.room(numel),), 9, dtype=torch.uint8)
    counts = torch.full((4 + 2 * len(messages),), 9)
    size = op(messages, weights, numel, coin, reply, counts)
    return reply[:size], counts


@pytest.mark.parametrize("densities", [[0.01] * 4, [0.1] * 15, [1, 1], [0.66, 0.0, 0.9, 0.3], [0.001]])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("coin", [None, COINS], ids=["zero", "random"])
def test_votes_are_the_references(densities, weighted, coin):
    numel = 20_003
    messages = [ternary.pack(_votes(numel, density, seed), numel) for seed, density in enumerate(densities)]
    weights = torch.randint(-511, 512, (len(messages),)) if weighted else torch.ones(len(messages)).long()
    ours, theirs = (
        _combined(op, messages, weights, numel, coin) for op in (ops.sign_combine, ops.sign_combine.reference)
    )
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])


def test_a_thousand_voters_of_the_largest_weight_are_counted_right():
    numel = 64
    messages = [ternary.pack(_votes(numel, 0.9, 0), numel)] * ops.MOST
    weights = torch.full((ops.MOST,), -ops.HEAVIEST)
    ours, theirs = (
        _combined(op, messages, weights, numel, None) for op in (ops.sign_combine, ops.sign_combine.reference)
    )
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_replies_say_is_written(dtype):
    numel, width = 20_003, 4_001
    replies = [
        ternary.pack(_votes(min(width, numel - k * width), 0.2 * k), min(width, numel - k * width))
        for k in range(5)
    ]
    ours, theirs = torch.full((2, numel), 7.0, dtype=dtype)
    ops.sign_decode(replies, width, ours)
    ops.sign_decode.reference(replies, width, theirs)
    assert torch.equal(ours, theirs)
    replies[3] = ternary.lost()
    ops.sign_decode(replies, width, ours)
    assert ours.isnan().all()


def _outcome(op, message, numel):
    try:
        reply, counts = _combined(op, [message], torch.ones(1).long(), numel, None)
    except ValueError as error:
        return str(error)
    return reply.tolist(), counts.tolist()


@settings(max_examples=300)
@given(
    st.integers(0, 70),
    st.sampled_from(DENSITIES),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=3),
    st.integers(-6, 6),
)
def test_a_damaged_message_is_understood_or_refused_as_by_the_reference(numel, density, changes, more):
    message = ternary.pack(_votes(numel, density), numel)
    message = message[:more] if more < 0 else torch.cat([message, message.new_zeros(more)])
    for place, byte in changes:
        if len(message):
            message[place % len(message)] = byte
    assert _outcome(ops.sign_combine, message, numel) == _outcome(ops.sign_combine.reference, message, numel)
