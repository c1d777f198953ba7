"""GenNorm's C++ kernels give the reference's bits, on every instruction set, and refuse what it refuses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic import kernels
from laconic.kernels import gennorm as ops
from laconic.numerics import ans, generalized_normal, level_codes
from laconic.numerics.minifloat import FORMATS
from tests.support.gennorm_work import SIZES, numel_of, parts_of, quantized, random_values, scale_pairs

pytestmark = pytest.mark.skipif(kernels.native is None, reason="needs the native extension")
SETS = kernels.native.instruction_sets() if kernels.native else []
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(params=SETS, autouse=True)
def _every_instruction_set(request):
    chosen = kernels.native.chosen()
    kernels.native.choose(request.param)
    yield
    kernels.native.choose(chosen)


# Moments.


def _moments(op, grad, old, memory, parts):
    moments = torch.full((len(parts), 2), 7.0, dtype=torch.float64)
    op(grad, old, memory, parts, moments)
    return moments


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("memory", [None, 1.0, 0.7])
def test_moments_are_the_references(dtype, memory):
    parts = parts_of(SIZES)
    grad = random_values(numel_of(parts)).to(dtype)
    old = None if memory is None else random_values(numel_of(parts), 2)
    ours, theirs = (
        _moments(op, grad, old, memory or 0.0, parts)
        for op in (ops.gennorm_moments, ops.gennorm_moments.reference)
    )
    # Magnitudes and squares of floats are exact in double precision, and n - 1 sums of positive terms are each right
    # to 2^-53, in whatever order.
    assert ((ours - theirs).abs() <= 2 * parts[:, 1:] * 2**-53 * theirs).all()


def test_moments_of_no_parts_of_extremes_and_of_what_is_not_finite():
    assert _moments(ops.gennorm_moments, torch.ones(5), None, 0.0, parts_of(())).shape == (0, 2)
    for value, sums in [(3e38, 3e38), (1e-45, 2**-149), (-0.0, 0.0), (torch.inf, torch.inf)]:
        grad = torch.full((20,), value)
        mean = float(torch.tensor(sums, dtype=torch.float32))
        assert _moments(ops.gennorm_moments, -grad, None, 0.0, torch.tensor([[1, 16]])).tolist() == [
            [16 * mean, 16 * mean * mean]
        ]
    grad = torch.ones(2100)
    grad[2099] = torch.nan
    assert _moments(ops.gennorm_moments, grad, None, 0.0, torch.tensor([[0, 2100]])).isnan().all()


# Levels.


def _check_levels(grad, old, memory, parts, scales, name, keeps=True):
    ours, theirs = (
        quantized(op, grad, old, memory, parts, scales, name, keeps)
        for op in (ops.gennorm_quantize, ops.gennorm_quantize.reference)
    )
    assert ours[0]
    assert theirs[0]
    assert torch.equal(ours[1], theirs[1])
    assert torch.equal(ours[2], theirs[2])
    assert not keeps or torch.equal(ours[3], theirs[3])
    return ours


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("memory", [None, 0.7])
def test_levels_counts_and_residuals_are_the_references(dtype, name, memory):
    parts = parts_of(SIZES)
    grad = random_values(numel_of(parts)).to(dtype)
    old = None if memory is None else random_values(numel_of(parts), 2)
    scales = scale_pairs([1e-3, 1.0, 0.0, 3.0, 1e6, 0.0, 2**-126, 2**126, 0.011])
    for keeps in (True, False):
        _check_levels(grad, old, memory or 0.0, parts, scales, name, keeps)


@pytest.mark.parametrize("name", FORMATS)
def test_values_on_edges_go_to_even_levels_and_large_ones_saturate(name):
    form = FORMATS[name]
    near = torch.cat([form.levels, form.edges])
    values = torch.cat(
        [
            near,
            torch.nextafter(near, torch.tensor(torch.inf)),
            torch.nextafter(near, torch.tensor(-torch.inf)),
            torch.tensor(
                [0.0, -0.0, 1e-45, -1e-45, 1e-38, 3e38, -3e38, 65504.0, 1e5, form.magnitudes[-1] * 1.5]
            ),
        ]
    )
    for begin in range(3):
        parts = torch.tensor([[begin, len(values) - begin]])
        ours = _check_levels(values, None, 0.0, parts, scale_pairs([1.0]), name)
        _check_levels(values, None, 0.0, parts, scale_pairs([2.0**120]), name)
        _check_levels(values, -0.5 * values, 1.0, parts, scale_pairs([0.37]), name)
    assert ours[1].max() == len(form.levels) - 1
    assert ours[1].min() == 0
    found = form.levels[ours[1][: len(form.levels) - begin].long()]
    assert torch.equal(found, form.levels[begin:])


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None, max_examples=50)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=70),
    scale=st.sampled_from([2.0**-126, 1e-3, 0.7, 1.0, 1e4, 2.0**126]),
)
def test_any_values_have_the_references_levels(name, values, scale):
    values = torch.tensor(values)
    _check_levels(values, None, 0.0, torch.tensor([[0, len(values)]]), scale_pairs([scale]), name)


@pytest.mark.parametrize("numel", [(1 << 16) - 1, 1 << 16, (1 << 16) + 1, (1 << 17) + 77])
def test_of_large_parts_the_references_eighth_is_counted(numel):
    grad = random_values(numel + 3)
    counts = _check_levels(grad, None, 0.0, torch.tensor([[3, numel]]), scale_pairs([0.01]), "e5m2")[2]
    assert counts.sum() == numel if numel < ops.SAMPLED else 0.12 < counts.sum() / numel < 0.13


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("scale", [0.0, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_is_found_wherever_it_is(bad, scale, dtype):
    parts = torch.tensor([[1, 2_049], [2_050, 30], [2_085, 17]])
    for place in (1, 17, 2_048, 2_049, 2_050, 2_079, 2_085, 2_101):
        grad = torch.zeros(2_110, dtype=dtype)
        grad[place] = bad
        for op in (ops.gennorm_quantize, ops.gennorm_quantize.reference):
            assert not quantized(op, grad, None, 0.0, parts, scale_pairs([1.0, scale, scale]), "fp4")[0]
    for place in (0, 2_080, 2_084, 2_102):  # of no part
        grad = torch.zeros(2_110, dtype=dtype)
        grad[place] = bad
        assert quantized(
            ops.gennorm_quantize, grad, None, 0.0, parts, scale_pairs([1.0, scale, scale]), "fp4"
        )[0]


def test_a_sum_that_is_not_finite_is_found():
    grad, old = torch.full((2, 40), 3e38)
    for op in (ops.gennorm_quantize, ops.gennorm_quantize.reference):
        assert not quantized(op, grad, old, 1.0, torch.tensor([[0, 40]]), scale_pairs([1.0]), "fp4")[0]


def test_parts_of_zeros_have_no_symbols_and_keep_everything():
    parts = torch.tensor([[0, 50], [50, 50]])
    grad = random_values(100)
    _, symbols, counts, new = _check_levels(grad, None, 0.0, parts, scale_pairs([0.0, 1.0]), "e5m2")
    assert counts.sum(1).tolist() == [0, 50]
    assert (symbols[50:] == 99).all()
    assert torch.equal(new[:50], grad[:50])


def test_nothing_is_written_outside_of_parts():
    parts = parts_of(SIZES)
    new = _check_levels(
        random_values(numel_of(parts)), None, 0.0, parts, scale_pairs([1.0] * len(SIZES)), "e4m3"
    )[3]
    outside = torch.ones(len(new), dtype=torch.bool)
    for start, numel in parts.tolist():
        outside[start : start + numel] = False
    assert (new[outside] == 7).all()


# What no caller should ask for.


def test_parts_outside_of_a_gradient_are_refused():
    grad, scales = torch.ones(10), scale_pairs([1.0])
    for row in ([-1, 5], [5, 6], [11, 0], [0, -1], [2**62, 2**62]):
        with pytest.raises(ValueError, match="outside its gradient"):
            _moments(ops.gennorm_moments, grad, None, 0.0, torch.tensor([row]))
        symbols, counts = torch.zeros(10, dtype=torch.uint8), torch.zeros(1, 256, dtype=torch.int32)
        with pytest.raises(ValueError, match="outside its gradient"):
            ops.gennorm_quantize(grad, None, 0.0, torch.tensor([row]), scales, "fp4", None, symbols, counts)


def test_arguments_that_do_not_fit_each_other_are_refused():
    grad, parts, scales = torch.ones(10), torch.tensor([[0, 10]]), scale_pairs([1.0])
    symbols, counts = torch.zeros(10, dtype=torch.uint8), torch.zeros(1, 256, dtype=torch.int32)
    for wrong in (
        (grad, None, 0.0, parts, scales, "fp5", None, symbols, counts),
        (grad, torch.ones(9), 0.0, parts, scales, "fp4", None, symbols, counts),
        (grad, None, 0.0, parts, scales, "fp4", torch.ones(9), symbols, counts),
        (grad, None, 0.0, parts, scales, "fp4", None, symbols[:9], counts),
        (grad, None, 0.0, parts, scales[:, :1], "fp4", None, symbols, counts),
        (grad, None, 0.0, parts, scales, "fp4", None, symbols, counts[:, :255].contiguous()),
    ):
        with pytest.raises(ValueError, match=r"format|residual|room|scale"):
            ops.gennorm_quantize(*wrong)


def test_a_fitted_scale_brings_levels_that_a_fitted_code_makes_shorter():
    grad = random_values(50_000)
    parts = torch.tensor([[0, 50_000]])
    sums = _moments(ops.gennorm_moments, grad, None, 0.0, parts)[0] / 50_000
    scale = generalized_normal.scale(generalized_normal.fit(*sums.tolist()), FORMATS["fp4"])
    counts = quantized(ops.gennorm_quantize, grad, None, 0.0, parts, scale_pairs([scale]), "fp4")[2][:, :11]
    prediction = level_codes.Prediction(*level_codes.fit(counts.numpy(), FORMATS["fp4"])[0].tolist())
    bits = ans.expected_bits(level_codes.model(prediction, FORMATS["fp4"], "rans"), counts[0].tolist())
    assert bits < 3
