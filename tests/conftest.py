"""Which tests may run side by side: those that use the machine as a whole, its links or its clock, do not."""

import os

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = (
        "1"  # before torch is loaded: threads that outnumber cores wait for each other
    )

ALONE = ("tests/lab/", "tests/engine/test_lane.py", "tests/benchmarks/test_ops.py", "tests/cli/")
"""Labs, jobs, and tests that wait for something to happen in time: one behind the other."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(ALONE):
            item.add_marker(pytest.mark.xdist_group("alone"))
