"""No damage to a message goes unnoticed, and no message is taken for another."""

import itertools
import math

import numpy as np
import pytest
import torch

from laconic import DamagedMessage
from laconic.core.place import Label, Way
from laconic.core.technique import Bucket, Piece
from laconic.messages.seals import SEAL, blank, joined, opened, opened_size, sealed, sealed_size
from tests.fuzz import seals

LABEL = Label(step=7, about=1, most=1000)
KEY = LABEL.key(Way.COMBINING, 2, 3)


def _content(size, seed=0):
    return torch.randint(256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def _refused(message, key=KEY):
    try:
        opened([message], [key], [2])
    except DamagedMessage as error:
        return error.worker == 2
    return False


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000])
def test_what_was_sealed_is_opened(size):
    (message,) = sealed([_content(size)], [KEY])
    assert len(message) == size + SEAL
    (found,) = opened([message], [KEY], [2])
    assert torch.equal(found, _content(size))


def test_rows_are_sealed_each_by_itself():
    rows, keys = torch.stack([_content(40, seed) for seed in range(3)]), [1, 2, 3]
    messages = sealed(rows, keys)
    assert messages.shape == (3, 40 + SEAL)
    assert messages.is_contiguous()
    assert torch.equal(opened(messages, keys, range(3)), rows)
    messages[1, 5] ^= 1
    with pytest.raises(DamagedMessage, match=r"^the message of worker 1 is damaged: its seal is wrong$"):
        opened(messages, keys, range(3))


@pytest.mark.parametrize("shape", [(3, 40), (40,), (2, 1)])
def test_what_was_made_to_be_sealed_is_not_copied(shape):
    message = blank(torch.empty(0), *shape).copy_(_content(math.prod(shape)).view(shape))
    keys = [1, 2, 3][: len(message)] if len(shape) > 1 else [1]
    (whole,) = (sealed(message, keys),) if len(shape) > 1 else sealed([message], keys)
    assert whole.data_ptr() == message.data_ptr()
    assert whole.is_contiguous()
    (copied,) = (sealed(message + 0, keys),) if len(shape) > 1 else sealed([message + 0], keys)
    assert torch.equal(copied, whole)


def test_parts_of_a_message_lie_one_behind_the_other():
    parts = [torch.tensor([1.0, 2.0]), torch.empty(0), torch.tensor([[3], [4]], dtype=torch.bfloat16)]
    message = joined(parts)
    assert torch.equal(message[:8].view(torch.float32), parts[0])
    assert torch.equal(message[8:].view(torch.bfloat16), parts[2].flatten())
    assert sealed([message], [1])[0].data_ptr() == message.data_ptr()


def test_every_flipped_bit_is_noticed():
    (message,) = sealed([_content(40)], [KEY])
    for bit in range(8 * len(message)):
        changed = message.clone()
        changed[bit // 8] ^= 1 << bit % 8
        assert _refused(changed)


def test_the_same_bit_flipped_in_any_two_words_is_noticed():
    """A sum of words would not see the highest."""
    (message,) = sealed([_content(8 * 12)], [KEY])
    for first, second in itertools.combinations(range(12), 2):
        for byte, bit in ((7, 7), (0, 0), (3, 4)):
            changed = message.clone()
            changed[[8 * first + byte, 8 * second + byte]] ^= 1 << bit
            assert _refused(changed)


def test_two_words_that_changed_places_are_noticed():
    (message,) = sealed([_content(8 * 12)], [KEY])
    words = message.view(-1, 8)
    for first, second in itertools.combinations(range(12), 2):
        changed = words.clone()
        changed[[first, second]] = words[[second, first]]
        assert _refused(changed.flatten())


def test_what_is_cut_or_extended_is_noticed():
    (message,) = sealed([torch.zeros(40, dtype=torch.uint8)], [KEY])
    assert all(_refused(message[:size]) for size in range(len(message)))
    assert all(_refused(torch.cat([message, message.new_zeros(more)])) for more in range(1, 20))
    assert all(_refused(torch.cat([message.new_zeros(more), message])) for more in range(1, 20))


@pytest.mark.parametrize(
    "other",
    [
        LABEL._replace(step=8).key(Way.COMBINING, 2, 3),
        LABEL._replace(about=2).key(Way.COMBINING, 2, 3),
        LABEL.agreed(torch.tensor([1.0])).key(Way.COMBINING, 2, 3),
        LABEL.key(Way.REPLY, 2, 3),
        LABEL.key(Way.COMBINING, 1, 3),
        LABEL.key(Way.COMBINING, 2, 2),
    ],
    ids=["step", "piece", "agreement", "way", "worker", "shard"],
)
def test_a_message_about_something_else_is_noticed(other):
    (message,) = sealed([_content(100)], [other])
    assert _refused(message)
    assert not _refused(message, other)


def test_no_damaged_message_of_any_technique_is_taken_for_sound():
    """A hundred thousand in all; tests/fuzz/seals.py takes a million of each."""
    for found in seals.captured_by_both().values():
        everything = [message for messages in found.values() for message in messages]
        for messages in found.values():
            assert all(seals.accepted(np.frombuffer(each, np.uint8).copy(), key) for each, key in messages)
            assert len(seals.trial(messages, everything, 5000)) == len(seals.DAMAGES)


def test_pieces_have_numbers_of_their_own():
    buckets = [Bucket(names, (4, 4), torch.float32) for names in (("a", "b"), ("a", "c"), ("ab", ""))]
    pieces = [Piece(bucket, *span, 2, 4) for bucket in buckets for span in ((0, 8), (0, 4), (4, 8))]
    assert len({piece.number for piece in pieces}) == len(pieces)


def test_seals_look_random():
    """Of 2^16 values, messages that differ little have as many distinct ones as chance would have."""
    content = np.zeros((1 << 12, 64), dtype=np.uint8)
    content[:, :2] = np.arange(1 << 12, dtype=np.uint16)[:, None].view(np.uint8)
    seals = sealed(torch.from_numpy(content), [KEY] * len(content))[:, -SEAL:].numpy()
    expected = (1 << 16) * -np.expm1((1 << 12) * np.log1p(-1 / (1 << 16)))
    for half in range(4):
        distinct = len(np.unique(seals[:, 2 * half : 2 * half + 2].copy().view(np.uint16)))
        assert abs(distinct - expected) < 6 * expected**0.5 / 4  # about six standard deviations


def test_sizes_are_sealed_and_at_most_what_was_said():
    for size in (SEAL, 500, 1000 + SEAL):
        told = sealed_size(size, KEY)
        assert -(2**63) <= told < 2**63
        assert opened_size(told, KEY, LABEL.most, 2) == size
        for wrong in (told + 1, told - 8, -8, told | 1 << 31, told ^ 1 << 40, size, 1 << 31):
            with pytest.raises(
                DamagedMessage, match=r"^the message of worker 2 is damaged: the seal of its size"
            ):
                opened_size(wrong, KEY, LABEL.most, 2)
    with pytest.raises(
        DamagedMessage, match=r"^the message of worker 2 has 1001 bytes, where 1000 are the most$"
    ):
        opened_size(sealed_size(1001 + SEAL, KEY), KEY, LABEL.most, 2)
