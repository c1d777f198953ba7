from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import get_origin, get_type_hints

import pytest
import torch

from laconic import kernels
from laconic.kernels import coding, gennorm, packing, plain, sign_vote, thc


def test_the_native_extension_is_built():
    assert kernels.native is not None, kernels.description()
    assert kernels.native.instruction_sets()


def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(ValueError, match="no instruction set called mmx"):
        kernels.native.choose("mmx")


FAMILIES = [thc, sign_vote, gennorm, coding, packing, plain]


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_a_family_with_a_launch_serves_cuda_with_it(family):
    launched = find_spec(f"{family.__name__}.launch") is not None
    launch = import_module(f"{family.__name__}.launch") if launched else None
    assert _ops(family)
    for op in _ops(family):
        name = op.reference.__name__
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"laconic::{name}", "CUDA") == launched
        assert not launched or signature(getattr(launch, name)) == signature(op.reference)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_ops_are_declared_in_words_that_the_oldest_torch_reads(family):
    for op in _ops(family):
        assert list not in map(get_origin, get_type_hints(op.reference).values())


def _ops(family):
    return [op for op in vars(family).values() if isinstance(op, torch._ops.OpOverload)]


def test_every_kernel_in_c_serves_an_op():
    doors = set(dir(kernels.native)) - {"instruction_sets", "chosen", "choose"}
    names = {name for name in doors if not name.startswith("__")}
    assert names
    for name in names:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"laconic::{name}", "CPU")
