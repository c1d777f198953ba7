"""What is installed, which kernels run where, and what is missing, in one look."""

from __future__ import annotations

import importlib.util
import platform
import shutil
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

from laconic import kernels
from laconic.lab import datasets
from laconic.lab.links import Lab
from laconic.telemetry import installed_version

if TYPE_CHECKING:
    from collections.abc import Iterable


class Finding(NamedTuple):
    """One thing looked at: whether it is well, what was found, and what to do where it is not."""

    subject: str
    well: bool
    found: str
    remedy: str = ""


def examine() -> list[Finding]:
    """All findings, general ones first."""
    return [
        Finding("laconic", True, installed_version()),
        Finding("python", True, platform.python_version()),
        Finding("torch", True, torch.__version__),
        _kernels(),
        _cuda(),
        Finding(
            "gloo", dist.is_gloo_available(), _yes(dist.is_gloo_available()), "install a torch with gloo"
        ),
        Finding("nccl", True, _yes(dist.is_nccl_available())),
        _links(),
        _package("vl_convert", "report", "draws the report"),
        _package("sklearn", "report", "has the digits"),
        _package("tensorboard", "tensorboard", "writes scalars"),
        _fashion(),
        _browser(),
    ]


def text(findings: Iterable[Finding]) -> str:
    """One line a finding."""
    lines = []
    for subject, well, found, remedy in findings:
        advice = f"; {remedy}" if remedy and not well else ""
        lines.append(f"{'ok     ' if well else 'missing'}  {subject:<10} {found}{advice}")
    return "\n".join(lines)


def _kernels() -> Finding:
    found = kernels.description()
    if kernels.native is not None:
        found += f" (of {', '.join(kernels.native.instruction_sets())})"
    remedy = "reinstall with a C++ compiler"
    return Finding("kernels", kernels.native is not None, found, remedy)


def _cuda() -> Finding:
    if not torch.cuda.is_available():
        return Finding("cuda", True, "no device")
    found = f"{torch.cuda.get_device_name()}; {kernels.cuda_description()}"
    return Finding("cuda", importlib.util.find_spec("triton") is not None, found, "pip install triton")


def _links() -> Finding:
    with Lab([None, None]) as lab:
        return Finding("links", lab.isolated, lab.note or "network namespaces and shaping work")


def _package(name: str, extra: str, purpose: str) -> Finding:
    there = importlib.util.find_spec(name) is not None
    return Finding(name, there, f"{purpose}: {_yes(there)}", f"pip install 'laconic[{extra}]'")


def _fashion() -> Finding:
    try:
        images, _ = datasets.fashion(None)
    except (OSError, ValueError) as error:
        return Finding("fashion", False, str(error))
    return Finding("fashion", True, f"{len(images)} images to train on")


def _browser() -> Finding:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    return Finding("chromium", path is not None, path or "none", "only the report's own test needs it")


def _yes(there: bool) -> str:
    return "yes" if there else "no"
