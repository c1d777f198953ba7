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
        """The result of one step; `damage` may change the messages, workers × shards, on their way."""
        self.rehearsal.place.damage = _once(damage) if damage else None
        first, *others = self.rehearsal.reduce(bucket, gradients)
        assert all(torch.equal(first, other) or first.isnan().any() for other in others)
        return first

    def memory(self, worker, bucket):
        """What the worker has committed, flat, by slot."""
        return self.rehearsal.remembered(worker, bucket)


def _once(damage):
    """Every worker hears what has become of the messages of a piece, which becomes of them once."""
    heard = []

    def change(messages):
        if not heard or heard[-1][0] is not messages[0][0]:
            heard.append((messages[0][0], damage(messages)))
        return heard[-1][1]

    return change
