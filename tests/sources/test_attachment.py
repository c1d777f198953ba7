import warnings

import pytest
import torch
import torch.distributed as dist

import laconic
from laconic import Dense
from laconic.core import slices
from tests.support.owners import OwnerRounds
from tests.support.toys import flat, network, parallel, train
from tests.support.workers import run

FEEDBACK = Dense(dtype="bf16", error_feedback=True)


def _state(technique=FEEDBACK):
    attachment = laconic.attach(model := parallel(), technique)
    train(model, range(2))
    return attachment.state_dict()


def _loading(technique, model, state):
    attachment = laconic.attach(parallel(model), technique)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            attachment.load_state_dict(state)
        except ValueError as error:
            return str(error)
    return [str(warning.message) for warning in caught], attachment.state_dict()


def test_a_checkpoint_of_another_technique_is_refused():
    (state,) = run(1, _state)
    (said,) = run(1, _loading, FEEDBACK, network(), {**state, "technique": "THC"})
    assert said == "this checkpoint is of THC, but Dense is attached"


def test_what_is_no_state_is_refused():
    (said,) = run(1, _loading, FEEDBACK, network(), {"step": 3})
    assert said == "this is no state of an attachment: it has no memory, technique, worker, workers"


def test_a_checkpoint_of_another_model_is_refused():
    (state,) = run(1, _state)
    (said,) = run(1, _loading, FEEDBACK, network(width=64), state)
    assert "load one of the same model" in said
    assert "values for" in said


def test_another_workers_residuals_are_dropped_with_a_warning():
    state, _ = run(2, _state)
    (mine, same), (warned, dropped) = run(2, _loading, FEEDBACK, network(), state)
    assert mine == []
    assert torch.equal(same["memory"]["residual"]["0.weight"], state["memory"]["residual"]["0.weight"])
    assert "worker 0 of 2 and this is worker 1 of 2" in warned[0]
    assert dropped["memory"] == {"residual": {}}
    assert dropped["step"] == state["step"] == 2


def test_a_change_of_world_size_drops_residuals_with_a_warning():
    state, _ = run(2, _state)
    ((warned, dropped),) = run(1, _loading, FEEDBACK, network(), state)
    assert "worker 0 of 2 and this is worker 0 of 1" in warned[0]
    assert dropped["memory"] == {"residual": {}}


def test_what_an_aggregator_keeps_is_saved_and_loaded_by_parameter():
    states = run(2, _state, OwnerRounds())
    sizes = {name: parameter.numel() for name, parameter in network().named_parameters()}
    for worker, state in enumerate(states):
        lost, steps = state["memory"]["lost"], state["memory"]["steps"]
        assert lost.keys() == sizes.keys()
        assert all(len(lost[name]) == slices.owned(name, sizes[name], worker, 2) for name in sizes)
        assert any(value.any() for value in lost.values())
        assert set(torch.cat(list(steps.values())).tolist()) == {2}  # kept when DDP rebuilt its buckets
    (warned, loaded), _ = run(2, _loading, OwnerRounds(), network(), states[0])
    kept = states[0]["memory"]["lost"]
    assert warned == []
    assert all(torch.equal(kept[name], loaded["memory"]["lost"][name]) for name in kept)


def test_what_another_aggregator_kept_is_dropped_with_a_warning():
    state, _ = run(2, _state, OwnerRounds())
    for workers in (1, 2, 3):
        warned, dropped = run(workers, _loading, OwnerRounds(), network(), state)[-1]
        assert "this checkpoint is of worker 0 of 2" in warned[0]
        assert dropped["memory"] == {"lost": {}, "steps": {}}


def test_an_aggregators_memory_of_another_model_is_refused():
    state, _ = run(2, _state, OwnerRounds())
    for said in run(2, _loading, OwnerRounds(), network(width=64), state):
        assert "load one of the same model" in said


def _interrupted(technique, interrupted):
    """The weights after six steps; interrupted, the last three have a new model and a new attachment."""
    model, attachment = None, None
    for steps in (range(3), range(3, 6)) if interrupted else (range(6),):
        state = attachment.state_dict() if attachment else None
        model = parallel(model.module if model else None)
        attachment = laconic.attach(model, technique)
        if state:
            attachment.load_state_dict(state)
        train(model, steps)
    return flat(model)


def test_a_resumed_aggregator_goes_on_as_if_nothing_had_happened():
    straight, resumed = (run(2, _interrupted, OwnerRounds(), interrupted) for interrupted in (False, True))
    assert all(torch.equal(one, other) for one, other in zip(straight, resumed, strict=True))


def test_a_state_dict_loads_with_weights_only(tmp_path):
    (state,) = run(1, _state)
    torch.save(state, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert loaded.keys() == state.keys()


def _listened():
    attachment = laconic.attach(model := parallel(), Dense())
    heard = []
    attachment.on_step(lambda step, stats: heard.append((step, stats)))
    train(model, range(3))
    return heard, attachment.stats()


def test_listeners_hear_of_every_step_what_it_added():
    for heard, total in run(2, _listened):
        assert [step for step, _ in heard] == [0, 1, 2]
        assert sum(stats.sent for _, stats in heard) == total.sent
        assert all(stats.steps == 1 for _, stats in heard)
        assert sum(stats.seconds["encode"] for _, stats in heard) == pytest.approx(total.seconds["encode"])
        assert set(total.seconds) == {"encode", "seal", "up", "combine", "down", "decode", "waiting"}


def _listener_that_fails():
    attachment = laconic.attach(model := parallel(), Dense())
    attachment.on_step(_broken)
    try:
        train(model, range(1))
    except RuntimeError as error:
        return str(error)
    return "nothing was raised"


def _broken(step, stats):
    raise OSError("the disk is full")


def test_a_listener_that_fails_is_heard_of():
    for worker, said in enumerate(run(2, _listener_that_fails)):
        assert f"worker {worker} of 2: OSError: the disk is full" in said


def _ended_early():
    attachment = laconic.attach(model := parallel(), Dense())
    train(model, range(1))
    dist.destroy_process_group()
    attachment.detach()


def test_detaching_after_torch_distributed_has_ended_is_harmless():
    run(2, _ended_early)
