import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.numerics.bits import pack, unpack


@given(width=st.integers(1, 16), rows=st.integers(1, 3), count=st.integers(0, 70), seed=st.integers(0, 2**30))
def test_unpacking_undoes_packing_in_the_fewest_bytes(width, rows, count, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 2**width, (rows, count), generator=generator)
    packed = pack(values, width)
    assert packed.shape == (rows, -(-count * width // 8))
    assert torch.equal(unpack(packed, width, count), values)


def test_the_lowest_bits_come_first():
    assert pack(torch.tensor([[0x1, 0xA, 0xF]]), 4).tolist() == [[0xA1, 0x0F]]
    assert pack(torch.tensor([[0b101, 0b110, 0b011]]), 3).tolist() == [[0b11110101, 0]]
