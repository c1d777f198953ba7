import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.numerics import minifloat
from laconic.numerics.minifloat import E4M3, E5M2, FORMATS, FP4, dequantize, quantize

ALL = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


def test_the_formats_have_the_authors_numbers_of_levels():
    assert {name: len(form.levels) for name, form in FORMATS.items()} == {"e5m2": 247, "e4m3": 239, "fp4": 11}
    assert FP4.levels.tolist() == [-3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3]
    assert (E5M2.magnitudes[1], E5M2.magnitudes[-1]) == (2**-16, 57344)
    assert (E4M3.magnitudes[1], E4M3.magnitudes[-1]) == (2**-12, 30)


@ALL
def test_levels_rise_and_mirror_each_other_about_one_zero(form):
    assert bool((form.levels.diff() > 0).all())
    assert torch.equal(form.levels, -form.levels.flip(0))
    assert form.levels.tolist() == [*(-level for level in form.magnitudes[:0:-1]), *form.magnitudes]


@ALL
def test_edges_are_exactly_halfway(form):
    levels = form.levels.double()
    assert torch.equal(form.edges.double(), (levels[1:] + levels[:-1]) / 2)


def test_the_levels_are_the_finite_numbers_of_the_hardwares_formats():
    patterns = torch.arange(256, dtype=torch.uint8)
    numbers = patterns.view(torch.float8_e5m2).float()
    assert torch.equal(numbers[numbers.isfinite()].unique(), E5M2.levels)
    inner = E4M3.levels.abs() < 16  # the hardware's e4m3 has bias 7, and goes on where ours ends
    numbers = patterns.view(torch.float8_e4m3fn).float() / 8
    assert torch.equal(numbers[numbers.abs() < 16].unique(), E4M3.levels[inner])


@ALL
def test_a_level_is_its_own_nearest(form):
    assert quantize(form.levels, form).tolist() == list(range(len(form.levels)))


@ALL
@settings(deadline=None)  # a busy machine is no failure
@given(values=st.lists(st.floats(width=32, allow_nan=False), max_size=50))
def test_no_level_is_nearer(form, values):
    values = torch.tensor(values, dtype=torch.float32)
    found = dequantize(quantize(values, form), form).double()
    finite = values.double().clamp(-1e6, 1e6)
    distances = (finite[:, None] - form.levels.double()).abs()
    assert torch.equal((finite - found).abs(), distances.amin(1))


@ALL
def test_in_the_middle_the_even_mantissa_wins_and_signs_do_not_matter(form):
    zero, below = len(form.levels) // 2, torch.arange(len(form.edges))
    found = quantize(form.edges, form)
    assert bool(((found == below) | (found == below + 1)).all())
    assert bool(((found - zero) % 2 == 0).all())
    assert torch.equal(quantize(-form.edges, form), 2 * zero - found)


@ALL
def test_a_hair_beside_the_middle_the_nearer_wins(form):
    below = torch.arange(len(form.edges))
    up, down = (form.edges.nextafter(torch.tensor(to)) for to in (torch.inf, -torch.inf))
    assert torch.equal(quantize(down, form), below)
    assert torch.equal(quantize(up, form), below + 1)


@pytest.mark.parametrize(
    ("form", "kind", "factor"), [(E5M2, torch.float8_e5m2, 1), (E4M3, torch.float8_e4m3fn, 8)]
)
def test_rounding_is_the_hardwares(form, kind, factor):
    generator = torch.Generator().manual_seed(0)
    values = form.magnitudes[-1] * 2 ** (-30 * torch.rand(20_000, generator=generator))
    values = torch.cat([values, values.bfloat16().float(), form.edges])
    assert torch.equal(dequantize(quantize(values, form), form), (values * factor).to(kind).float() / factor)


@ALL
def test_beyond_the_last_level_values_saturate(form):
    far = torch.tensor([-torch.inf, -3e38, 3e38, torch.inf])
    assert quantize(far, form).tolist() == [0, 0, len(form.edges), len(form.edges)]


@ALL
def test_shapes_are_kept_and_nothing_is_fine(form):
    assert quantize(torch.zeros(2, 3), form).tolist() == [[len(form.edges) // 2] * 3] * 2
    assert quantize(torch.zeros(0), form).tolist() == []
    assert quantize(torch.tensor([-0.0]), form).tolist() == [len(form.edges) // 2]


GOLDEN = [
    [0, 63, 70, 122, 123, 123, 124, 169, 175, 184, 188, 246],
    [0, 39, 53, 119, 119, 119, 119, 172, 183, 201, 209, 238],
    [0, 3, 4, 5, 5, 5, 5, 5, 5, 7, 9, 10],
]


def test_what_codes_mean_never_changes():
    values = torch.tensor([-1e9, -1.0, -0.3, -1e-5, 0.0, 2**-17, 2**-16, 0.1, 0.25, 1.25, 2.5, 1e9])
    assert [quantize(values, form).tolist() for form in FORMATS.values()] == GOLDEN


def test_formats_are_values():
    assert minifloat.Format(5, 2, 15) == E5M2
    assert hash(minifloat.Format(5, 2, 15)) == hash(E5M2)
