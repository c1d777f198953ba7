"""Triton's kernels on a CUDA device, and without one in Triton's interpreter.

The interpreter is chosen before Triton is loaded, so such tests have a process of their own where there is no device.
"""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
MARKS = [
    pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter's NumPy, of infinities
]
on_a_device = pytest.mark.skipif(
    DEVICE.type == "cpu" and not INTERPRETED, reason="runs in the interpreter's process"
)
without_a_device = pytest.mark.skipif(
    DEVICE.type == "cuda" or INTERPRETED, reason="the device runs the kernels themselves"
)


def interpret(file):
    """The file's tests pass in the interpreter."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout
