"""THC's ops on a CUDA device, next to a copy: python benchmarks/gpu.py [--json]

Four million coordinates are first compared with the PyTorch reference on the CPU: the share of packed codes that
differ, and whether residuals and results have the same bits; where they do not, nothing is timed. A rate counts
each value once, read or written: with fp32 gradients 12.5 bytes a coordinate for encode, 5 for decode, 8 for
norms, and 3 for those of one row in combine.
"""

import argparse
import json
import statistics
import sys

import torch

from laconic.core.blocks import block_pieces
from laconic.core.technique import Bucket
from laconic.kernels import thc as ops
from laconic.techniques.thc import SAMPLE, THC

WORKERS, BLOCK = 4, 4096
BYTES = {"norms": 8.0, "encode": 12.5, "combine": 0.5 + 1 / WORKERS, "decode": 5.0}
SHARED, OWN = 0x9E3779B9, 12345


class Work:
    """Random gradients of one worker among four, and what the ops make of them."""

    def __init__(self, numel: int, device: str):
        self.grid, generator = THC(block=BLOCK).grid(WORKERS), torch.Generator(device).manual_seed(0)
        bucket = Bucket(("w",), (numel,), torch.float32)
        (piece,) = block_pieces(bucket, WORKERS, block=BLOCK, width=numel // WORKERS)
        self.chart = piece.chart(torch.device(device))
        self.table = torch.tensor(self.grid.table, device=device)
        self.grad = torch.randn(numel, generator=generator, device=device)
        self.residual = 0.1 * torch.randn(numel, generator=generator, device=device)
        self.norms = torch.empty(len(self.chart), device=device)
        self.codes = torch.zeros(WORKERS, numel // WORKERS // 2, dtype=torch.uint8, device=device)
        self.new, self.decoded = torch.empty_like(self.grad), torch.empty_like(self.grad)
        self.quality = torch.empty(len(self.chart), 4, device=device)
        width = numel // WORKERS + ops.COUNT_BYTES
        self.replies = torch.zeros(WORKERS, width, dtype=torch.uint8, device=device)

    def to(self, device: str) -> "Work":
        """The same values elsewhere."""
        work = object.__new__(Work)
        for name, value in vars(self).items():
            setattr(work, name, value.to(device) if isinstance(value, torch.Tensor) else value)
        return work

    def run(self, name: str, reference: bool = False) -> None:
        op = getattr(ops, f"thc_{name}")
        (op.reference if reference else op)(*getattr(self, f"_{name}")())

    def _norms(self):
        return self.grad, self.residual, self.chart, self.norms

    def _encode(self):
        g, t = self.grid.granularity, self.grid.threshold
        inputs = (self.grad, self.residual, self.norms, self.chart, self.table, g, t, SHARED, OWN, 4, SAMPLE)
        return *inputs, self.codes, self.new, self.quality

    def _combine(self):
        return self.codes, self.table, 4, self.grid.lane, self.replies[0]

    def _decode(self):
        grid = self.grid
        scale = grid.granularity, grid.threshold, SHARED, grid.lane
        return self.replies, self.norms, self.chart, *scale, self.decoded


def compared(numel: int) -> dict[str, object]:
    """How the device's results differ from the reference's."""
    work = Work(numel, "cuda")
    work.run("norms")
    norms_alone = work.to("cpu")
    norms_alone.run("norms", reference=True)
    deviation = (work.norms.cpu() / norms_alone.norms - 1).abs().max()
    reference = work.to("cpu")  # with the device's norms
    for name in ("encode", "combine"):
        work.run(name)
        reference.run(name, reference=True)
    for reply in (*work.replies[1:], *reference.replies[1:]):
        reply.copy_(reference.replies[0])
    work.run("decode")
    reference.run("decode", reference=True)
    return {
        "numel": numel,
        "norms deviate by": float(deviation),
        "codes differ": float((work.codes.cpu() != reference.codes).float().mean()),
        "residuals equal": torch.equal(work.new.cpu(), reference.new),
        "replies equal": torch.equal(work.replies.cpu(), reference.replies),
        "results equal": torch.equal(work.decoded.cpu(), reference.decoded),
    }


def seconds(function, repetitions: int = 30, others: int = 1) -> float:
    """The median of single calls between events, after three to warm up.

    Before each the device is given other work, which empties its cache and lasts until the call is queued; `others`
    is how much, in quarters of a millisecond.
    """
    times, other = [], torch.empty(1 << 28, device="cuda")
    for _ in range(repetitions + 3):
        for _ in range(others):
            other.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times[3:])


def rates(numel: int) -> dict[str, float]:
    """Terabytes a second of every op at this size."""
    work = Work(numel, "cuda")
    return {
        name: BYTES[name] * numel / seconds(lambda name=name: work.run(name)) / 1e12
        for name in ("norms", "encode", "combine", "decode")
    }


def copy_rate() -> float:
    """Terabytes a second of a copy of 1 GB."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source)) / 1e12


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device")
    equality = compared(1 << 22)
    if equality["codes differ"] or not all(
        value for name, value in equality.items() if name.endswith("equal")
    ):
        sys.exit(f"the device differs from the reference; its speed means nothing: {equality}")
    copied = copy_rate()
    results = {numel: rates(numel) for numel in (1 << 24, 1 << 26, 1 << 28)}
    if arguments.json:
        print(json.dumps({"equality": equality, "copy": copied, "rates": results}))
        return
    print("\n".join(f"{name}: {value}" for name, value in equality.items()))
    print(f"copy: {copied:.2f} TB/s")
    for numel, row in results.items():
        cells = (f"{name} {rate:.2f} TB/s = {rate / copied:.3f}" for name, rate in row.items())
        print(f"{numel >> 20} M coordinates: " + ", ".join(cells))


if __name__ == "__main__":
    main()
