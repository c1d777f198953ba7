import numpy as np
import pytest
import torch

from laconic.core.place import Capability, Shards
from laconic.core.technique import Bucket, Setting
from laconic.kernels import coding
from laconic.messages import coded_runs, normal_codes
from laconic.numerics.bits import unpack
from laconic.techniques.thc import THC
from tests.support.altered import Altered
from tests.support.by_hand import Group

NUMEL = 1 << 18
BUCKET = Bucket(("w",), (NUMEL,), torch.float32)


def _gradients(workers, numel=NUMEL, common=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(numel, generator=generator)
    own = torch.randn(workers, numel, generator=generator)
    return list(common**0.5 * shared + (1 - common) ** 0.5 * own)


def _bits(group, name):
    readings = [turn.readings[name] for turn in group.turns if name in turn.readings]
    return sum(r.amount for r in readings) / sum(r.of for r in readings)


def _entropy(values):
    counts = np.bincount(values)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


class _Watched:
    """A group without coding, and the entropies of its codes and sums, message by message."""

    def __init__(self, technique, workers):
        self.group, self.codes, self.sums = Group(technique, workers), [], []
        self._technique, self._workers = technique, workers

    def reduce(self, bucket, gradients):
        return self.group.reduce(bucket, gradients, damage=self._watch)

    def _watch(self, messages):
        grid, bits = self._technique.grid(self._workers), self._technique.bits
        rows = torch.stack([torch.stack(message) for message in messages])
        codes = unpack(rows.flatten(0, 1), bits, rows.shape[2] * 8 // bits)
        self.codes += [_entropy(row) for row in codes.numpy()]
        sums = torch.tensor(grid.table)[codes].view(len(messages), len(messages), -1).sum(0)
        self.sums += [_entropy(row) for row in sums.numpy()]
        return messages


@pytest.mark.parametrize("workers", range(1, 9))
@pytest.mark.parametrize("bits", range(2, 9))
def test_results_are_those_without_coding_bit_for_bit(bits, workers):
    plain, coded = (Group(THC(bits=bits, entropy=entropy), workers) for entropy in (False, True))
    for step, numel in enumerate((1, 7, 64, 1000, 30_000)):
        bucket = Bucket((f"w{step}",), (numel,), torch.float32)
        gradients = _gradients(workers, numel, seed=step)
        gradients[0] *= 3
        assert torch.equal(plain.reduce(bucket, gradients), coded.reduce(bucket, gradients))
        for worker in range(workers):
            ours, theirs = (group.memory(worker, bucket)["residual"] for group in (plain, coded))
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "options", [{"lane": 12}, {"uniform": True}, {"block": 32}, {"tail": 0.3}, {"tail": 1e-9}]
)
def test_options_change_nothing_about_that(options):
    bucket = Bucket(("a", "b", "c"), (4099, 13, 20_000), torch.float32)
    gradients = _gradients(3, bucket.numel)
    results = [
        Group(THC(entropy=entropy, **options), 3).reduce(bucket, gradients) for entropy in (False, True)
    ]
    assert torch.equal(*results)


@pytest.mark.parametrize("common", [0.0, 0.8])
@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_both_directions_are_within_2_percent_of_their_entropy(bits, workers, common):
    gradients = _gradients(workers, common=common)
    watched, coded = _Watched(THC(bits=bits), workers), Group(THC(bits=bits, entropy=True), workers)
    assert torch.equal(watched.reduce(BUCKET, gradients), coded.reduce(BUCKET, gradients))
    up, down = np.mean(watched.codes), np.mean(watched.sums)
    # a head, a model for 4096 coordinates and 4 bytes for 2048 or more are 0.02 bits
    assert up - 0.01 < _bits(coded, "bits up") < min(1.02 * up + 0.02, bits)
    assert down - 0.01 < _bits(coded, "bits down") < min(1.02 * down + 0.02, 8)


def test_codes_of_eight_bits_are_within_2_percent_of_their_entropy():
    gradients = _gradients(4)
    watched, coded = _Watched(THC(bits=8), 4), Group(THC(bits=8, entropy=True), 4)
    assert torch.equal(watched.reduce(BUCKET, gradients), coded.reduce(BUCKET, gradients))
    assert _bits(coded, "bits up") < 1.02 * np.mean(watched.codes) < 8
    assert 10 < _bits(coded, "bits down") < 10.01  # lanes of ten bits are not coded


def test_where_norms_differ_codes_are_shorter_than_the_entropy_of_all_together():
    """Every block has its own width."""
    generator = torch.Generator().manual_seed(5)
    sizes = torch.exp(torch.randn(4, NUMEL // 4096, generator=generator)).repeat_interleave(4096, 1)
    gradients = list(torch.stack(_gradients(4)) * sizes)
    watched, coded = _Watched(THC(), 4), Group(THC(entropy=True), 4)
    assert torch.equal(watched.reduce(BUCKET, gradients), coded.reduce(BUCKET, gradients))
    assert _bits(coded, "bits up") < 0.97 * np.mean(watched.codes)


def test_coordinates_of_no_block_are_not_sent():
    """Of eight coordinates the first of 8 shards has all; the others' messages have no symbols."""
    sizes = []
    bucket = Bucket(("w",), (8,), torch.float32)
    Group(THC(entropy=True), 8).reduce(
        bucket, _gradients(8, 8), damage=lambda m: sizes.extend(map(len, m[0])) or m
    )
    assert sizes[1:] == [coding.HEAD + 1] * 7


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_gradient_makes_its_block_non_finite(bad):
    gradients = _gradients(3, 5000)
    gradients[1][77] = bad
    result = Group(THC(entropy=True), 3).reduce(Bucket(("w",), (5000,), torch.float32), gradients)
    assert not result[:4096].isfinite().any()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda message: message[:-1], "the message of worker 1 ends within a word"),
        (lambda message: message[:4], "the message of worker 1 is cut short"),
        (lambda message: message[:0], "the message of worker 1 is cut short"),
        (lambda _: coding.lost(), "the message of worker 1 is of no known kind"),
    ],
)
def test_a_damaged_message_names_its_worker(damage, sentence):
    def change(messages):
        messages[1][2] = damage(messages[1][2].clone())
        return messages

    bucket = Bucket(("w",), (30_000,), torch.float32)
    with pytest.raises(ValueError, match=sentence):
        Group(THC(entropy=True), 3).reduce(bucket, _gradients(3, 30_000), damage=change)


class _Damaging:
    """Replies of worker 2 are damaged on their way."""

    def combine(self, desk, messages):
        reply = super().combine(desk, messages)
        return reply[:-1] if desk.shard == 2 else reply


@pytest.mark.parametrize("lane", [8, 11])
def test_a_damaged_reply_names_its_worker(lane):
    bucket = Bucket(("w",), (30_000,), torch.float32)
    with pytest.raises(ValueError, match=r"the message of worker 2 (is cut short|ends within a word)"):
        Group(Altered(THC(entropy=True, lane=lane), _Damaging), 3).reduce(bucket, _gradients(3, 30_000))


def test_a_plain_message_of_another_size_is_refused():
    bucket = Bucket(("w",), (24,), torch.float32)

    def swap(messages):
        messages[0][0] = messages[0][0][:-1]
        return messages

    with pytest.raises(ValueError, match="the message of worker 0 is cut short"):
        Group(THC(entropy=True), 3).reduce(bucket, _gradients(3, 24), damage=swap)


def test_a_code_that_there_is_not_is_refused():
    """An escape can say any symbol."""
    technique, bucket = THC(bits=2, entropy=True), Bucket(("w",), (30_000,), torch.float32)
    codes = torch.ones(30_000, dtype=torch.uint8)
    codes[5] = 7
    message = coded_runs.seal(normal_codes.of_codes(technique.grid(1).table), codes, codes)
    with pytest.raises(ValueError, match="the message of worker 0 has a code that there is not"):
        Group(technique, 1).reduce(bucket, _gradients(1, 30_000), damage=lambda _: [[message]])


def test_only_coded_messages_vary_and_no_switch_can_add_them():
    assert THC().bind(Setting(2)).routes == (Shards(vary=False),)
    assert THC(entropy=True).bind(Setting(2)).routes == (Shards(vary=True),)
    assert THC().needs & Capability.SUM
    assert not THC(entropy=True).needs & Capability.SUM


@pytest.mark.parametrize("value", [1, "yes", None])
def test_a_setting_that_is_no_flag_is_refused(value):
    with pytest.raises(TypeError, match=f"entropy is {value!r}; use True or False"):
        THC(entropy=value)
