import pytest

from laconic import kernels
from tests.fuzz import seeds
from tests.fuzz.decoders import DECODERS

MUTATIONS = 100_000
NATIVE = "coding", "sign_vote", "thc"


@pytest.mark.parametrize("name", sorted(DECODERS.keys() - {"sizes"}))
def test_damaged_messages_do_no_harm(name):
    """More of them: python -m tests.fuzz; in C++ under sanitizers: make fuzz."""
    if kernels.native is None and name in NATIVE:
        pytest.skip("needs the native extension")
    understood, refused = DECODERS[name](MUTATIONS)
    assert understood > MUTATIONS / 100
    assert refused > MUTATIONS / 100


def test_damaged_sizes_are_refused():
    """One of about 2^31 would not be."""
    assert DECODERS["sizes"](MUTATIONS) == (0, MUTATIONS)


def test_seeds_are_messages_as_they_are_made_today():
    """If a format has changed, python -m tests.fuzz.seeds writes them anew."""
    for target, made in seeds.made().items():
        kept = [path.read_bytes() for path in sorted((seeds.FOLDER / target).iterdir())]
        assert kept == made, target
