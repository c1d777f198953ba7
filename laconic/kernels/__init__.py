"""Ops: each declared once, its body the PyTorch reference; C++ serves the CPU and Triton serves CUDA.

The dispatcher chooses the backend, so callers never branch on a device. Without the native extension
every op still works, through its reference, and `description` says so.
"""

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
    if find_spec("triton") is None:
        return "PyTorch reference (slower; Triton is not installed)"
    return f"Triton {version('triton')}, and the PyTorch reference for ops that it does not have"


def op(*mutates: str) -> Callable[[Callable[..., Any]], Any]:
    """Declares the op `laconic::<name>`; the decorated body stays reachable as its `reference`.

    `torch.library.Library` rather than `custom_op`: a call costs a few microseconds instead of a hundred, and
    the first one does not load torch's compiler.
    """

    def declare(function: Callable[..., Any]) -> Any:
        name = function.__name__
        LIBRARY.define(name + torch.library.infer_schema(function, mutates_args=mutates))
        LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        if hasattr(native, name):
            LIBRARY.impl(name, getattr(native, name), "CPU")
        if find_spec("triton") is not None:
            LIBRARY.impl(name, _on_gpu(function), "CUDA")
        declared: Any = getattr(torch.ops.laconic, name).default
        declared.reference = function
        return declared

    return declare


def _on_gpu(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The op's Triton version where there is one; Triton is loaded by the first call, not by an import."""

    def run(*arguments: Any) -> Any:
        gpu = import_module("laconic.kernels.gpu")
        return getattr(gpu, reference.__name__, reference)(*arguments)

    return run


@op("out")
def average(messages: torch.Tensor, out: torch.Tensor) -> None:
    """`out` is the mean of the rows of `messages`, added in row order in fp32."""
    total = messages[0].float()
    for message in messages[1:]:
        total = total + message.float()
    out.copy_(total / len(messages))


@op("out")
def product(deltas: torch.Tensor, inputs: torch.Tensor, out: torch.Tensor) -> None:
    """`out` is deltasᵀ · inputs, of fp32; the kernel adds rows in order, whatever the instruction set."""
    torch.mm(deltas.T, inputs, out=out)


@op()
def all_finite(values: torch.Tensor) -> bool:
    """Whether no value is an infinity or a NaN."""
    # Both ends are not a number if any value is; one pass, where isfinite().all() takes twenty times as long.
    return not values.numel() or bool(torch.stack(torch.aminmax(values)).isfinite().all())
