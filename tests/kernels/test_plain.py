import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic import kernels
from laconic.kernels import plain

FORMATS = [torch.float32, torch.bfloat16, torch.float16]
SETS = kernels.native.instruction_sets() if kernels.native else []
every_set = pytest.mark.parametrize("instruction_set", SETS)
every_format = pytest.mark.parametrize("dtype", FORMATS, ids=str)


@pytest.fixture
def chosen(instruction_set):
    before = kernels.native.chosen()
    kernels.native.choose(instruction_set)
    yield instruction_set
    kernels.native.choose(before)


def _bits(values):
    return values.view({4: torch.int32, 2: torch.int16}[values.itemsize])


def _same(a, b):
    """Equal bit for bit, any NaN being as good as another."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(_bits(a)[~a.isnan()], _bits(b)[~b.isnan()])


@every_set
@every_format
@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 9), columns=st.integers(0, 2100), seed=st.integers(0, 2**30))
def test_average_equals_its_reference(instruction_set, dtype, rows, columns, seed):
    kernels.native.choose(instruction_set)
    generator = torch.Generator().manual_seed(seed)
    scale = 10.0 ** torch.randint(-9, 6, (rows, columns), generator=generator)
    messages = (torch.randn(rows, columns, generator=generator) * scale).to(dtype)
    ours, reference = torch.empty_like(messages[0]), torch.empty_like(messages[0])
    plain.average(messages, ours)
    plain.average.reference(messages, reference)
    assert _same(ours, reference)


@every_set
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 40),
    outputs=st.integers(0, 11),
    width=st.sampled_from([0, 1, 7, 16, 63, 64, 65, 200, 511, 512, 513, 1100]),
    offset=st.integers(0, 17),
    seed=st.integers(0, 2**30),
)
def test_product_adds_rows_in_order_wherever_it_is_written(
    instruction_set, rows, outputs, width, offset, seed
):
    kernels.native.choose(instruction_set)
    generator = torch.Generator().manual_seed(seed)
    deltas, inputs = (torch.randn(rows, columns, generator=generator) for columns in (outputs, width))
    room = torch.full((offset + outputs * width + 20,), 7.0)
    out = room[offset : offset + outputs * width].view(outputs, width)
    plain.product(deltas, inputs, out)
    expected = torch.zeros(outputs, width)
    for delta, row in zip(deltas, inputs, strict=True):
        expected += delta[:, None] * row
    assert torch.equal(out, expected)
    assert room[:offset].eq(7).all()
    assert room[offset + outputs * width :].eq(7).all()
    plain.product.reference(deltas, inputs, out)
    torch.testing.assert_close(out, expected)


@pytest.mark.usefixtures("chosen")
@every_set
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns", [1, 7, 3000])
def test_messages_may_lie_apart(dtype, columns):
    """Between them are their seals."""
    rows = torch.randn(3, columns + 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    apart, together = torch.empty(columns, dtype=dtype), torch.empty(columns, dtype=dtype)
    plain.average(rows[:, :columns], apart)
    plain.average(rows[:, :columns].contiguous(), together)
    assert _same(apart, together)


@pytest.mark.parametrize("dtype", FORMATS[1:], ids=str)
def test_every_16_bit_value_survives_widening_and_narrowing(dtype):
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    out = torch.empty_like(values)
    plain.average(values.unsqueeze(0), out)
    assert _same(out, values)


@pytest.mark.usefixtures("chosen")
@every_set
@pytest.mark.parametrize("dtype", FORMATS[1:], ids=str)
def test_halfway_values_round_to_even(dtype):
    exact = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    exact = exact[exact.isfinite()].sort().values
    pair = torch.stack([exact[:-1], exact[1:]])  # their mean lies halfway between neighbours
    ours, reference = torch.empty_like(pair[0]), torch.empty_like(pair[0])
    plain.average(pair, ours)
    plain.average.reference(pair, reference)
    assert _same(ours, reference)


@pytest.mark.usefixtures("chosen")
@every_set
@every_format
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("position", [0, 1023, 1024, 2999])
def test_one_bad_value_is_found_anywhere(dtype, bad, position):
    values = torch.full((3000,), torch.finfo(dtype).max, dtype=dtype)
    assert plain.all_finite(values)
    values[position] = bad
    assert not plain.all_finite(values)
    assert not plain.all_finite.reference(values)


@pytest.mark.parametrize(
    ("messages", "out", "error"),
    [
        (torch.zeros(2, 3), torch.zeros(4), ValueError),
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.bfloat16), TypeError),
        (torch.zeros(2, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64), TypeError),
        (torch.zeros(6), torch.zeros(6), ValueError),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_memory_is_touched(messages, out, error):
    with pytest.raises(error):
        plain.average(messages, out)
