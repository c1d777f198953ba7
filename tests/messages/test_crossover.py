import pytest
import torch

from laconic.messages.crossover import BLOCK, Coded, Modular


def _codec(blocks=3):
    own = torch.randn(blocks, BLOCK, generator=torch.Generator().manual_seed(0))
    return own, Modular.after(own, own + 0.01)


def test_a_message_says_what_it_was_made_of():
    own, codec = _codec()
    coded, _ = codec.encode(own)
    parsed = Coded.parse(coded.message())
    assert torch.equal(parsed.codes, coded.codes)
    assert torch.equal(parsed.quanta, coded.quanta)


@pytest.mark.parametrize("quantum", [0.0, -1.0, torch.nan, torch.inf, 3e38, 1e36])
def test_a_block_whose_quantum_cannot_be_is_left_with_the_range_it_had(quantum):
    own, codec = _codec()
    coded, sent = codec.encode(own.clone())
    coded.quanta[1], before = quantum, codec.apart.clone()
    change, readable = codec.decode(slice(None), sent, coded)
    assert readable.flatten().tolist() == [True, False, True]
    assert not change[1].any()
    assert codec.apart[1] == before[1]


@pytest.mark.parametrize("change", [lambda m: m[:-1], lambda m: torch.cat([m, m[:5]])])
def test_a_message_of_no_whole_blocks_is_refused(change):
    own, codec = _codec()
    coded, _ = codec.encode(own)
    with pytest.raises(ValueError, match="has no whole blocks"):
        Coded.parse(change(coded.message()))
