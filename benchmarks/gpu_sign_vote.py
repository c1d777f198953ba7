"""SignVote's ops on a CUDA device, next to a copy: python benchmarks/gpu_sign_vote.py [--json] [--kernels]

Four million coordinates are first compared with the PyTorch reference; where a bit differs, nothing is timed. One
tensor, four workers, density 0.01. A rate counts what must move: 12 bytes a coordinate for encode, which is select
and pack (gradient and memory in, memory out), 4 for decode, and for the combine of one shard's four messages 8 a
coordinate of the shard, its sums of votes written and read. `--kernels` tells each kernel's time.
"""

import argparse
import json
import sys

import torch
from gpu import copy_rate, seconds

from laconic.kernels import sign_vote as reference
from laconic.kernels.sign_vote import launch
from laconic.numerics import ternary

WORKERS, DENSITY = 4, 0.01
BYTES = {"encode": 12.0, "combine": 8.0 / WORKERS, "decode": 4.0}


class Work:
    """Random gradients of four workers, and what the ops make of them."""

    def __init__(self, numel: int):
        self.numel, self.width = numel, -(-numel // WORKERS)
        self.chart = torch.tensor([(0, numel, -int(-DENSITY * numel // 1))])
        self.weights = torch.ones(WORKERS, dtype=torch.int64, device="cuda")
        self.old = torch.randn(numel, device="cuda")
        self.new, self.decoded = torch.empty_like(self.old), torch.empty_like(self.old)
        self.votes = torch.empty(int(self.chart[0, 2]), dtype=torch.int32, device="cuda")
        self.rows = torch.empty(WORKERS, ternary.room(self.width), dtype=torch.uint8, device="cuda")
        self.sizes = torch.empty(WORKERS, dtype=torch.int64, device="cuda")
        self.reply = torch.empty(ternary.room(self.width), dtype=torch.uint8, device="cuda")
        self.counts = torch.empty(4 + 2 * WORKERS, dtype=torch.int64, device="cuda")
        self.messages = [self.encoded(worker) for worker in range(WORKERS)]
        self.replies = [self.combined(shard) for shard in range(WORKERS)]

    def encoded(self, worker: int) -> list[torch.Tensor]:
        self.grad = torch.randn(
            self.numel, generator=torch.Generator("cuda").manual_seed(worker), device="cuda"
        )
        self.encode()
        sizes = self.sizes.tolist()
        return [row[:size].clone() for row, size in zip(self.rows, sizes, strict=True)]

    def combined(self, shard: int) -> torch.Tensor:
        self.received = [messages[shard] for messages in self.messages]
        return self.reply[: self.combine()].clone()

    def encode(self, ops=launch) -> None:
        self.cast = ops.sign_select(self.grad, self.old, 1.0, self.chart, self.new, self.votes)
        ops.sign_pack(self.votes[: self.cast], self.numel, self.width, self.rows, self.sizes)

    def combine(self, ops=launch) -> int:
        return ops.sign_combine(self.received, self.weights, self.width, None, self.reply, self.counts)

    def decode(self, ops=launch) -> None:
        ops.sign_decode(self.replies, self.width, self.decoded)

    def results(self, ops) -> list[object]:
        """Everything that the ops say."""
        self.encode(ops)
        sent = [row[:size].tolist() for row, size in zip(self.rows, self.sizes.tolist(), strict=True)]
        size = self.combine(ops)
        self.decode(ops)
        told = self.cast, self.votes.tolist(), sent, self.reply[:size].tolist(), self.counts.tolist()
        return [*told, self.new.tolist(), self.decoded.tolist()]


class References:
    """The PyTorch bodies of the ops."""

    def __getattr__(self, name: str):
        return getattr(reference, name).reference


def kernels(work: Work, repetitions: int = 10) -> dict[str, float]:
    """Microseconds of every kernel in a call of each op, the largest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repetitions):
            for op in (work.encode, work.combine, work.decode):
                op()
        torch.cuda.synchronize()
    events = sorted(profile.key_averages(), key=lambda event: -event.device_time_total)
    return {
        f"{event.key[:60]} x{event.count // repetitions}": event.device_time_total / repetitions
        for event in events
        if event.device_time_total
    }


def main() -> None:
    """Prints the rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device")
    small = Work(1 << 22)
    if small.results(launch) != small.results(References()):
        sys.exit("the device differs from the reference; its speed means nothing")
    copied, results, times = copy_rate(), {}, {}
    for numel in (1 << 24, 1 << 26, 1 << 28):
        work = Work(numel)
        taken = {name: seconds(getattr(work, name)) for name in BYTES}
        results[numel] = {name: BYTES[name] * numel / time / 1e12 for name, time in taken.items()}
        times[numel] = kernels(work) if arguments.kernels else {}
        if not arguments.json:
            cells = (
                f"{name} {1e6 * taken[name]:.0f} us = {rate / copied:.3f}"
                for name, rate in results[numel].items()
            )
            print(f"{numel >> 20} M coordinates: " + ", ".join(cells), flush=True)
            print("\n".join(f"  {time:8.1f} us {name}" for name, time in times[numel].items()))
    if arguments.json:
        print(json.dumps({"copy": copied, "rates": results, "kernels": times}))
    else:
        print(f"copy: {copied:.2f} TB/s")


if __name__ == "__main__":
    main()
