"""State that the version before this one saved: a run goes on as it would have."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.support.earlier import TECHNIQUES, build, flat, train
from tests.support.workers import run

STATES = Path(__file__).parents[1] / "golden" / "states.pt"


def _goes_on(name):
    saved = torch.load(STATES, weights_only=True)[name][dist.get_rank()]
    model, optimizer, attachment = build(name)
    model.module.load_state_dict(saved["weights"])
    attachment.load_state_dict(saved["state"])
    train(model, optimizer, range(5, 8))
    return attachment.step, flat(model), saved["later"]


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_run_of_the_version_before_goes_on(name):
    for step, weights, later in run(2, _goes_on, name):
        assert step == 8
        assert torch.allclose(weights, later, rtol=1e-5, atol=1e-6)  # products may be added in another order
