import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic import kernels
from laconic.kernels import packing
from laconic.numerics import bits as packed_bits

SETS = kernels.native.instruction_sets() if kernels.native else []
every_set = pytest.mark.parametrize("instruction_set", SETS)


@pytest.fixture
def chosen(instruction_set):
    before = kernels.native.chosen()
    kernels.native.choose(instruction_set)
    yield instruction_set
    kernels.native.choose(before)


def _symbols(count, bits, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 1 << bits, (count,), dtype=torch.uint8, generator=generator)


@every_set
@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("bits", range(1, 9))
def test_symbols_come_out_of_their_bits(bits):
    for count in (*range(40), 1000, 4099):
        symbols = _symbols(count, bits, count)
        packed = packed_bits.pack(symbols.long()[None], bits)[0]
        for op in (packing.unpack_symbols, packing.unpack_symbols.reference):
            found = torch.full((count,), 255, dtype=torch.uint8)
            op(packed, bits, found)
            assert torch.equal(found, symbols)


@pytest.mark.parametrize("instruction_set", SETS)
@settings(max_examples=40, deadline=None)
@given(count=st.integers(0, 3000), run=st.integers(1, 1100), bits=st.integers(1, 8))
def test_counting_equals_its_reference(instruction_set, count, run, bits):
    kernels.native.choose(instruction_set)
    symbols = _symbols(count, bits)
    ours, reference = torch.full((2, -(-count // run), 256), -1, dtype=torch.int32)
    packing.count_runs(symbols, run, ours)
    packing.count_runs.reference(symbols, run, reference)
    assert torch.equal(ours, reference)
    assert int(ours.sum()) == count


@pytest.mark.skipif(not SETS, reason="the native extension is not built")
@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: packing.unpack_symbols(torch.zeros(3, dtype=torch.uint8), 4, _symbols(7, 4)), "packed ones"),
        (
            lambda: packing.unpack_symbols(torch.zeros(30, dtype=torch.uint8), 9, _symbols(7, 4)),
            "1 to 8 bits",
        ),
        (lambda: packing.count_runs(_symbols(7, 4), 3, torch.zeros(2, 256, dtype=torch.int32)), "256 counts"),
        (lambda: packing.count_runs(_symbols(7, 4), 0, torch.zeros(2, 256, dtype=torch.int32)), "256 counts"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
