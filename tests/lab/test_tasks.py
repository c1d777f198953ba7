"""Tasks repeat themselves, leave the world as it was, and can be learned."""

import math
import pickle
import subprocess
import sys
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from laconic.lab import datasets, tasks
from laconic.lab.splits import Dirichlet, Labels

DIGITS = tasks.load("digits")
TEXT = tasks.load("text", size="small")
installed = pytest.mark.skipif(
    not datasets.DEBIAN_FASHION.exists(), reason="Debian's package dataset-fashion-mnist is not installed"
)
both = pytest.mark.parametrize("task", [DIGITS, TEXT], ids=lambda task: task.name)


def test_a_sample_has_a_row_for_each_position():
    assert tasks.rows("text", "small") == TEXT.train[torch.tensor([0])].inputs.shape[1]
    assert [tasks.rows(name) for name in tasks.NAMES] == [1, 1, 128]


def parameters(task, seed=0):
    return nn.utils.parameters_to_vector(task.model(seed).parameters())


def stream(task, count, **options):
    """The first batches of a worker, as two tensors."""
    chosen = {"worker": 1, "workers": 4, "batch": 8, "seed": 3, **options}
    batches = islice(task.batches(chosen.pop("worker"), chosen.pop("workers"), **chosen), count)
    return [torch.cat(parts) for parts in zip(*batches, strict=True)]


def equal(one, other):
    return all(map(torch.equal, one, other))


def test_importing_tasks_loads_no_data_library():
    code = "import sys, laconic.lab.tasks; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "size", "count"),
    [
        ("digits", "default", 17_226),
        ("digits", "wide", 2_241_546),
        pytest.param("fashion", "default", 3_761_034, marks=installed),
        pytest.param("fashion", "small", 53_898, marks=installed),
        ("text", "small", 237_184),
        ("text", "default", 3_323_648),
        ("text", "large", 10_893_568),
    ],
)
def test_models_have_the_documented_size(name, size, count):
    assert len(parameters(tasks.load(name, size=size))) == count


def test_the_smallest_size_is_known_by_the_task():
    assert [tasks.smallest(name) for name in tasks.NAMES] == ["default", "small", "small"]
    with pytest.raises(ValueError, match="unknown task 'digit', nearest to 'digits'"):
        tasks.smallest("digit")


@both
def test_parameters_depend_on_the_seed_alone(task):
    first = parameters(task, seed=1)
    torch.rand(7)
    assert torch.equal(parameters(task, seed=1), first)
    assert not torch.equal(parameters(task, seed=2), first)


@both
def test_the_global_generators_are_left_as_they_were(task):
    before = torch.get_rng_state()
    task.model(5)
    stream(task, 2)
    task.evaluate(task.model(5))
    assert torch.equal(torch.get_rng_state(), before)


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(0, 2**40), st.integers(0, 3), st.sampled_from([tasks.IID(), Labels(3), Dirichlet(5.0)]))
def test_the_same_seed_worker_and_split_give_the_same_batches(seed, worker, split):
    options = {"seed": seed, "worker": worker, "split": split}
    assert equal(stream(DIGITS, 3, **options), stream(DIGITS, 3, **options))


@both
@pytest.mark.parametrize("change", [{"seed": 4}, {"worker": 2}, {"workers": 5}], ids=str)
def test_another_seed_worker_or_number_of_workers_gives_other_batches(task, change):
    assert not equal(stream(task, 3), stream(task, 3, **change))


@settings(deadline=None)
@given(st.integers(1, 50))
def test_the_batch_size_does_not_change_the_order_of_samples(batch):
    whole = stream(DIGITS, 1, batch=1000)
    cut = stream(DIGITS, 1000 // batch, batch=batch)
    assert equal(cut, [part[: len(cut[0])] for part in whole])


def test_workers_together_see_every_sample_once_in_an_epoch():
    epoch = torch.cat([stream(DIGITS, 1, worker=worker, workers=3, batch=479)[0] for worker in range(3)])
    assert len(epoch.unique(dim=0)) == len(DIGITS.train) == 3 * 479


def test_each_time_round_has_the_same_samples_in_another_order():
    rounds = stream(DIGITS, 2, workers=3, batch=479)[0].split(479)
    assert not torch.equal(*rounds)
    assert torch.equal(*[once.unique(dim=0) for once in rounds])


def test_a_batch_larger_than_the_shard_wraps_around():
    inputs, _ = stream(DIGITS, 1, workers=1437, batch=5)
    assert inputs.shape == (5, 64)
    assert len(inputs.unique(dim=0)) == 1


def test_a_worker_draws_the_labels_of_its_split():
    _, labels = stream(DIGITS, 50, split=Labels(2))
    assert len(labels.unique()) == 2


def test_text_refuses_a_split_by_label():
    with pytest.raises(
        ValueError, match="task text has no labels for split labels:2 to divide by; use split iid"
    ):
        TEXT.batches(0, 4, batch=8, seed=0, split=Labels(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"worker": 4}, "worker 4 is not one of 4 workers; count workers from 0"),
        ({"worker": -1}, "worker -1 is not one of 4 workers"),
        ({"batch": 0}, "a batch of 0 samples trains nothing; use 1 or more"),
        ({"seed": -1}, "seed -1 is negative; use 0 or more"),
        ({"workers": 2000}, "1437 samples are too few for 2000 workers; use fewer workers"),
    ],
)
def test_batches_refuse_what_makes_no_sense_before_the_first_is_drawn(change, message):
    with pytest.raises(ValueError, match=message):
        stream(DIGITS, 0, **change)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digit", {}, "unknown task 'digit', nearest to 'digits'; choose from digits, fashion, text"),
        ("zzz", {}, "unknown task 'zzz', nearest to '[a-z]+'; choose from digits, fashion, text"),
        (
            "text",
            {"size": "smal"},
            "unknown text size 'smal', nearest to 'small'; choose from small, default, large",
        ),
        (
            "digits",
            {"size": "small"},
            "unknown digits size 'small', nearest to 'default'; choose from default, wide",
        ),
        (
            "digits",
            {"data": "/books"},
            "task digits has its own data and would not read /books; leave out --data",
        ),
    ],
)
def test_load_refuses_what_it_does_not_know(name, options, message):
    with pytest.raises(ValueError, match=message):
        tasks.load(name, **options)


@both
def test_evaluation_leaves_modes_and_gradients_as_found(task):
    model = nn.Sequential(task.model(0), nn.Dropout(1.0))
    model[0].train(False)
    values = task.evaluate(model)
    assert (model.training, model[0].training, model[1].training) == (True, False, True)
    assert values == task.evaluate(task.model(0))  # dropout was off
    assert all(parameter.grad is None for parameter in model.parameters())


@both
def test_evaluation_is_the_mean_over_all_held_out_samples(task):
    model = task.model(0)
    whole = task.held_out[torch.arange(len(task.held_out))]
    values = task.evaluate(model)
    # float32 means of at most 8192 losses near 5, in another order
    assert values["loss"] == pytest.approx(task.loss(model, whole).item(), rel=1e-5)
    if task.metric == "accuracy":
        assert values["accuracy"] == pytest.approx(
            (model(whole.inputs).argmax(1) == whole.targets).double().mean().item()
        )
    assert task.metric in values


def test_accuracy_should_rise_and_loss_should_fall():
    assert (DIGITS.metric, DIGITS.higher_is_better) == ("accuracy", True)
    assert (TEXT.metric, TEXT.higher_is_better) == ("loss", False)
    assert set(TEXT.evaluate(TEXT.model(0))) == {"loss"}


@both
def test_every_parameter_takes_part_in_training(task):
    model = task.model(0)
    task.loss(model, next(task.batches(0, 4, batch=8, seed=0))).backward()
    assert all(parameter.grad.any() for parameter in model.parameters())


@both
def test_a_task_survives_pickling(task):
    copy = pickle.loads(pickle.dumps(task))
    assert torch.equal(parameters(copy), parameters(task))
    assert equal(stream(copy, 1), stream(task, 1))


def test_an_answer_depends_on_earlier_bytes_only():
    model = TEXT.model(0)
    text = torch.randint(256, (1, 64), generator=torch.Generator().manual_seed(0))
    other = text.clone()
    other[0, 40] ^= 1
    changed = (model(text) != model(other)).any(-1)[0]
    assert not changed[:40].any()
    assert changed[40:].all()


def test_the_same_byte_is_told_apart_by_its_place_from_the_start():
    answers = TEXT.model(0)(torch.full((1, 64), 32))[0]
    assert torch.cdist(answers, answers).fill_diagonal_(1).min() > 0.01


def train(task, steps, optimizer, model):
    """The held-out values after training as four workers would, their batches together."""
    streams = [task.batches(worker, 4, batch=task.defaults.batch, seed=0) for worker in range(4)]
    for _ in range(steps):
        loss = task.loss(model, tasks.Batch(*map(torch.cat, zip(*map(next, streams), strict=True))))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return task.evaluate(model)


def test_digits_are_learned_in_150_steps_of_plain_sgd():
    model = DIGITS.model(0)
    assert DIGITS.evaluate(model)["accuracy"] < 0.3
    assert train(DIGITS, 150, torch.optim.SGD(model.parameters(), lr=0.2), model)["accuracy"] > 0.9


def test_text_is_learned_well_below_the_loss_of_guessing():
    model = TEXT.model(0)
    assert TEXT.evaluate(model)["loss"] == pytest.approx(math.log(256), rel=0.1)
    # byte frequencies alone give 3.1 nats: the model must use what came before
    assert train(TEXT, 50, torch.optim.Adam(model.parameters(), lr=3e-3), model)["loss"] < 2.9


@installed
def test_fashion_starts_to_learn_within_a_few_steps():
    task = tasks.load("fashion")
    model = task.model(0)
    before = task.loss(model, first := next(task.batches(0, 4, batch=32, seed=0)))
    optimizer = torch.optim.SGD(model.parameters(), lr=task.defaults.lr, momentum=task.defaults.momentum)
    for _ in range(10):
        optimizer.zero_grad()
        task.loss(model, first).backward()
        optimizer.step()
    assert task.loss(model, first) < 0.8 * before
