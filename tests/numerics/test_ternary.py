import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.numerics import ternary


def _votes(vector):
    places = vector.nonzero().flatten()
    return (2 * places + (vector[places] < 0)).int()


def _vector(votes, numel):
    vector = torch.zeros(numel, dtype=torch.int64)
    vector[(votes >> 1).long()] = 1 - 2 * (votes & 1).long()
    return vector


def _random(numel, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    there = torch.rand(numel, generator=generator) < density
    return there * (1 - 2 * torch.randint(0, 2, (numel,), generator=generator))


def _entropy(density):
    if density in (0, 1):
        return 0.0
    return -density * math.log2(density) - (1 - density) * math.log2(1 - density)


@given(st.lists(st.sampled_from([-1, 0, 0, 0, 1]), max_size=200))
def test_any_vector_comes_back(values):
    vector = torch.tensor(values, dtype=torch.int64)
    message = ternary.pack(_votes(vector), len(vector))
    assert torch.equal(_vector(ternary.unpack(message, len(vector)), len(vector)), vector)


@pytest.mark.parametrize("density", [0, 1e-4, 0.01, 0.1, 0.3, 0.5, 0.62, 0.7, 0.9, 0.999, 1])
def test_every_density_comes_back_in_at_most_1_6_bits(density):
    vector = _random(20_011, density)
    message = ternary.pack(_votes(vector), len(vector))
    assert torch.equal(_vector(ternary.unpack(message, len(vector)), len(vector)), vector)
    assert len(message) <= ternary.room(len(vector)) == ternary.HEADER + math.ceil(1.6 * len(vector) / 8)


@pytest.mark.parametrize("numel", [100_000, 1_000_000])
@pytest.mark.parametrize("density", [0.1, 0.01, 0.001])
def test_a_message_is_within_3_percent_of_its_entropy(density, numel):
    generator = torch.Generator().manual_seed(1)
    keep = round(density * numel)
    places = torch.randperm(numel, generator=generator)[:keep].sort().values
    votes = (2 * places + torch.randint(0, 2, (keep,), generator=generator)).int()
    bound = numel * _entropy(density) + keep
    assert 8 * (len(ternary.pack(votes, numel)) - ternary.HEADER) <= 1.03 * bound


@pytest.mark.parametrize("density", [0.5, 0.75, 0.9, 1])
def test_a_dense_vector_costs_little_more_than_its_entropy_too(density):
    numel = 100_000
    vector = _random(numel, density)
    bound = numel * (_entropy(density) + density)
    assert 8 * len(ternary.pack(_votes(vector), numel)) <= 1.05 * bound + 8 * ternary.HEADER


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=50))
def test_the_parameter_gives_the_shortest_code(numbers):
    tensor = torch.tensor(numbers)
    lengths = [len(numbers) * b + int((tensor >> b).sum()) for b in range(16)]
    assert lengths.index(min(lengths)) == ternary.parameter(tensor)


def test_a_lost_vector_says_so_and_nothing_else():
    assert ternary.is_lost(ternary.lost())
    assert not ternary.is_lost(ternary.pack(torch.empty(0, dtype=torch.int32), 10))
    with pytest.raises(ValueError, match="is of no known form"):
        ternary.unpack(ternary.lost(), 10)


VOTES = torch.tensor([0, 7, 20, 81, 120], dtype=torch.int32)  # places 0, 3, 10, 40, 60


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda m: m[:3], "is cut short"),
        (lambda m: m[:6], "is cut short"),
        (lambda m: m[:-1], "is cut short"),
        (lambda m: torch.cat([m, m.new_tensor([1])]), "is longer than it says"),
        (lambda m: torch.cat([m, m.new_tensor([0])]), "is longer than it says"),
        (lambda m: torch.cat([m[:1], m.new_tensor([200, 0, 0, 0]), m[5:]]), "has a damaged header"),
        (lambda m: torch.cat([m.new_tensor([m[0] + 2]), m[1:]]), "(is cut short|place beyond)"),
    ],
)
def test_a_damaged_message_is_refused(damage, sentence):
    message = ternary.pack(VOTES, 64)
    assert torch.equal(ternary.unpack(message, 64), VOTES)
    with pytest.raises(ValueError, match=sentence):
        ternary.unpack(damage(message), 64)


def test_a_message_longer_than_any_sound_one_is_refused():
    message = torch.zeros(ternary.room(10) + 1, dtype=torch.uint8)
    with pytest.raises(ValueError, match="is longer than it says"):
        ternary.unpack(message, 10)


def test_places_beyond_the_vector_are_refused():
    with pytest.raises(ValueError, match="place beyond"):
        ternary.unpack(ternary.pack(VOTES, 64), 50)
    with pytest.raises(ValueError, match="place beyond"):
        ternary.unpack(torch.tensor([2 * ternary.FORM, 0, 0, 0, 0, 81], dtype=torch.uint8), 4)


@pytest.mark.parametrize(
    ("golden", "vector"),
    [
        ([3, 5, 0, 0, 0, 10, 144, 59, 71, 2], _vector(VOTES, 64).tolist()),
        ([0, 0, 0, 0, 0], [0, 0, 0]),
        ([32, 1, 0, 0, 0, 2, 0, 0, 4], [1, -1, 0, *[1] * 17]),
        ([64, 0, 0, 0, 0, 1 + 2 * 3 + 27, 2], [1, -1, 0, 1, 0, -1]),
    ],
)
def test_what_a_message_looks_like_never_changes(golden, vector):
    message = torch.tensor(golden, dtype=torch.uint8)
    assert _vector(ternary.unpack(message, len(vector)), len(vector)).tolist() == vector


@pytest.mark.parametrize("density", [0.02, 0.64, 0.95])
def test_each_form_is_used_where_it_is_cheapest(density):
    form = {0.02: ternary.VOTES, 0.64: ternary.TRITS, 0.95: ternary.REST}[density]
    message = ternary.pack(_votes(_random(10_000, density)), 10_000)
    assert int(message[0]) // ternary.FORM == form
