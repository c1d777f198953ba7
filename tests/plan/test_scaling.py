"""What a worker pays as workers grow, from records and beyond them."""

import pytest
import torch

from laconic.plan import scaling
from laconic.plan.charges import Model
from tests.support.recorded import timed


def test_scaling_goes_through_what_is_known_and_on(tmp_path, monkeypatch):
    monkeypatch.setattr(scaling, "WORKERS", (2, 8, 16))
    alone = [timed(tmp_path / f"{n}.jsonl", n, "ddp", 0.1 * n, 0.05 * n, 10**7, "none") for n in (2, 4)]
    points = scaling.extended(alone, "100mbit", Model(3_761_034), torch.device("cpu"))
    assert [point.workers for point in points] == [2, 4, 8, 16]
    assert points[2].sent == pytest.approx(10**7 * (7 / 8) / (3 / 4))
    assert points[2].seconds < points[3].seconds
