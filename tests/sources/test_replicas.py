"""The mean of all workers' models, and what becomes of it when it is damaged on its way."""

from unittest import mock

import pytest
import torch
import torch.distributed as dist

import laconic
from tests.support.gossiping import gossiper, take_step
from tests.support.workers import WorkerError, run


def _parted():
    model, optimizer, attachment = gossiper(laconic.Crossover(segments=2), lr=0.1)
    take_step(model, optimizer, 0)
    return (model, optimizer), attachment


def _averaged():
    (model, _), attachment = _parted()
    own = list(model.parameters())
    average = attachment.average()
    everybodys = [[torch.empty_like(value) for _ in range(3)] for value in own]
    for value, theirs in zip(own, everybodys, strict=True):
        dist.all_gather(theirs, value.detach())
    for value, theirs in zip(average.parameters(), everybodys, strict=True):
        assert torch.equal(value, torch.stack(theirs).double().mean(0).float())


def test_the_average_is_the_mean_of_all():
    run(3, _averaged)


def _damaged(collective):
    _model, attachment = _parted()
    real = getattr(dist, collective)

    def damaged(arrived, *arguments, **options):
        real(arrived, *arguments, **options)
        if dist.get_rank() == 2:
            row = arrived[1]
            row[5] ^= 1

    with mock.patch.object(dist, collective, damaged):
        attachment.average()


@pytest.mark.parametrize("collective", ["all_to_all_single", "all_gather"])
def test_a_bit_that_changed_on_the_way_is_noticed(collective):
    with pytest.raises(WorkerError, match="the message of worker 1 is damaged"):
        run(3, _damaged, collective)
