import pytest

from laconic import kernels


def test_the_native_extension_is_built():
    assert kernels.native is not None, kernels.description()
    assert kernels.native.instruction_sets()


def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(ValueError, match="no instruction set called mmx"):
        kernels.native.choose("mmx")
