import math

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import laconic
from laconic.core.technique import Bucket, Reading, Setting
from laconic.numerics import ternary
from laconic.techniques.sign_vote import WARM_UP, Ramp, SignVote
from tests.support.by_hand import Group
from tests.support.toys import parallel, train
from tests.support.workers import run

BUCKET = Bucket(("a", "b", "c"), (500, 1, 1499), torch.float32)


def _gradients(workers, bucket=BUCKET, seed=0):
    return list(torch.randn(workers, bucket.numel, generator=torch.Generator().manual_seed(seed)))


def _memory(group, worker=0, bucket=BUCKET):
    return group.memory(worker, bucket)["unsaid"]


def test_everybody_speaking_is_sign_sgd_with_majority_vote():
    gradients = _gradients(4)
    gradients[0][7:50] = 0
    result = Group(SignVote(1.0, memory=0), 4).reduce(BUCKET, gradients)
    assert torch.equal(result, torch.stack(gradients).sign().sum(0).sign())


def test_one_worker_alone_is_sparse_sign_sgd():
    (gradient,) = _gradients(1)
    result = Group(SignVote(0.1), 1).reduce(BUCKET, [gradient])
    chosen = [
        part.abs() >= part.abs().topk(keep).values[-1]
        for part, keep in zip(gradient.split((500, 1, 1499)), (50, 1, 150), strict=True)
    ]
    assert torch.equal(result, torch.where(torch.cat(chosen), gradient.sign(), 0.0))


@given(
    st.lists(st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0, 2.0]), min_size=1, max_size=60),
    st.integers(1, 1000),
)
def test_as_many_speak_as_density_says_and_of_equals_the_first(values, thousandths):
    gradient = torch.tensor(values)
    bucket = Bucket(("w",), (len(values),), torch.float32)
    result = Group(SignVote(thousandths / 1000), 1).reduce(bucket, [gradient])
    order = sorted(range(len(values)), key=lambda place: (-abs(values[place]), place))
    keep = -(-thousandths * len(values) // 1000)
    spoken = torch.zeros(len(values))
    spoken[order[:keep]] = gradient.sign()[order[:keep]]
    assert torch.equal(result, spoken)


@pytest.mark.parametrize(("numel", "moving"), [(1, 1), (33, 1), (34, 2), (1000, 30)])
def test_every_tensor_speaks_in_every_step_with_one_coordinate_at_least(numel, moving):
    bucket = Bucket(("scalar", "w"), (1, numel), torch.float32)
    group = Group(SignVote(), 1)
    for gradient in torch.randn(5, numel + 1, generator=torch.Generator().manual_seed(0)):
        scalar, others = group.reduce(bucket, [gradient]).abs().split((1, numel))
        assert (int(scalar), int(others.sum())) == (1, moving)


def test_a_share_of_a_hundred_is_not_rounded_up_by_a_hair():
    (gradient,) = _gradients(1, bucket := Bucket(("w",), (100,), torch.float32))
    assert int(Group(SignVote(0.07), 1).reduce(bucket, [gradient]).abs().sum()) == 7


def test_of_a_bucket_the_largest_speak_wherever_they_are():
    (gradient,) = _gradients(1)
    gradient[:500] *= 100
    result = Group(SignVote(0.1, scope="bucket"), 1).reduce(BUCKET, [gradient])
    assert result[:500].abs().sum() == 200
    assert result[500:].abs().sum() == 0


@pytest.mark.parametrize("memory", [1.0, 0.5])
def test_what_is_not_said_is_kept_and_what_is_said_is_cleared(memory):
    group = Group(SignVote(0.05, memory=memory), 2)
    kept = [torch.zeros(BUCKET.numel)] * 2
    for step in range(3):
        gradients = _gradients(2, seed=step)
        messages = []
        group.reduce(BUCKET, gradients, damage=lambda m, keep=messages: keep.extend(m) or m)
        for worker in range(2):
            before = memory * kept[worker] + gradients[worker]
            said = _spoken(messages[worker])
            assert torch.equal(_memory(group, worker), torch.where(said, 0.0, before))
            assert said.sum() == 25 + 1 + 75
            kept[worker] = _memory(group, worker).clone()


def _spoken(messages):
    """Which coordinates a worker's messages speak of."""
    spoken = torch.zeros(BUCKET.numel, dtype=torch.bool)
    width = BUCKET.numel // len(messages)
    for shard, message in enumerate(messages):
        spoken[shard * width + (ternary.unpack(message, width) >> 1).long()] = True
    return spoken


def test_a_technique_that_forgets_has_no_memory():
    assert SignVote(memory=0).bind(Setting(2)).memory == {}
    gradients = _gradients(2)
    group = Group(SignVote(0.1, memory=0), 2)
    assert torch.equal(group.reduce(BUCKET, gradients), group.reduce(BUCKET, gradients))


def test_the_order_of_messages_does_not_matter():
    gradients = _gradients(5)
    straight = Group(SignVote(0.3), 5).reduce(BUCKET, gradients)
    assert torch.equal(straight, Group(SignVote(0.3), 5).reduce(BUCKET, gradients[::-1]))


def test_a_tie_is_zero_or_a_fair_coin_that_all_workers_share():
    gradient = _gradients(1)[0]
    for ties, said in (("zero", 0), ("random", BUCKET.numel)):
        result = Group(SignVote(1.0, ties=ties), 2).reduce(BUCKET, [gradient, -gradient])
        assert result.abs().sum() == said
        assert abs(result.sum()) < 5 * BUCKET.numel**0.5


def test_a_coin_falls_anew_in_every_step():
    group, gradient = Group(SignVote(1.0, ties="random"), 2), _gradients(1)[0]
    first, second = (group.reduce(BUCKET, [gradient, -gradient]) for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_bad_gradient_is_not_voted_on(bad):
    gradients = _gradients(3)
    gradients[1][77] = bad
    assert Group(SignVote(0.01), 3).reduce(BUCKET, gradients).isnan().all()


def test_both_directions_are_small():
    bucket = Bucket(("w",), (400_000,), torch.float32)
    group = Group(SignVote(0.01), 4)
    group.reduce(bucket, _gradients(4, bucket))
    readings = Reading.shares(_summed(group))
    assert readings["bits up"] == pytest.approx(0.0911, rel=0.02)
    assert readings["bits down"] < 0.3
    assert readings["nonzero"] == pytest.approx(1 - 0.99**4, rel=0.02)
    assert readings["voters"] == pytest.approx(0.04 / (1 - 0.99**4), rel=0.01)
    assert (
        0.005 < readings["ties"] < 0.01
    )  # two voters meet on 1.5 % of the coordinates, half of them disagree


def _summed(group):
    both = [*group.turns, *group.desks]
    names = {name for one in both for name in one.readings}
    each = {name: [one.readings[name] for one in both if name in one.readings] for name in names}
    return {name: Reading(sum(r.amount for r in rs), sum(r.of for r in rs)) for name, rs in each.items()}


def test_readings_count_what_happened():
    bucket = Bucket(("w",), (6,), torch.float32)
    one, two, three = (
        torch.tensor(v) for v in ([1.0, 1, 0, 0, 0, 0], [-1.0, 1, 1, 0, 0, 0], [0.0, 1, 0, 0, 0, 0])
    )
    group = Group(SignVote(1.0), 3)
    assert group.reduce(bucket, [one, two, three]).tolist() == [0, 1, 1, 0, 0, 0]
    readings = _summed(group)
    assert readings["voters"] == Reading(6, 3)
    assert readings["ties"] == Reading(1, 3)
    assert readings["nonzero"] == Reading(2, 6)
    assert readings["votes"] == Reading(6, 6)
    assert readings["bits down"].of == 3 * 6  # everybody hears everything


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda message: message[:-1], "the message of worker 1 is cut short"),
        (
            lambda message: torch.cat([message, message[-1:]]),
            "the message of worker 1 is longer than it says",
        ),
        (lambda message: message[:2], "the message of worker 1 is cut short"),
        (lambda message: 0 * message + 255, "the message of worker 1 is of no known form"),
    ],
)
def test_a_damaged_message_names_its_worker(damage, sentence):
    def change(messages):
        messages[1][2] = damage(messages[1][2])
        return messages

    with pytest.raises(ValueError, match=sentence):
        Group(SignVote(0.1), 3).reduce(BUCKET, _gradients(3), damage=change)


def test_density_may_follow_a_schedule():
    group = Group(SignVote(Ramp(0.5, 0.005, 2)), 1)
    spoken = [int(group.reduce(BUCKET, _gradients(1, seed=s)).abs().sum()) for s in range(4)]
    assert spoken == [250 + 1 + 750, 25 + 1 + 75, 3 + 1 + 8, 3 + 1 + 8]


def test_a_schedule_that_leaves_the_range_is_refused():
    group = Group(SignVote(lambda step: 0.5 - step / 2), 1)
    group.reduce(BUCKET, _gradients(1))
    with pytest.raises(ValueError, match=r"density is 0\.0; use a share above 0, up to 1"):
        group.reduce(BUCKET, _gradients(1))


@pytest.mark.parametrize(("workers", "density"), [(2, 1.0), (4, 0.75), (15, 0.2), (300, 0.01)])
def test_auto_wants_three_voters_a_coordinate(workers, density):
    assert SignVote("auto").bind(Setting(workers)).technique == SignVote(density)
    assert SignVote("auto").density_at(5, workers) == density


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"density": 0}, "density is 0; use a share above 0, up to 1"),
        ({"density": 1.5}, "density is 1.5; use a share above 0, up to 1"),
        ({"density": float("nan")}, "density is nan"),
        ({"density": "most"}, "density is 'most'; use a share, a function from the step to one, or 'auto'"),
        ({"memory": 1.1}, "memory is 1.1; use 0, which forgets, to 1, which keeps everything"),
        ({"memory": -0.1}, "memory is -0.1"),
        ({"scope": "layer"}, "scope is 'layer'; use 'tensor' or 'bucket'"),
        ({"ties": "up"}, "ties is 'up'; use 'zero' or 'random'"),
        ({"weighting": "fair"}, "weighting is 'fair'; use 'equal' or 'agreement'"),
        ({"density": None}, "density is None; use a number"),
        ({"density": True}, "density is True; use a number"),
        ({"memory": "1"}, "memory is '1'; use a number"),
        ({"seed": 2**63}, "seed is 9223372036854775808; use an integer of 64 bits"),
    ],
)
def test_bad_options_get_one_sentence(options, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        SignVote(**options)


def test_a_function_that_gives_no_density_is_refused_when_attached():
    with pytest.raises(ValueError, match=r"density is 5\.0"):
        SignVote(lambda step: 5.0).bind(Setting(4))


def test_so_many_workers_or_coordinates_are_refused():
    with pytest.raises(ValueError, match="there are 1024 workers; SignVote serves up to 1023"):
        SignVote().bind(Setting(1024))
    with pytest.raises(ValueError, match="use smaller ones"):
        SignVote().bind(Setting(2)).cut(Bucket(("w",), (1 << 30,), torch.float32), 1 << 20)


def _noisy(workers, truth, seed, liars=()):
    noise = torch.randn(workers, len(truth), generator=torch.Generator().manual_seed(seed))
    gradients = truth + 2 * noise
    gradients[list(liars)] *= -1
    return list(gradients)


def _right(group, steps, truth, liars=()):
    """The share of coordinates that are right after so many steps."""
    for step in range(steps):
        result = group.reduce(BUCKET, _noisy(group.scheme.workers, truth, step, liars))
    return float((result == truth).float().mean())


def test_workers_who_lie_lose_their_say_and_then_help():
    truth = _gradients(1)[0].sign()
    group = Group(SignVote(0.5, memory=0, weighting="agreement"), 7)
    equal = _right(group, WARM_UP, truth, liars=(1, 4))
    agreement = group.memories[0].tallies()["agreement"]
    against = agreement[:, 1] / agreement[:, 0]
    assert against[[1, 4]].min() > 0.5 > against[[0, 2, 3, 5, 6]].max()
    assert _right(group, 20, truth, liars=(1, 4)) > equal + 0.05


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("bad", [1, 2, 5])
def test_workers_who_once_disagreed_are_heard_again(workers, bad):
    """All weights turned around would agree as well, and make the run climb forever."""
    truth = _gradients(1)[0].sign()
    group = Group(SignVote(0.5, memory=0, weighting="agreement"), workers)
    group.step = WARM_UP
    for step in range(bad):
        gradients = _noisy(workers, truth, step)
        group.reduce(BUCKET, [(-1) ** k * 9 * truth + g for k, g in enumerate(gradients)])
    equal = Group(SignVote(0.5, memory=0), workers)
    assert _right(group, 60, truth) > _right(equal, 60, truth) - 0.1


def test_all_votes_weigh_the_same_until_agreement_is_known():
    truth = _gradients(1)[0].sign()
    groups = [Group(SignVote(0.5, memory=0, weighting=w), 5) for w in ("equal", "agreement")]
    for step in range(WARM_UP):
        gradients = _noisy(5, truth, step, liars=(2,))
        equal, weighted = (group.reduce(BUCKET, gradients) for group in groups)
        assert torch.equal(equal, weighted)
    equal, weighted = (group.reduce(BUCKET, gradients) for group in groups)
    assert not torch.equal(equal, weighted)


def test_a_bad_step_teaches_nothing_about_agreement():
    (tallies, memory), *_ = run(2, _bad_step)
    assert torch.equal(*tallies)
    assert torch.equal(*memory)


def _bad_step():
    model = parallel()
    attachment = laconic.attach(model, SignVote(0.5, weighting="agreement"))
    train(model, range(2))
    before = attachment.state_dict()
    model(torch.full((4, 32), torch.nan)).sum().backward()
    after = attachment.state_dict()
    name = next(iter(before["memory"]["unsaid"]))
    assert before["tallies"]["agreement"].any()
    return [
        (before["tallies"]["agreement"], after["tallies"]["agreement"]),
        (before["memory"]["unsaid"][name], after["memory"]["unsaid"][name]),
    ]


def _auto_header():
    attachment = laconic.attach(parallel(), SignVote("auto"))
    return laconic.header(attachment.technique)["technique"]


def test_the_header_shows_the_density_that_was_chosen():
    assert all(shown.startswith("SignVote(density=0.75") for shown in run(4, _auto_header))


def _with_a_function():
    return laconic.attach(parallel(), SignVote(lambda step: 0.1)).technique.density(0)


def test_workers_agree_on_a_function():
    assert run(2, _with_a_function) == [0.1, 0.1]


@pytest.mark.parametrize("ties", ["zero", "random"])
def test_empty_tensors_are_served(ties):
    bucket = Bucket(("a", "b", "c"), (5, 0, 5), torch.float32)
    gradients = _gradients(2, bucket)
    result = Group(SignVote(1.0, ties=ties), 2).reduce(bucket, gradients)
    assert result[torch.stack(gradients).sign().sum(0) != 0].abs().min() == 1


@pytest.mark.parametrize("density", [0.1, 0.01, 0.001])
def test_all_messages_together_are_within_3_percent_of_their_entropy_and_a_header_each(density):
    bucket = Bucket(("w",), (200_000,), torch.float32)
    messages = []
    Group(SignVote(density), 4).reduce(
        bucket, _gradients(4, bucket), damage=lambda m: messages.extend(m) or m
    )
    bits = -density * math.log2(density) - (1 - density) * math.log2(1 - density) + density
    for mine in messages:
        assert sum(map(len, mine)) <= 1.03 * bits * 200_000 / 8 + 4 * (
            ternary.HEADER + 2
        )  # parts begin with a new byte


def _resumed_tallies(directory):
    path = f"{directory}/{dist.get_rank()}"
    attachment = laconic.attach(model := parallel(), SignVote(0.5, weighting="agreement"))
    train(model, range(3))
    torch.save(attachment.state_dict(), path)
    attachment.detach()
    attachment = laconic.attach(model, SignVote(0.5, weighting="agreement"))
    before = attachment.state_dict()["tallies"]["agreement"]
    state = torch.load(path, weights_only=True)
    attachment.load_state_dict(state)
    return before, state["tallies"]["agreement"], attachment.state_dict()["tallies"]["agreement"]


def test_agreement_is_saved_and_loaded(tmp_path):
    for fresh, saved, loaded in run(3, _resumed_tallies, str(tmp_path)):
        assert not fresh.any()
        assert saved.any()
        assert torch.equal(saved, loaded)
