"""Every law of low-rank factors, against singular values in double precision."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from laconic.lab import tasks
from laconic.numerics import lowrank
from laconic.numerics.lowrank import Factors, factor, factor_with_residual

# Sums of float32 products are off by this share of |A||Δ|: the square root of their number, 2^10, times 2^-24.
FLOAT = 2e-6
METHODS = pytest.mark.parametrize("method", ["qr", "block", "power"])


def _rows(count, outputs, inputs, seed=0, decay=0.0):
    """Δ and A whose product has singular values that fall like i^-decay, nearly."""
    rng = torch.Generator().manual_seed(seed)
    sizes = torch.arange(1, count + 1)[:, None] ** -decay
    return torch.randn(count, outputs, generator=rng) * sizes, torch.randn(count, inputs, generator=rng)


@functools.cache
def _captured(size="default", steps=5):
    """Δ and A of every linear layer of the digits task, after a few steps."""
    task = tasks.load("digits", size=size)
    model, rows = task.model(0), {}
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for layer in layers:
        layer.register_forward_hook(lambda layer, inputs, output: _capture(rows, layer, inputs[0], output))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _, batch in zip(range(steps), task.batches(0, 1, batch=32, seed=0), strict=False):
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
    return [(*rows[layer], layer.weight.grad) for layer in layers]


def _capture(rows, layer, inputs, output):
    output.register_hook(lambda delta: rows.update({layer: (delta, inputs.detach())}))


SHAPES = [(32, 100, 70), (8, 300, 40), (40, 20, 100), (100, 60, 20), (30, 30, 30)]
CASES = {
    **{f"random {shape}": _rows(*shape) for shape in SHAPES},
    **{f"decaying {shape}": _rows(*shape, decay=1.0) for shape in SHAPES},
    "wide": _rows(200, 256, 300, decay=0.5),
}


def _cases():
    yield from CASES.values()
    yield from (case[:2] for case in _captured())


def _error(found, deltas, inputs):
    return float((deltas.double().T @ inputs.double() - found.P.double() @ found.Q.double().T).norm())


def _values(deltas, inputs):
    return torch.linalg.svdvals(deltas.double().T @ inputs.double())


def _size(deltas, inputs):
    """|A||Δ|, by which rounding errors go."""
    return float(deltas.double().norm() * inputs.double().norm())


def test_hooks_capture_the_rows_of_the_gradient():
    for deltas, inputs, gradient in _captured():
        torch.testing.assert_close(deltas.T @ inputs, gradient)


@METHODS
def test_full_rank_gives_the_gradient_back(method):
    for deltas, inputs in _cases():
        found = factor(deltas, inputs, rank=1000, method=method)
        assert found.rank == min(*deltas.shape, *inputs.shape)
        assert _error(found, deltas, inputs) < FLOAT * _size(deltas, inputs)


@pytest.mark.parametrize("rank", [1, 4, 16])
def test_qr_has_the_error_of_the_truncated_svd(rank):
    for deltas, inputs in _cases():
        least = float(_values(deltas, inputs)[rank:].norm())
        error = _error(factor(deltas, inputs, rank), deltas, inputs)
        assert error == pytest.approx(least, rel=1e-5, abs=FLOAT * _size(deltas, inputs))


@pytest.mark.parametrize("rank", [1, 4, 16])
@pytest.mark.parametrize(("method", "excess"), [("power", 0.05), ("block", 0.02)])
def test_iterations_have_little_more_error_than_the_truncated_svd(method, excess, rank):
    for deltas, inputs in _cases():
        least = float(_values(deltas, inputs)[rank:].norm())
        error = _error(factor(deltas, inputs, rank, method=method), deltas, inputs)
        assert error <= (1 + excess) * least + FLOAT * _size(deltas, inputs)


def test_qr_knows_all_singular_values_and_the_energy():
    for deltas, inputs in _cases():
        found, values = factor(deltas, inputs, 2), _values(deltas, inputs)
        values = values[: min(*deltas.shape, *inputs.shape)]
        torch.testing.assert_close(found.sigma, values, rtol=1e-5, atol=FLOAT * _size(deltas, inputs))
        assert float(found.energy) == pytest.approx(float(values.square().sum()), rel=1e-5)
        assert found.kept == pytest.approx(float(values[:2].square().sum() / values.square().sum()), rel=1e-5)
        torch.testing.assert_close(lowrank.singular_values(deltas, inputs), found.sigma)


@METHODS
def test_both_sides_carry_the_root_of_sigma_and_columns_are_orthogonal(method):
    for deltas, inputs in _cases():
        found = factor(deltas, inputs, 4, method=method)
        expected = found.sigma[:4].diag().float()
        slack = 10 * FLOAT * _size(deltas, inputs)
        torch.testing.assert_close(found.P.T @ found.P, expected, rtol=1e-4, atol=slack)
        if method != "power":  # whose c are orthogonal only as far as it has converged
            torch.testing.assert_close(found.Q.T @ found.Q, expected, rtol=1e-4, atol=slack)


@METHODS
def test_the_largest_entry_of_every_column_is_positive(method):
    for deltas, inputs in _cases():
        p = factor(deltas, inputs, 8, method=method).P
        assert (p.max(dim=0).values >= -p.min(dim=0).values).all()


@METHODS
def test_the_same_rows_give_the_same_bits_and_no_generator_is_read(method):
    state = torch.get_rng_state()
    for deltas, inputs in _cases():
        first, second = (factor(deltas.clone(), inputs.clone(), 4, method=method) for _ in range(2))
        assert all(map(torch.equal, first, second))
    assert torch.equal(state, torch.get_rng_state())


def _refactor(factors, weights, rank):
    """The best factors of a sum of products, as a layer's owner makes them."""
    left = torch.cat([weight * each.P.T for each, weight in zip(factors, weights, strict=True)])
    return factor(left, torch.cat([each.Q.T for each in factors]), rank)


@pytest.mark.parametrize("workers", [2, 5, 40])
def test_factors_of_factors_have_the_error_of_the_truncated_svd_of_the_sum(workers):
    weights = [(worker + 1) / 10 for worker in range(workers)]
    parts = [factor(*_rows(32, 100, 70, seed=worker, decay=1.0), rank=4) for worker in range(workers)]
    total = sum(w * part.P.double() @ part.Q.double().T for w, part in zip(weights, parts, strict=True))
    found = _refactor(parts, weights, rank=4)
    least = float(torch.linalg.svdvals(total)[4:].norm())
    assert float((total - found.product()).norm()) == pytest.approx(least, rel=1e-5)


def test_factors_of_one_factor_are_itself():
    part = factor(*_rows(32, 100, 70), rank=4)
    again = _refactor([part], [1.0], rank=4)
    torch.testing.assert_close((again.P, again.Q), (part.P, part.Q), rtol=1e-4, atol=1e-4)


@METHODS
@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_energy_keeps_its_share_with_the_fewest_columns(method, share):
    for deltas, inputs in _cases():
        found = factor(deltas, inputs, 12, energy=share, method=method)
        assert found.rank == 12 or found.kept >= share
        assert found.columns(0, found.rank - 1).kept < share


def test_all_energy_needs_as_many_columns_as_there_are_directions():
    deltas, inputs = _rows(32, 100, 70)
    twice = torch.cat([deltas, deltas]), torch.cat([inputs, inputs])
    assert factor(deltas, inputs, 100, energy=1.0).rank == 32
    assert factor(*twice, 100, energy=1.0).rank == 32


@METHODS
def test_columns_past_the_rank_are_zero(method):
    deltas, inputs = _rows(3, 50, 70)
    repeated = deltas.repeat(8, 1), inputs.repeat(8, 1)
    found = factor(*repeated, 10, method=method, sweeps=100)
    assert found.rank == 10
    assert _error(found, *repeated) < FLOAT * _size(*repeated)
    if method == "power":  # rounding, orthogonal to the columns that count
        assert (found.sigma[3:] < FLOAT * _size(*repeated)).all()
    else:
        assert not found.P[:, 3:].any()
        assert not found.Q[:, 3:].any()


@METHODS
@pytest.mark.parametrize("rows", [1, 5, 100])
def test_of_zeros_all_columns_are_zero_and_none_have_energy(method, rows):
    zeros, ones = torch.zeros(rows, 60), torch.ones(rows, 70)
    for pair in [(zeros, ones), (ones, zeros)]:
        found = factor(*pair, 4, method=method)
        assert found.rank == min(4, rows)
        assert not found.product().any()
        assert found.kept == 1
        assert factor(*pair, 4, energy=0.9, method=method).rank == 0


@METHODS
def test_one_row_is_its_own_factor(method):
    deltas, inputs = _rows(1, 50, 70)
    found = factor(deltas, inputs, 4, method=method)
    assert found.rank == 1
    torch.testing.assert_close(found.product(), deltas.T @ inputs)


@METHODS
def test_no_rows_have_no_columns(method):
    found = factor(torch.zeros(0, 50), torch.zeros(0, 70), 4, energy=0.5, method=method)
    assert found.rank == 0
    assert torch.equal(found.product(), torch.zeros(50, 70))
    assert found.kept == 1
    assert _refactor([found, found], [0.5, 0.5], 4).rank == 0


@METHODS
@pytest.mark.parametrize("rows", [3, 100])
@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_of_rows_that_are_not_finite_no_column_is(method, rows, bad):
    deltas, inputs = _rows(rows, 60, 70)
    inputs[1, 1] = bad
    for energy in (None, 0.9):
        found = factor(deltas, inputs, 4, energy, method=method)
        assert found.rank >= 1
        assert found.P.isnan().all()
        assert found.Q.isnan().all()


@METHODS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_rows_are_widened(method, dtype):
    deltas, inputs = (rows.to(dtype) for rows in _rows(16, 100, 70))
    narrow = factor(deltas, inputs, 4, method=method)
    wide = factor(deltas.float(), inputs.float(), 4, method=method)
    assert narrow.P.dtype == narrow.Q.dtype == torch.float32
    assert all(map(torch.equal, narrow, wide))


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12])
def test_scale_changes_nothing_else(scale):
    deltas, inputs = _rows(32, 100, 70, decay=1.0)
    found, scaled = factor(deltas, inputs, 4), factor(scale * deltas, inputs, 4)
    torch.testing.assert_close(scaled.P, found.P * scale**0.5, rtol=1e-4, atol=1e-4 * scale**0.5)
    assert scaled.kept == pytest.approx(found.kept, rel=1e-5)


def test_cancelling_rows_leave_what_the_product_has():
    deltas, inputs = _rows(32, 300, 200)
    inputs += 100  # as of units that are all on; deltas that add up to nothing do not see it
    deltas -= deltas.mean(0)
    error = _error(factor(deltas, inputs, 4), deltas, inputs)
    assert error == pytest.approx(float(_values(deltas, inputs)[4:].norm()), rel=1e-5)


@settings(deadline=None, max_examples=150)
@given(
    rows=st.integers(0, 12),
    outputs=st.integers(1, 12),
    inputs=st.integers(1, 12),
    rank=st.integers(1, 14),
    method=st.sampled_from(["qr", "block", "power"]),
    seed=st.integers(0, 99),
)
def test_any_shape_has_as_many_columns_as_fit_and_no_more_error_than_the_gradient(
    rows, outputs, inputs, rank, method, seed
):
    pair = _rows(rows, outputs, inputs, seed)
    found = factor(*pair, rank, method=method)
    assert isinstance(found, Factors)
    assert found.rank == min(rank, rows, outputs, inputs)
    assert found.P.shape == (outputs, found.rank)
    assert found.Q.shape == (inputs, found.rank)
    kept = float(found.energy) - _error(found, *pair) ** 2
    assert kept == pytest.approx(found.kept * float(found.energy), rel=1e-3, abs=1e-4 * _size(*pair) ** 2)


@pytest.mark.parametrize("memory", [1.0, 0.9])
@pytest.mark.parametrize("rows", [8, 100])
def test_with_room_for_all_of_it_the_residual_is_what_was_not_sent(memory, rows):
    residual, expected = None, torch.zeros(60, 70, dtype=torch.float64)
    for step in range(5):
        deltas, inputs = _rows(rows, 60, 70, seed=step)
        sent, residual = factor_with_residual(deltas, inputs, residual, memory, rank=4, keep=60)
        whole = deltas.double().T @ inputs.double() + memory * expected
        least = torch.linalg.svdvals(whole)[4:].norm()
        expected = whole - sent.product()
        assert float(expected.norm()) == pytest.approx(float(least), rel=1e-5)
        torch.testing.assert_close(residual.product().double(), expected, rtol=1e-3, atol=1e-3)


def test_more_sweeps_are_closer_with_a_residual_too():
    deltas, inputs = _rows(32, 60, 70, decay=0.2)
    whole = deltas.double().T @ inputs.double()
    errors = [
        float(
            (
                whole
                - factor_with_residual(deltas, inputs, None, 1.0, 2, method="power", sweeps=n)[0].product()
            ).norm()
        )
        for n in (1, 100)
    ]
    best = float(torch.linalg.svdvals(whole)[2:].norm())
    assert errors[0] > 1.001 * best
    assert errors[1] == pytest.approx(best, rel=1e-3)


def test_a_narrow_residual_is_the_best_of_what_was_not_sent_and_says_what_it_lost():
    deltas, inputs = _rows(32, 100, 70, decay=1.0)
    sent, residual = factor_with_residual(deltas, inputs, None, 1.0, rank=3, keep=5)
    assert (sent.rank, residual.rank) == (3, 5)
    values = _values(deltas, inputs)
    left = deltas.double().T @ inputs.double() - sent.product() - residual.product()
    assert float(left.norm()) == pytest.approx(float(values[8:].norm()), rel=1e-5)
    lost = 1 - lowrank.kept_energy(sent.sigma, sent.rank + residual.rank, sent.energy)
    assert lost == pytest.approx(float(left.norm() ** 2 / values.square().sum()), rel=1e-4)


def test_energy_decides_what_is_sent_and_the_rest_is_kept():
    deltas, inputs = _rows(32, 100, 70, decay=2.0)
    sent, residual = factor_with_residual(deltas, inputs, None, 1.0, rank=20, energy=0.9, keep=5)
    assert sent.rank == factor(deltas, inputs, 20, energy=0.9).rank < 20
    assert residual.rank == 5
    capped, _ = factor_with_residual(deltas, inputs, None, 1.0, rank=1, energy=0.9999, keep=5)
    assert capped.rank == 1


def test_a_direction_that_is_never_large_enough_is_sent_in_time():
    noise = torch.randn(40, 16, 50, generator=torch.Generator().manual_seed(0))
    inputs = torch.eye(17, 70)
    residual, forgotten, remembered = None, torch.zeros(50, 70), torch.zeros(50, 70)
    for each in noise:
        deltas = torch.cat([torch.full((1, 50), 0.2), each])
        forgotten += factor(deltas, inputs, 2).product()
        found, residual = factor_with_residual(deltas, inputs, residual, 1.0, rank=2, keep=16)
        remembered += found.product()
    assert float(forgotten[:, 0].mean()) < 0.2 * (40 * 0.2)
    assert float(remembered[:, 0].mean()) > 0.8 * (40 * 0.2)


def test_ranks_of_a_spectrum():
    sigma = torch.tensor([4.0, 2.0, 1.0, 0.0], dtype=torch.float64)
    assert [lowrank.effective_rank(sigma, fraction) for fraction in (0, 0.1, 0.25, 0.5, 0.6)] == [
        3,
        3,
        2,
        1,
        1,
    ]
    assert [lowrank.rank_by_energy(sigma, share) for share in (0.1, 16 / 21, 0.8, 0.99, 1)] == [1, 1, 2, 3, 3]
    assert [lowrank.kept_energy(sigma, rank) for rank in (0, 1, 3, 9)] == [0, 16 / 21, 1, 1]
    assert lowrank.rank_by_energy(sigma[:2], 0.99, energy=torch.tensor(21.0)) == 2
    assert lowrank.rank_by_energy(torch.zeros(3), 0.5) == lowrank.effective_rank(torch.zeros(0), 0.5) == 0


def test_nothing_as_large_as_the_gradient_is_made_of_few_rows():
    deltas, inputs = _rows(16, 500, 400)
    with torch.profiler.profile(
        profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]
    ) as profile:
        factor(deltas, inputs, 4)
    assert max(event.cpu_memory_usage for event in profile.events()) < 500 * 400 * 4 / 2


@pytest.mark.parametrize("shape", [(64, 288), (288, 64), (1, 7), (300, 400)])
def test_a_gradient_that_is_there_has_the_factors_of_its_rows(shape):
    generator = torch.Generator().manual_seed(0)
    deltas, inputs = (torch.randn(500, width, generator=generator) for width in shape)
    exact = deltas.T @ inputs
    expected, found = lowrank.factor(deltas, inputs, 4), lowrank.factor_matrix(exact, 4)
    assert (found.P.shape, found.Q.shape) == (expected.P.shape, expected.Q.shape)
    error, least = ((exact - each.product()).norm() for each in (found, expected))
    assert error <= 1.02 * least + 1e-4 * exact.norm()  # the block method, for the large one, is nearly exact
