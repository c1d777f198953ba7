"""How the native extension is configured; `make clang` builds it with the other compiler."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("cmake", "ninja")

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, TOOLS)), reason="needs CMake and Ninja outside of environments"
)


@pytest.fixture
def configure(tmp_path):
    """Runs CMake where there are no other programs, with these arguments."""
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))

    def run(*arguments, **environment):
        command = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(tmp_path / "build"), *arguments]
        kept = {name: value for name, value in os.environ.items() if name not in ("CXX", "CXXFLAGS")}
        environment = kept | {"PATH": str(tmp_path / "bin")} | environment
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    return run


def test_without_a_compiler_nothing_is_built_and_a_warning_says_so(configure):
    configured = configure()
    assert configured.returncode == 0, configured.stderr
    assert "No C++ compiler was found: ops will run in PyTorch" in configured.stderr


def test_a_compiler_that_was_named_must_be_there(configure):
    configured = configure("-DLACONIC_CXX=nosuch++", CXX="nosuch++")
    assert configured.returncode != 0
    assert "nosuch++" in configured.stderr
