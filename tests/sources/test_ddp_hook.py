import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

import laconic
from laconic import DAD, EDAD, Crossover, Dense, RankDAD
from tests.support.toys import flat, parallel, train
from tests.support.workers import WorkerError, run


def _hooked(technique, state=None, steps=range(6)):
    model = parallel()
    hook = laconic.Hook(technique)
    if state is not None:
        hook.load_state_dict(state)
    model.register_comm_hook(None, hook)
    train(model, steps)
    return flat(model), hook.stats(), hook.state_dict()


def _attached(technique):
    model = parallel()
    laconic.attach(model, technique)
    train(model, range(6))
    return flat(model)


@pytest.mark.parametrize("technique", [Dense(), Dense(dtype="bf16", error_feedback=True)], ids=repr)
def test_a_hook_does_what_attach_does(technique):
    hooked, attached = run(2, _hooked, technique), run(2, _attached, technique)
    assert all(torch.equal(weights, other) for (weights, _, _), other in zip(hooked, attached, strict=True))
    assert all(stats.steps == 6 and stats.sent > 0 for _, stats, _ in hooked)


@pytest.mark.parametrize("technique", [DAD(), EDAD(), RankDAD(), Crossover()], ids=repr)
def test_what_needs_the_model_is_no_hook(technique):
    with pytest.raises(
        TypeError, match=r"needs the model, and a hook sees buckets alone; use laconic\.attach$"
    ):
        laconic.Hook(technique)


def _interrupted(technique, interrupted):
    """The weights after six steps; interrupted, the last three have a new model and a new hook."""
    weights, state = None, None
    for steps in (range(3), range(3, 6)) if interrupted else (range(6),):
        model, hook = parallel(), laconic.Hook(technique)
        if state is not None:
            nn.utils.vector_to_parameters(weights, model.parameters())
            hook.load_state_dict(state)
        model.register_comm_hook(None, hook)
        train(model, steps)
        weights, state = flat(model), hook.state_dict()
    return weights, state


def test_a_hook_resumes_where_its_state_was_taken():
    technique = Dense(dtype="bf16", error_feedback=True)
    straight, resumed = (run(2, _interrupted, technique, interrupted) for interrupted in (False, True))
    for (weights, state), (again, after) in zip(straight, resumed, strict=True):
        assert torch.equal(weights, again)
        assert state["step"] == after["step"] == 6
        assert any(value.any() for value in state["memory"]["residual"].values())


def _different():
    _hooked(Dense(dtype="bf16" if dist.get_rank() else "fp32"))


def test_hooks_compare_their_techniques_too():
    with pytest.raises(WorkerError, match=r"worker 1 of 2 attached Dense\(dtype='bf16'"):
        run(2, _different)


@pytest.mark.parametrize(("call", "said"), [("", True), ("hook.__class__._open = lambda *_: hook; ", False)])
def test_a_hook_that_is_never_called_says_so_when_the_program_ends(call, said):
    use = (
        "hook.reduce = lambda bucket: None; hook(None, types.SimpleNamespace(buffer=lambda: torch.zeros(1)))"
        if call
        else ""
    )
    program = f"import types, torch, laconic; hook = laconic.Hook(laconic.Dense()); {call}{use}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ("was never called" in ended.stderr) == said
