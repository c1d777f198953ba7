import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.numerics import rng

SMALL = st.integers(0, 2**31)


@given(seed=SMALL, step=SMALL, where=SMALL)
def test_keys_depend_on_integers_alone_and_never_mix_purposes(seed, step, where):
    assert rng.shared(seed, step, where) == rng.shared(seed, step, where) < 2**32
    assert rng.shared(seed, step, where) != rng.own(seed, step, where)


def test_every_integer_changes_the_key():
    keys = {
        rng.own(*integers)
        for integers in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0, 1), (0, 0, 0, 2)]
    }
    assert len(keys) == 6


def test_a_stream_is_fixed_forever():
    """Other backends and saved runs rely on these words."""
    assert rng.words(5, 4).tolist() == [1548080446, 2816725947, 2492178918, 3931332538]
    assert (rng.shared(1, 2, 3), rng.own(1, 2, 3)) == (1649902184, 3652931244)


def test_torchs_generator_is_left_alone():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    rng.halves(rng.own(0, 0, 0), 1000)
    rng.signs(rng.shared(0, 0), 1000)
    assert torch.equal(before, torch.get_rng_state())


@given(start=st.integers(0, 500), count=st.integers(1, 500))
def test_any_part_of_a_stream_can_be_drawn_alone(start, count):
    for draw in (rng.words, rng.signs, rng.halves):
        assert torch.equal(draw(9, count, start), draw(9, 1000)[start : start + count])


def test_signs_are_fair_and_independent():
    count = 1 << 20
    signs = torch.stack([rng.signs(rng.shared(0, step), count) for step in range(8)]).float()
    bound = 5 * count**-0.5  # five standard deviations of a mean of fair signs
    assert signs.abs().min() == 1
    assert signs.mean(1).abs().max() < bound
    gram = signs @ signs.T / count
    assert (gram - torch.eye(8)).abs().max() < bound
    assert (signs[:, 1:] * signs[:, :-1]).mean(1).abs().max() < bound


def test_keys_and_starts_may_be_tensors_with_a_row_each():
    keys, starts = torch.tensor([5, 9, 2**32 - 1]), torch.tensor([0, 64, 16])
    for draw in (rng.words, rng.signs, rng.halves):
        rows = [draw(int(key), 16, int(start)) for key, start in zip(keys, starts, strict=True)]
        assert torch.equal(draw(keys, 16, starts), torch.stack(rows))


def test_branches_of_a_stream_are_streams_of_their_own():
    keys = rng.branch(rng.own(0, 0, 0), torch.arange(1 << 10))
    assert len(keys.unique()) == 1 << 10
    signs = rng.signs(keys, 1 << 10).float()
    gram = signs @ signs.T / (1 << 10)
    assert (gram - torch.eye(1 << 10)).abs().max() < 6 * 2**-5  # six standard deviations, of half a million


def test_halves_are_uniform_and_private_to_a_worker():
    count = 1 << 20
    draws = torch.stack([rng.halves(rng.own(0, 3, worker), count) for worker in range(4)]).double()
    draws = (draws + 0.5) / 2**16
    centered = (draws - 0.5) * 12**0.5
    gram = centered @ centered.T / count
    assert (gram - torch.eye(4)).abs().max() < 5 * count**-0.5
    counts = torch.histc(draws[0], 64, 0, 1)
    chi_squared = ((counts - count / 64) ** 2 / (count / 64)).sum()
    assert chi_squared < 63 + 5 * (2 * 63) ** 0.5
