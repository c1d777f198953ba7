"""What a technique says about a parameter, and how long its kernels take for it: its own code, on a sample.

The sample is two tensors of about a million numbers each, which lie like a gradient's. A few workers encode it; one
of them combines its shard, with a message from every worker, and decodes. Where there are more workers than encode,
the other messages are those about other shards, as long and as independent. Bytes are those that `Peers` transfers.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from laconic.core.memory import State
from laconic.core.slices import ALIGN, CHUNK, SMALL
from laconic.core.technique import Bucket, Messages, Piece, Settler, Surveyor, Technique, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BETA = 0.7
"""The shape of the sample's generalized normal: 2 is the normal, 1 Laplace's, gradients are mostly below."""
ENCODERS = 4
TENSORS = 2
ROUNDS = 4
"""Steps that are taken; the first ones fill residuals and caches, and each phase's best time counts."""
MOST_WORKERS = CHUNK // SMALL
"""Beyond them the sample would not be cut."""
SIZE_BYTES = 4


@dataclass(frozen=True)
class Rates:
    """Of one parameter: bytes that a worker sends, as many as it receives, and seconds of its kernels.

    `hops` is how often a piece waits for the link's latency.
    """

    sent: float
    encode: float
    combine: float
    decode: float
    hops: int

    @property
    def seconds(self) -> float:
        """Of all kernels."""
        return self.encode + self.combine + self.decode


@functools.lru_cache(maxsize=ENCODERS)
def gradient(numel: int, seed: int, beta: float = BETA) -> torch.Tensor:
    """Independent draws from a generalized normal; not to be written to."""
    rng = np.random.default_rng(seed)
    sizes = rng.gamma(1 / beta, size=numel) ** (1 / beta)
    return torch.from_numpy((sizes * rng.choice([-1, 1], numel)).astype(np.float32))


def measure(technique: Technique, workers: int, device: torch.device, rounds: int = ROUNDS) -> Rates:
    """The rates of `technique` among so many workers, its kernels on `device`, or on one thread of a CPU."""
    if isinstance(technique, Settler):
        technique = technique.settled(workers)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        crew = _Crew(technique, workers, device)
        for step in range(rounds):
            crew.step(step)
        return crew.rates()
    finally:
        torch.set_num_threads(threads)


class _Crew:
    """The first few of the workers, with their gradients and what they remember."""

    def __init__(self, technique: Technique, workers: int, device: torch.device) -> None:
        self._technique, self._workers, self._device = technique, workers, device
        whole = ALIGN * workers
        tensor = CHUNK // whole * whole  # so that all shards are of one size
        names = tuple(f"sample {number}" for number in range(TENSORS))
        self._numel = TENSORS * tensor
        self._bucket = Bucket(names, TENSORS * (tensor,), torch.float32)
        crew = range(min(workers, ENCODERS))
        self._states = [State.of(technique, worker, workers) for worker in crew]
        self._grads = [gradient(self._numel, worker).to(device) for worker in crew]
        self._seconds: list[defaultdict[str, float]] = []
        self._sent = 0

    def step(self, number: int) -> None:
        """All pieces have been through, once."""
        self._seconds.append(defaultdict(float))
        self._sent = 0
        for piece in self._technique.cut(self._bucket, self._workers):
            self._travel(piece, number)
        for state in self._states:
            state.commit()

    def rates(self) -> Rates:
        """Of the last step, with each phase's best time."""
        best = {
            phase: min(step[phase] for step in self._seconds) for phase in ("encode", "combine", "decode")
        }
        each = {phase: seconds / self._numel for phase, seconds in best.items()}
        return Rates(self._sent / self._numel, **each, hops=self._hops())

    def _travel(self, piece: Piece, number: int) -> None:
        span = slice(piece.start, piece.stop)
        parts = [grad[span] for grad in self._grads]  # which no encode changes
        turns = [self._turn(piece, number, worker) for worker in range(len(parts))]
        if isinstance(self._technique, Surveyor):
            self._agree(self._technique, turns, parts)
        pairs = zip(turns[1:], parts[1:], strict=True)
        first = self._timed("encode", lambda: self._technique.encode(turns[0], parts[0]))
        encoded = [first, *(self._technique.encode(*pair) for pair in pairs)]
        shard = [encoded[worker % len(encoded)][worker // len(encoded)] for worker in range(self._workers)]
        messages = self._joined(shard)
        reply = self._timed("combine", lambda: self._technique.combine(turns[0], messages))
        replies = self._joined([reply] * self._workers)
        result = torch.empty_like(parts[0])
        self._timed("decode", lambda: self._technique.decode(turns[0], replies, result))
        self._sent += sum(len(message) for message in first[1:]) + (self._workers - 1) * len(reply)
        self._sent += 2 * (self._workers - 1) * SIZE_BYTES * self._technique.varies

    def _agree(self, technique: Surveyor, turns: list[Turn], parts: list[torch.Tensor]) -> None:
        pairs = zip(turns[1:], parts[1:], strict=True)
        first = self._timed("encode", lambda: technique.survey(turns[0], parts[0]))
        surveys = [first, *(technique.survey(*pair) for pair in pairs)]
        for turn in turns:
            turn.agreed = torch.stack(surveys).amax(0)
        others = self._workers - 1
        times = others if self._direct else 2 * others / self._workers
        self._sent += round(times * first.nbytes)

    def _turn(self, piece: Piece, number: int, worker: int) -> Turn:
        state = self._states[worker]
        memory = state.part(state.memory(self._bucket, self._device), piece)
        return Turn(piece, number, worker, memory, tallies=state.tallies)

    def _joined(self, messages: list[torch.Tensor]) -> Messages:
        return messages if self._technique.varies else torch.stack(messages)

    def _timed(self, phase: str, run: Callable[[], Any]) -> Any:
        start = _now(self._device)
        result = run()
        self._seconds[-1][phase] += _now(self._device) - start
        return result

    @property
    def _direct(self) -> bool:
        """Whether workers agree by telling everybody."""
        return self._workers <= getattr(self._technique.place, "direct", self._workers)

    def _hops(self) -> int:
        """One up, and around a ring down; as many for sizes that travel ahead; and those of a survey."""
        around = self._workers - 1
        survey = (1 if self._direct else 2 * around) * isinstance(self._technique, Surveyor)
        return (1 + around) * (1 + self._technique.varies) + survey


def best_seconds(run: Callable[[], object], device: torch.device, rounds: int = ROUNDS) -> float:
    """The shortest that `run` took, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return min(_each(run, device, rounds))
    finally:
        torch.set_num_threads(threads)


def _each(run: Callable[[], object], device: torch.device, rounds: int) -> Iterator[float]:
    for _ in range(rounds):
        start = _now(device)
        run()
        yield _now(device) - start


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
