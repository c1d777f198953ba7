"""GenNorm's Triton kernels give the reference's bits: on a CUDA device, and without one in Triton's interpreter.

In the interpreter programs are made small, so that small work has many of them. The reference runs on the CPU.
"""

import pytest
import torch

from laconic.kernels import coding
from laconic.kernels import gennorm as ops
from laconic.numerics import ans
from laconic.numerics.minifloat import FORMATS
from tests.support.interpreted import DEVICE, INTERPRETED, MARKS, interpret, on_a_device, without_a_device

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SMALL = {"TILE": 256, "READ_TILE": 256, "BLOCKS": 4, "SUMS": 2}
SIZES = (
    (600, 0, 1, 37, 256, 5, 64, 1_000) if INTERPRETED else (300_000, 0, 1, 37, 65_536, 5, 64, 65_535, 9_000)
)
"""Of parts, between which there are gaps, so that starts are at any place."""
SCALES = (3.0, 1.0, 0.0, 3.0, 1e6, 0.0, 2.0**-126, 2.0**126, 0.011)
OFFSET = 20

pytestmark = MARKS


@without_a_device
@pytest.mark.timeout(450)
def test_the_interpreter_gives_the_references_bits():
    interpret(__file__)


@pytest.fixture
def kernels(monkeypatch):
    from laconic.kernels.gennorm import launch

    for name, value in SMALL.items() if INTERPRETED else ():
        monkeypatch.setattr(launch, name, value)
    return launch


def _random(numel, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(numel, generator=generator) * torch.rand(numel, generator=generator) ** 3).to(dtype)


def _parts(sizes, gap=3):
    starts = [gap + sum(sizes[:k]) + gap * k for k in range(len(sizes))]
    return torch.tensor(list(zip(starts, sizes, strict=True)), dtype=torch.int64).reshape(-1, 2)


def _numel(parts):
    return int(parts.sum(1).max()) + 5


def _pairs(scales):
    scales = torch.tensor(scales, dtype=torch.float32)
    return torch.stack([scales, torch.where(scales > 0, 1 / scales, 0)], dim=1)


def _on(device, value):
    return value if value is None else value.to(device)


def _moments(op, device, grad, old, memory, parts):
    moments = torch.full((len(parts), 2), 7.0, dtype=torch.float64)
    op(_on(device, grad), _on(device, old), memory, parts, moments)
    return moments


def _check_moments(kernels, grad, old, memory, parts):
    inputs = grad, old, memory, parts
    ours = _moments(kernels.gennorm_moments, DEVICE, *inputs)
    theirs = _moments(ops.gennorm_moments.reference, "cpu", *inputs)
    # Exact terms, all positive, whose n - 1 sums are each right to 2^-53, in whatever order.
    assert ((ours - theirs).abs() <= 2 * parts[:, 1:] * 2**-53 * theirs).all()
    assert torch.equal(ours, _moments(kernels.gennorm_moments, DEVICE, *inputs))


def _quantized(op, device, grad, old, memory, parts, scales, name):
    new = torch.full((len(grad),), 7.0, device=device) if old is not None else None
    symbols = torch.full((int(parts[:, 1].sum()),), 99, dtype=torch.uint8)
    counts = torch.full((len(parts), 256), -1, dtype=torch.int32)
    finite = op(_on(device, grad), _on(device, old), memory, parts, scales, name, new, symbols, counts)
    return finite, symbols, counts, None if new is None else new.cpu()


def _check_levels(kernels, grad, old, memory, parts, scales, name):
    inputs = grad, old, memory, parts, scales, name
    finite, symbols, counts, new = _quantized(kernels.gennorm_quantize, DEVICE, *inputs)
    theirs = _quantized(ops.gennorm_quantize.reference, "cpu", *inputs)
    assert finite
    assert theirs[0]
    assert torch.equal(symbols, theirs[1])
    assert torch.equal(counts, theirs[2])
    assert new is None or torch.equal(new.view(torch.int32), theirs[3].view(torch.int32))
    return symbols, counts, new


@on_a_device
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("memory", [0.7, None])
def test_moments_are_the_references_and_always_the_same(kernels, dtype, memory):
    parts = _parts(SIZES)
    old = None if memory is None else _random(_numel(parts), 1)
    _check_moments(kernels, _random(_numel(parts), dtype=dtype), old, memory or 0.0, parts)


@on_a_device
@pytest.mark.parametrize("value", [3e38, 1e-45, -0.0, torch.inf, torch.nan])
def test_moments_of_extremes(kernels, value):
    inputs = torch.full((20,), -value), None, 0.0, torch.tensor([[1, 16]])
    moments = _moments(kernels.gennorm_moments, DEVICE, *inputs)
    exact = float(torch.tensor(value))
    assert moments[0].tolist() == pytest.approx([16 * abs(exact), 16 * exact * exact], rel=0, nan_ok=True)


@on_a_device
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_levels_counts_and_residuals_are_the_references(kernels, name, dtype):
    parts = _parts(SIZES)
    grad, old = _random(_numel(parts), dtype=dtype), _random(_numel(parts), 1)
    scales = _pairs(SCALES[: len(SIZES)])
    _, _, new = _check_levels(kernels, grad, old, 0.7, parts, scales, name)
    outside = torch.ones(len(new), dtype=torch.bool)
    for start, numel in parts.tolist():
        outside[start : start + numel] = False
    assert (new[outside] == 7).all()


@on_a_device
@pytest.mark.parametrize("name", FORMATS)
def test_values_on_edges_go_to_even_levels_and_large_ones_saturate(kernels, name):
    form = FORMATS[name]
    near, far = torch.cat([form.levels, form.edges]), torch.tensor(torch.inf)
    more = [0.0, -0.0, 1e-45, -1e-45, 1e-38, 3e38, -3e38, form.magnitudes[-1] * 1.5]
    values = torch.cat([near, near.nextafter(far), near.nextafter(-far), torch.tensor(more)])
    parts, zeros = torch.tensor([[1, len(values) - 1]]), torch.zeros_like(values)
    symbols, _, _ = _check_levels(kernels, values, zeros, 0.0, parts, _pairs([1.0]), name)
    assert torch.equal(form.levels[symbols[: len(form.levels) - 1].long()], form.levels[1:])
    _check_levels(kernels, values, -0.5 * values, 1.0, parts, _pairs([0.37]), name)
    _check_levels(kernels, values, None, 0.0, parts, _pairs([2.0**120]), name)


@on_a_device
@pytest.mark.parametrize("numel", [ops.SAMPLED - 1, ops.SAMPLED + 77])
def test_of_large_parts_the_references_eighth_is_counted(kernels, numel, monkeypatch):
    for name in ("TILE", "BLOCKS") if INTERPRETED else ():
        monkeypatch.setattr(kernels, name, 64 * SMALL[name])
    parts = torch.tensor([[3, numel]])
    _, counts, _ = _check_levels(kernels, _random(numel + 3), None, 0.0, parts, _pairs([0.01]), "e5m2")
    assert counts.sum() == numel if numel < ops.SAMPLED else 0.12 < counts.sum() / numel < 0.13


@on_a_device
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_told_if_it_is_of_a_part(kernels, bad):
    parts, scales = torch.tensor([[1, 300], [301, 30], [335, 17]]), _pairs([1.0, 0.0, 1.0])
    for place in (0, 1, 255, 300, 330, 333, 351):
        grad = torch.zeros(360)
        grad[place] = bad
        told = _quantized(kernels.gennorm_quantize, DEVICE, grad, None, 0.0, parts, scales, "fp4")
        assert told[0] == (place in (0, 333))


@on_a_device
def test_a_sum_that_is_not_finite_is_told(kernels):
    inputs = torch.full((40,), 3e38), torch.full((40,), 3e38), 1.0, torch.tensor([[0, 40]]), _pairs([1.0])
    assert not _quantized(kernels.gennorm_quantize, DEVICE, *inputs, "fp4")[0]


@on_a_device
def test_no_parts_and_only_silent_ones(kernels):
    none = torch.empty(0, 2, dtype=torch.int64)
    assert _moments(kernels.gennorm_moments, DEVICE, torch.ones(5), None, 0.0, none).shape == (0, 2)
    _check_levels(kernels, torch.ones(5), torch.ones(5), 0.5, none, torch.empty(0, 2), "fp4")
    parts = torch.tensor([[0, 50], [51, 49]])
    _check_levels(kernels, _random(100), _random(100, 1), 0.5, parts, _pairs([0.0, 0.0]), "fp4")


@on_a_device
def test_parts_outside_of_a_gradient_are_refused(kernels):
    for row in ([5, 6], [11, 0]):
        with pytest.raises(ValueError, match="outside its gradient"):
            _moments(kernels.gennorm_moments, DEVICE, torch.ones(10), None, 0.0, torch.tensor([row]))


def _message(parts, form, seed, mute=4):
    """A message about all parts but each `mute`th, in one book: its bytes, parts and inverse scales."""
    numbers = torch.arange(len(parts))
    book = torch.where((numbers + seed) % mute == mute - 1, -1, 0)
    rows = torch.stack([parts[book == 0, 1], 0 * numbers[book == 0]], 1)
    symbols = _random(int(rows[:, 0].sum()), seed).mul(40).add(len(form.levels) // 2).round()
    symbols = symbols.clamp(0, len(form.levels) - 1).to(torch.uint8)
    message = torch.zeros(coding.room(OFFSET, len(symbols), ops.width(form)), dtype=torch.uint8)
    size = coding.seal(symbols, rows, _books(form), ops.width(form), OFFSET, message)
    inverses = torch.where(book == 0, 0.1 + 0.3 * numbers + seed, 0.0).float()
    return message[:size], torch.cat([parts, book[:, None]], 1), inverses


def _books(form):
    return ans.book(ans.model([100] * len(form.levels), ans.proportional))[None]


def _averaged(op, device, told, name, dtype):
    messages, parts, inverses = zip(*told, strict=True)
    out = torch.full((_numel(parts[0][:, :2]),), 7.0, dtype=dtype, device=device)
    op(list(messages), OFFSET, torch.stack(parts), torch.stack(inverses), _books(FORMATS[name]), name, out)
    return out.cpu()


@on_a_device
@pytest.mark.parametrize(("name", "dtype"), [*zip(FORMATS, DTYPES, strict=True)], ids=str)
@pytest.mark.parametrize("workers", [1, 3])
def test_means_are_the_references(kernels, name, dtype, workers):
    told = [_message(_parts(SIZES), FORMATS[name], seed) for seed in range(workers)]
    ours = _averaged(kernels.gennorm_average, DEVICE, told, name, dtype)
    theirs = _averaged(ops.gennorm_average.reference, "cpu", told, name, dtype)
    if INTERPRETED and dtype == torch.bfloat16:  # the interpreter drops the bits that a device rounds
        assert torch.allclose(ours, theirs, rtol=2**-7)
    else:
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


@on_a_device
def test_workers_that_are_all_silent_say_zero(kernels):
    told = [_message(torch.tensor([[2, 30], [32, 0]]), FORMATS["e5m2"], 0, mute=1)] * 2
    mean = _averaged(kernels.gennorm_average, DEVICE, told, "e5m2", torch.float32)
    assert mean.tolist() == [7.0] * 2 + [0.0] * 30 + [7.0] * 5


@on_a_device
@pytest.mark.parametrize(
    "damage", ["is cut short", "is longer than it says", "has a symbol that there is not"]
)
def test_the_error_says_whose_message_is_damaged(kernels, damage):
    name, parts = "fp4", torch.tensor([[0, 300]])
    told = [_message(parts, FORMATS[name], seed) for seed in range(2)]
    message = told[1][0]
    raw = torch.zeros(OFFSET + 150, dtype=torch.uint8)
    raw[0], raw[OFFSET + 20] = coding.RAW, 11
    damaged = {"cut": message[:-2], "longer": torch.cat([message, message[:2]]), "symbol": raw}
    told[1] = (next(damaged[word] for word in damage.split() if word in damaged), *told[1][1:])
    for op, device in ((kernels.gennorm_average, DEVICE), (ops.gennorm_average.reference, "cpu")):
        with pytest.raises(ValueError, match=f"^the message of worker 1 {damage}$"):
            _averaged(op, device, told, name, torch.float32)
