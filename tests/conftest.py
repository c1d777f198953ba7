"""Which tests may run side by side: those that use the machine as a whole, its links or its clock, do not."""

import itertools
import os

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = (
        "1"  # before torch is loaded: threads that outnumber cores wait for each other
    )

GROUPS = {
    # labs, jobs, and tests that wait for something to happen in time
    "alone": ("tests/lab/", "tests/engine/test_lane.py", "tests/benchmarks/test_ops.py", "tests/cli/"),
    # all on one stage, and mostly waiting
    "faults": ("tests/benchmarks/test_faults.py",),
}
"""Tests that go one behind the other, by where they are."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item, (group, places) in itertools.product(items, GROUPS.items()):
        if item.nodeid.startswith(places):
            item.add_marker(pytest.mark.xdist_group(group))
