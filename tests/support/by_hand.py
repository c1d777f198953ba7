"""The exchange without processes: encode on each worker, combine each shard, decode."""

import torch

from laconic.core.memory import State
from laconic.core.technique import Surveyor, Turn

CPU = torch.device("cpu")


class Group:
    """Workers of one technique, each with its state."""

    def __init__(self, technique, workers):
        self.technique, self.workers, self.step = technique, workers, 0
        self.states = [State.of(technique, worker, workers) for worker in range(workers)]

    def reduce(self, bucket, gradients, damage=lambda messages: messages):
        """The result of one step; `damage` may change the messages, workers × shards, on their way."""
        result = torch.empty_like(gradients[0])
        self.turns = []
        for piece in self.technique.cut(bucket, self.workers):
            span = slice(piece.start, piece.stop)
            turns = [self._turn(piece, bucket, worker) for worker in range(self.workers)]
            parts = [grad[span] for grad in gradients]
            if isinstance(self.technique, Surveyor):
                surveys = [self.technique.survey(*pair) for pair in zip(turns, parts, strict=True)]
                for turn in turns:
                    turn.agreed = torch.stack(surveys).amax(0)
            messages = damage([list(self.technique.encode(*pair)) for pair in zip(turns, parts, strict=True)])
            if piece.gather is not None:
                replies = [message for (message,) in messages]
            else:
                shards = [[message[shard] for message in messages] for shard in range(self.workers)]
                replies = [
                    self.technique.combine(turn, self._joined(shard))
                    for turn, shard in zip(turns, shards, strict=True)
                ]
            self.technique.decode(turns[0], self._joined(replies), result[span])
            self.turns += turns
        for state in self.states:
            state.commit()
        self.step += 1
        return result

    def memory(self, worker, bucket):
        """What the worker has committed, flat, by kind."""
        return {kind: memory.old for kind, memory in self.states[worker].memory(bucket, CPU).items()}

    def _turn(self, piece, bucket, worker):
        state = self.states[worker]
        memory = state.part(state.memory(bucket, CPU), piece)
        return Turn(piece, self.step, worker, memory, tallies=state.tallies)

    def _joined(self, messages):
        return messages if self.technique.varies else torch.stack(messages)
