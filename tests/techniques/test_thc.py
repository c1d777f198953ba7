import pytest
import torch
from torch import nn

import laconic
from laconic.core.technique import Bucket, Cell, Desk, Reading, Setting, Turn
from laconic.kernels.thc import COUNT_BYTES
from laconic.numerics import rng
from laconic.numerics.bits import pack, unpack
from laconic.numerics.hadamard import hadamard
from laconic.numerics.thc_grid import clamping_error, rounding_error
from laconic.techniques.thc import THC
from tests.support.toys import flat, parallel, train
from tests.support.workers import run

NUMEL = 1 << 18


def _turns(technique, workers, numel=NUMEL, step=0):
    scheme = technique.bind(Setting(workers))
    (piece,) = scheme.cut(Bucket(("w",), (numel,), torch.float32), 1 << 20)
    memory = [{kind: Cell(*torch.zeros(2, numel)) for kind in scheme.memory} for _ in range(workers)]
    return [Turn(piece, step, worker, memory[worker]) for worker in range(workers)]


def _messages(technique, turns, gradients):
    scheme = technique.bind(Setting(len(turns)))
    surveys = [scheme.survey(turn, grad) for turn, grad in zip(turns, gradients, strict=True)]
    for turn in turns:
        turn.agreed = torch.stack(surveys).amax(0)
    return torch.stack([scheme.encode(turn, grad) for turn, grad in zip(turns, gradients, strict=True)])


def _decoded(technique, turn, messages):
    """What the combination of `messages`, workers × shards × bytes, says."""
    scheme = technique.bind(Setting(turn.piece.shards))
    desks = [Desk(turn.piece, turn.step, shard) for shard in range(messages.shape[1])]
    replies = torch.stack([scheme.combine(desk, messages[:, desk.shard]) for desk in desks])
    result = torch.empty(turn.piece.numel)
    scheme.decode(turn, replies, result)
    return result


def _gradient(seed=0, numel=NUMEL):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tail", [1 / 32, 1 / 128, 1 / 512])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
def test_the_error_is_rounding_over_workers_plus_clamping(workers, tail):
    """If the 1/n falls away, the rounding noise is correlated between workers."""
    technique = THC(granularity=30, tail=tail, error_feedback=False)
    grad, turns = _gradient(), _turns(technique, workers)
    result = _decoded(technique, turns[0], _messages(technique, turns, [grad] * workers))
    nmse = float((result - grad).square().sum() / grad.square().sum())
    law = rounding_error(technique.grid(workers).table, tail) / workers + clamping_error(tail)
    assert nmse == pytest.approx(law, rel=0.05)


def test_the_sum_of_codes_decodes_to_the_mean_of_each_workers_own():
    technique = THC(error_feedback=False)
    turns = _turns(technique, 4)
    messages = _messages(technique, turns, [_gradient(seed) for seed in range(4)])
    together = _decoded(technique, turns[0], messages)
    alone = torch.stack([_decoded(technique, turns[0], messages[k : k + 1]) for k in range(4)])
    assert torch.allclose(together, alone.mean(0), atol=1e-5)


def test_a_missing_worker_is_not_counted():
    technique = THC(error_feedback=False)
    turns = _turns(technique, 3)
    gradients = [_gradient(seed) for seed in range(3)]
    messages = _messages(technique, turns, gradients)
    result = _decoded(technique, turns[0], messages[:2])
    expected = torch.stack(gradients[:2]).mean(0)
    assert (result - expected).norm() / expected.norm() < 0.25
    assert abs(float(result @ expected / expected.square().sum()) - 1) < 0.05


def test_lost_messages_cost_little():
    """Of 1 % lost messages of 8 workers, dividing by the number of contributors costs little of the error, while a
    missing worker that counted as the table's first value would double it."""
    technique, workers, pieces = THC(granularity=30, tail=1 / 512, error_feedback=False), 8, 96
    errors = torch.zeros(3)
    for piece in range(pieces):
        turns = _turns(technique, workers, numel=4096, step=piece)
        gradients = [_gradient(piece, 4096) + 0.3 * _gradient(1000 * piece + k, 4096) for k in range(workers)]
        mean, messages = torch.stack(gradients).mean(0), _messages(technique, turns, gradients)
        lost = [0] if piece % 12 == 0 else []  # 8 of 768 messages
        heard = torch.stack([message for k, message in enumerate(messages) if k not in lost])
        silent = torch.stack([torch.zeros_like(m) if k in lost else m for k, m in enumerate(messages)])
        results = [_decoded(technique, turns[0], arrived) for arrived in (messages, heard, silent)]
        errors += torch.stack([(result - mean).square().sum() / mean.square().sum() for result in results])
    complete, counted, as_zero = errors.tolist()
    assert counted < 1.4 * complete
    assert as_zero > 2 * complete


def test_readings_say_how_well_a_worker_was_heard():
    technique = THC(tail=1 / 32)
    turns = _turns(technique, 2)
    grads = [_gradient(), 4 * _gradient(1)]
    _messages(technique, turns, grads)
    small, large = (Reading.shares(turn.readings) for turn in turns)
    table, tail = technique.grid(2).table, technique.tail
    assert large["own error"] == pytest.approx(rounding_error(table, tail) + clamping_error(tail), rel=0.05)
    assert large["clamped"] == pytest.approx(tail, rel=0.05)
    assert large["norm spread"] == pytest.approx(1, rel=1e-5)
    assert small["own error"] > 5 * large["own error"]
    assert small["clamped"] < 1e-4
    assert small["norm spread"] == pytest.approx(16, rel=0.05)


def test_estimates_are_unbiased_inside_the_range():
    technique, grad = THC(error_feedback=False, block=64), _gradient(numel=1024)
    draws = []
    for step in range(400):
        turns = _turns(technique, 1, numel=1024)
        turns[0].step = 0
        turns[0].worker = step  # the same rotation, other noise
        draws.append(_decoded(technique, turns[0], _messages(technique, turns, [grad])))
    turn = _turns(technique, 1, numel=1024)[0]
    parameter = torch.tensor(turn.piece.blocks[0].parameter)
    key = rng.branch(rng.shared(technique.seed, turn.step), parameter)
    signs = rng.signs(key, 1024).view(-1, 64)
    rotated = hadamard(grad.view(-1, 64) * signs)
    bound = technique.grid(1).threshold * rotated.square().mean(1, keepdim=True).sqrt()
    clamped = (hadamard(rotated.clamp(-bound, bound)) * signs).flatten() / 64
    error = (torch.stack(draws).mean(0) - clamped).norm() / clamped.norm()
    one_draw = rounding_error(technique.grid(1).table, technique.tail) ** 0.5
    assert error < 2 * one_draw / 400**0.5


def test_original_is_what_was_said_plus_the_residual():
    technique = THC()
    grad, (turn,) = _gradient(), _turns(technique, 1)
    turn.memory["residual"].old.copy_(0.1 * _gradient(1))
    said = _decoded(technique, turn, _messages(technique, [turn], [grad]))
    original = grad + turn.memory["residual"].old
    assert torch.allclose(said + turn.memory["residual"].new, original, atol=1e-4)


def test_with_residuals_the_sum_of_results_follows_the_sum_of_gradients():
    technique, grad, total = THC(bits=2), _gradient(numel=4096), torch.zeros(4096)
    (turn,) = _turns(technique, 1, numel=4096)
    for step in range(50):
        turn.step = step
        total += _decoded(technique, turn, _messages(technique, [turn], [grad]))
        turn.memory["residual"].old.copy_(turn.memory["residual"].new)
    assert (total - 50 * grad).norm() / (50 * grad).norm() < 0.02


def test_layers_of_different_scale_do_not_spoil_each_other():
    technique = THC(error_feedback=False)
    scales = torch.tensor([1e-2, 1e-1, 1.0, 10.0]).repeat_interleave(NUMEL // 4)
    grad, (turn,) = _gradient() * scales, _turns(technique, 1)
    result = _decoded(technique, turn, _messages(technique, [turn], [grad]))
    for part in range(4):
        span = slice(part * NUMEL // 4, (part + 1) * NUMEL // 4)
        assert (result[span] - grad[span]).square().sum() / grad[span].square().sum() < 0.03


def test_signs_are_fresh_every_step_and_noise_is_each_workers_own():
    technique, grad = THC(error_feedback=False), _gradient()
    first, later = (_turns(technique, 2, step=step) for step in (0, 1))
    messages, others = (_messages(technique, turns, [grad] * 2) for turns in (first, later))
    assert (messages[0] != messages[1]).float().mean() > 0.1
    assert (messages[0] != others[0]).float().mean() > 0.5


def test_combine_only_adds_integers():
    technique = THC()
    turn = _turns(technique, 3, numel=4096 * 3)[0]
    codes = torch.randint(0, 16, (3, turn.piece.width), generator=torch.Generator().manual_seed(0))
    reply = technique.bind(Setting(3)).combine(Desk(turn.piece, 0, 0), pack(codes, 4))
    table, lane = torch.tensor(technique.grid(3).table), technique.grid(3).lane
    assert torch.equal(unpack(reply[None, :-COUNT_BYTES], lane, turn.piece.width)[0], table[codes].sum(0))
    assert unpack(reply[None, -COUNT_BYTES:], 16, 1).item() == 3


@pytest.mark.parametrize(
    ("workers", "lane", "granularity"), [(2, 8, 127), (8, 8, 31), (17, 8, 15), (18, 9, 28)]
)
def test_the_widest_grid_that_the_lane_allows_is_used(workers, lane, granularity):
    grid = THC().grid(workers)
    assert (grid.lane, grid.granularity) == (lane, granularity)
    assert granularity * workers < 2**lane


@pytest.mark.parametrize("workers", [1, 2, 30, 64, 1000])
def test_up_to_a_thousand_workers_are_served(workers):
    grid = THC().grid(workers)
    assert grid.granularity * workers < 2**grid.lane <= 2**16


def test_messages_are_as_small_as_promised():
    technique = THC()
    for workers in (4, 8):
        bucket = Bucket(("a", "b"), (3136 * 1024, 1024), torch.float32)
        pieces = technique.bind(Setting(workers)).cut(bucket, 1 << 20)
        numel = sum(piece.numel for piece in pieces)
        up = sum(piece.shards * piece.width / 2 for piece in pieces)
        down = sum(piece.shards * (piece.width + COUNT_BYTES) for piece in pieces)
        norms = sum(4 * len(piece.blocks) for piece in pieces)
        assert (up + norms) / numel < 0.53
        assert (down + norms) / numel < 1.03


def _sent():
    torch.manual_seed(0)
    model = parallel(
        nn.Sequential(nn.Linear(32, 500), nn.Linear(500, 703), nn.Linear(703, 7)), bucket_cap_mb=1
    )
    attachment = laconic.attach(model, THC())
    train(model, range(2))
    stats = attachment.stats()
    return stats.sent / 2, stats.received / 2, flat(model).numel()


@pytest.mark.parametrize("workers", [4, 8])
def test_the_meter_counts_what_was_promised(workers):
    """0.53 bytes a coordinate up and 1.03 down; a worker keeps its own shard."""
    for sent, received, numel in run(workers, _sent):
        assert sent == received
        assert sent / numel <= (0.53 + 1.03) * (workers - 1) / workers


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bits": 1}, "bits is 1; use 2 to 8"),
        ({"bits": 9}, "bits is 9"),
        ({"granularity": 10}, "granularity 10 gives two of the 16 codes the same value; use at least 15"),
        ({"tail": 0}, "tail is 0"),
        ({"tail": 1.5}, "tail is 1.5"),
        ({"tail": 1e-17}, "leaves no grid"),
        ({"tail": 0.9999}, "leaves no grid"),
        ({"seed": 2**64}, "seed is 18446744073709551616; use an integer of 64 bits"),
        ({"granularity": 2000}, "granularity is 2000; use at most 1023"),
        ({"block": 1000}, "block is 1000; use a power of two"),
        ({"lane": 7}, "lane is 7; use 8 to 16 bits"),
        ({"uniform": True, "granularity": 30}, "is not uniform with 4 bits; use 15"),
    ],
)
def test_bad_settings_get_one_sentence(options, said):
    with pytest.raises(ValueError, match=said):
        THC(**options)


@pytest.mark.parametrize("option", ["bits", "granularity", "block", "lane"])
def test_settings_that_are_no_integers_are_refused(option):
    with pytest.raises(TypeError, match=rf"{option} is 4\.0; use an integer"):
        THC(**{option: 4.0})


@pytest.mark.parametrize(
    ("options", "workers", "said"),
    [
        (
            {"lane": 8, "granularity": 60},
            8,
            "granularity 60 with 8 workers sums to 480, beyond a lane of 8 bits; use a lane of at least 9 bits",
        ),
        ({"lane": 8}, 18, "use a lane of at least 9 bits"),
        ({"bits": 8}, 1000, "beyond a lane of 16 bits; use fewer bits"),
        ({"lane": 16, "granularity": 1023}, 100, "use a granularity of at most 655"),
    ],
)
def test_a_sum_beyond_the_lane_is_refused(options, workers, said):
    with pytest.raises(ValueError, match=said):
        THC(**options).bind(Setting(workers))
