"""Ops: each declared once, its body the PyTorch reference; C++ serves the CPU and Triton serves CUDA.

A folder has a family of ops:

    __init__.py     the ops, which are the specification
    ops.inc         their C++ kernels' signatures
    cpu.h, cpu*     these kernels, compiled once per instruction set
    bind.cpp        Python's door to them
    triton*.py      kernels for CUDA
    launch.py       the ops in these kernels

The dispatcher chooses the backend, so callers never branch on a device. Without the native extension
every op still works, through its reference, and `description` says so.
"""

import functools
import os
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch

native: Any
try:
    from laconic.kernels import _native as native  # type: ignore[attr-defined, no-redef]
except ImportError:  # a source tree that was not built
    native = None

if native is not None and "LACONIC_ISA" in os.environ:
    native.choose(os.environ["LACONIC_ISA"])


LIBRARY = torch.library.Library("laconic", "DEF")


def description() -> str:
    """What serves the ops on the CPU, and on CUDA where there is a device, for headers and `laconic doctor`."""
    parts = ["cpu: PyTorch reference (slower; the native extension is not installed)"]
    if native is not None:
        parts = [f"cpu: C++ {native.chosen()}"]
    if torch.cuda.is_available():
        parts.append(f"cuda: {cuda_description()}")
    return "; ".join(parts)


def cuda_description() -> str:
    """What serves the ops on CUDA."""
    if not _is_there("triton"):
        return "PyTorch reference (slower; Triton is not installed)"
    return f"Triton {version('triton')}, and the PyTorch reference for ops that it does not have"


def op(*mutates: str) -> Callable[[Callable[..., Any]], Any]:
    """Declares the op `laconic::<name>`; the decorated body stays reachable as its `reference`.

    Several tensors are a `typing.Sequence[torch.Tensor]`, as torch 2.6 reads no other word for them.

    `torch.library.Library` rather than `custom_op`: a call costs a few microseconds instead of a hundred, and
    the first one does not load torch's compiler.
    """

    def declare(function: Callable[..., Any]) -> Any:
        name = function.__name__
        LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=mutates))
        LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        if hasattr(native, name):
            LIBRARY.impl(name, getattr(native, name), "CPU")
        if _is_there("triton") and _is_there(f"{function.__module__}.launch"):
            LIBRARY.impl(name, _launched(function), "CUDA")
        declared: Any = getattr(torch.ops.laconic, name).default
        declared.reference = function
        return declared

    return declare


@functools.cache
def _is_there(module: str) -> bool:
    """Whether it can be imported; to look for it takes a quarter of a millisecond, and a family asks for each op."""
    return find_spec(module) is not None


def _launched(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The op in its family's launch.py, or the reference if it is not there.

    Triton is loaded by the first call, not by an import.
    """

    def run(*arguments: Any) -> Any:
        launch = import_module(f"{reference.__module__}.launch")
        return getattr(launch, reference.__name__, reference)(*arguments)

    return run
