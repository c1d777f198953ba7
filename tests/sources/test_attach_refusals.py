"""What attach refuses, each with one sentence, before any step is taken."""

import warnings
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable import replicate
from torch.distributed._composable.replicate_with_fsdp import replicate as sharded_replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic import Dense
from tests.support.toys import network, parallel
from tests.support.workers import WorkerError, run


def _message(act):
    """What `act` raises, as `Type: message`."""
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def _refusals():
    model = parallel()
    laconic.attach(model, Dense())
    hooked = parallel()
    hooked.register_comm_hook(None, _some_hook)
    double = parallel(network(torch.float64))
    sparse = DistributedDataParallel(nn.Embedding(4, 4, sparse=True))
    return {
        "plain module": _message(lambda: laconic.attach(network(), Dense())),
        "second": _message(lambda: laconic.attach(model, Dense())),
        "hooked": _message(lambda: laconic.attach(hooked, Dense())),
        "double": _message(lambda: laconic.attach(double, Dense())),
        "sparse": _message(lambda: laconic.attach(sparse, Dense())),
        "class": _message(lambda: laconic.attach(parallel(), Dense)),
    }


def _some_hook(state, bucket):
    raise AssertionError("never called")


def test_bad_models_are_refused_with_a_sentence():
    (said,) = run(1, _refusals)
    assert said["plain module"].startswith("TypeError: Sequential is not a DistributedDataParallel model")
    assert "has Dense" in said["second"]
    assert "detach()" in said["second"]
    assert "already has the communication hook _some_hook" in said["hooked"]
    assert "parameter 0.weight is torch.float64" in said["double"]
    assert "sparse=False" in said["sparse"]
    assert "is not a technique" in said["class"]


def _wrapped():
    """A model of every kind that is wrapped in something else, by what refuses it."""
    mesh, linear = init_device_mesh("cpu", (dist.get_world_size(),)), partial(nn.Linear, 4, 4)
    part = DistributedDataParallel(nn.Sequential(linear(), linear()))
    fully_shard(part.module[1], mesh=mesh)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a single worker
        sharded = FullyShardedDataParallel(linear(), device_id=torch.device("cpu"))
    return {
        "FullyShardedDataParallel is sharded by FullyShardedDataParallel": sharded,
        "FSDPLinear is sharded by fully_shard()": fully_shard(linear(), mesh=mesh),
        "FSDPDistributedDataParallel is sharded by fully_shard()": fully_shard(
            DistributedDataParallel(linear()), mesh=mesh
        ),
        "module.1 is sharded by fully_shard()": part,
        "DDPLinear is exchanged by replicate()": replicate(linear()),
        "DDPDistributedDataParallel is exchanged by": replicate(DistributedDataParallel(linear())),
        "ReplicateLinear is exchanged by replicate(), whose hooks": sharded_replicate(linear(), mesh=mesh),
        "DataParallel is in DataParallel, one process": nn.DataParallel(linear()),
        "PipelineEngine is a DeepSpeed engine": _PipelineEngine(),
    }


class _Engine(nn.Module):
    """What a DeepSpeed engine looks like from outside."""


_Engine.__name__, _Engine.__module__ = "DeepSpeedEngine", "deepspeed.runtime.engine"
_PipelineEngine = type("PipelineEngine", (_Engine,), {"__module__": "deepspeed.runtime.pipe.engine"})


def _refused_wrappers():
    return {said: _message(partial(laconic.attach, model, Dense())) for said, model in _wrapped().items()}


def test_each_other_way_to_train_on_several_workers_has_a_sentence_of_its_own():
    (refusals,) = run(1, _refused_wrappers)
    for beginning, refusal in refusals.items():
        assert refusal.startswith(f"TypeError: {beginning}")
        assert "DistributedDataParallel(model)" in refusal
        assert "wrap it" not in refusal


def test_no_process_group_is_one_sentence():
    with pytest.raises(RuntimeError, match="init_process_group"):
        laconic.Hook(Dense())(None, _FakeBucket())


class _FakeBucket:
    def buffer(self):
        return torch.zeros(1)


def _python_reducer():
    torch._dynamo.config.optimize_ddp = "python_reducer"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = parallel()
    return _message(lambda: laconic.attach(model, Dense()))


def test_compiled_autograds_python_reducer_is_refused():
    (said,) = run(1, _python_reducer)
    assert "python_reducer" in said
    assert "ddp_optimizer" in said


def _different_techniques():
    laconic.attach(parallel(), Dense(dtype="bf16" if dist.get_rank() == 2 else "fp32"))


def test_workers_that_attached_different_techniques_learn_who_differs():
    with pytest.raises(
        WorkerError, match=r"worker 2 of 3 attached Dense\(dtype='bf16'.* where worker 0 attached"
    ):
        run(3, _different_techniques)


def _different_models():
    name = "other" if dist.get_rank() == 1 else "layer"
    model = DistributedDataParallel(nn.ModuleDict({name: nn.Linear(3, 3)}))
    return _message(lambda: laconic.attach(model, Dense()))


def test_workers_with_different_parameters_learn_who_differs():
    for said in run(2, _different_models):
        assert "worker 1 of 2 has other trained parameters" in said


def _only_one_measures():
    laconic.attach(parallel(), Dense(), measure_error=dist.get_rank() == 1)


def test_workers_that_measure_differently_learn_who_differs():
    with pytest.raises(WorkerError, match=r"worker 1 of 2 attached .* with measure_error"):
        run(2, _only_one_measures, seconds=30)


class _Innocent(nn.Module):
    def __init__(self):
        super().__init__()
        self.sparse = nn.Linear(2, 2)

    def forward(self, x):
        return self.sparse(x)


def _module_called_sparse():
    laconic.attach(DistributedDataParallel(_Innocent()), Dense()).detach()


def test_only_sparse_embeddings_are_refused():
    run(1, _module_called_sparse)


def _beyond_the_lane():
    return _message(lambda: laconic.attach(parallel(), laconic.THC(bits=8, lane=8)))


def test_what_a_technique_cannot_serve_is_said_when_attached():
    assert "beyond a lane of 8 bits" in run(2, _beyond_the_lane)[0]
