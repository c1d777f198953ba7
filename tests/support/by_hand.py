"""The exchange in one process, with one result: all workers must have the same."""

import torch

from laconic.core.technique import Setting
from laconic.engine.rehearsal import Rehearsal


class Group:
    """Workers of one technique, each with its memory."""

    def __init__(self, technique, workers, **setting):
        self.rehearsal = Rehearsal(technique, Setting(workers, **setting))
        self.scheme, self.memories = self.rehearsal.scheme, self.rehearsal.memories

    @property
    def step(self):
        return self.rehearsal.step

    @step.setter
    def step(self, step):
        self.rehearsal.step = step

    @property
    def turns(self):
        """Of all pieces and workers, in the last step."""
        return [load.turn for loads in self.rehearsal.loads for load in loads]

    @property
    def desks(self):
        """Of all pieces and shards, in the last step."""
        return [load.desk for loads in self.rehearsal.loads for load in loads]

    def reduce(self, bucket, gradients, damage=None):
        """The result of one step; `damage` may change the messages, workers × shards, before they are sealed."""
        self.rehearsal.place.damage = damage
        first, *others = self.rehearsal.reduce(bucket, gradients)
        assert all(torch.equal(first, other) or first.isnan().any() for other in others)
        return first

    def memory(self, worker, bucket):
        """What the worker has committed, flat, by slot."""
        return self.rehearsal.remembered(worker, bucket)
