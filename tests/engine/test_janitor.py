"""What nobody has any more is closed, by a thread that nobody waits for."""

import gc
import os
import subprocess
import sys
import threading
import weakref

from laconic.engine.janitor import Janitor, janitor


class _Thing:
    """Part of a cycle, so that only the collection of garbage ends it."""

    def __init__(self, close):
        self.itself = self
        weakref.finalize(self, Janitor.close, janitor(os.getpid()), close)


def test_what_must_be_waited_for_is_closed_after_the_collection():
    collected, closed = threading.Event(), threading.Event()

    def close():
        assert collected.wait(5)
        closed.set()

    _Thing(close)
    gc.collect()
    collected.set()
    assert closed.wait(5)


def test_an_error_does_not_keep_later_things_open(capsys):
    closed = threading.Event()
    for close in (lambda: 1 / 0, closed.set):
        janitor(os.getpid()).close(close)
    assert closed.wait(5)
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_program_ends_when_all_is_closed_whatever_was_forgotten_last():
    program = """
import os, time, weakref
from laconic.engine.janitor import janitor

def close(name):
    time.sleep(0.2)
    print(name, "is closed", flush=True)

class Thing: pass
first, last = Thing(), Thing()
for thing, name in ((first, "first"), (last, "last")):
    weakref.finalize(thing, janitor(os.getpid()).close, lambda name=name: close(name))
del first
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == ["first is closed", "last is closed"]
    assert not ended.stderr
