"""Looking at a program's threads does no harm to it."""

import gc
import sys

import pytest

from laconic.engine.program import Program


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="such a Python collects no garbage there")
@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_while_all_threads_are_asked(monkeypatch, enabled):
    """A collection there takes the interpreter's lock along, and another thread that asks never gives up its own."""
    asked = []
    for name in ("_current_frames", "_current_exceptions"):
        real = getattr(sys, name)
        monkeypatch.setattr(sys, name, lambda real=real: (asked.append(gc.isenabled()), real())[1])
    if not enabled:
        gc.disable()
    try:
        program = Program()
        program.begin()
        assert program.failure() is None
        assert asked
        assert not any(asked)
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
