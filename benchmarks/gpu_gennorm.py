"""GenNorm's ops on a CUDA device, next to a copy: python benchmarks/gpu_gennorm.py [--json] [--format fp4]

Four million coordinates are first compared with the PyTorch reference; where a bit differs, nothing is timed. Parts
are what four workers own of a chunk, 2^18 coordinates each. A rate counts what must move: 8 bytes a coordinate for
moments, 13 for levels, which are counted too (gradient and residual in, residual and levels out), and 5 for the mean
of one message. Then the way of levels through the host, on one thread, in millions a second: to pinned memory and
back, the coders, and all three functions of the technique on one piece, whose messages the host carries. And the
speed of a link that four workers' messages keep busy as long as that takes: on a faster one they wait for the host.
"""

import argparse
import json
import statistics
import sys
import time

import torch
from gpu import copy_rate, seconds

from laconic.core.technique import Bucket, Cell, Desk, Setting, Turn
from laconic.kernels import coding
from laconic.kernels import gennorm as ops
from laconic.kernels.gennorm import launch
from laconic.messages.gennorm import Leveling, _side
from laconic.numerics import generalized_normal, level_codes
from laconic.numerics.minifloat import FORMATS
from laconic.techniques.gennorm import GenNorm

PART, WORKERS, MEMORY = 1 << 18, 4, 0.7
BYTES = {"moments": 8.0, "quantize": 13.0, "average": 5.0}


class Work:
    """A gradient and its residual, and what the ops make of them."""

    def __init__(self, numel: int, name: str):
        generator = torch.Generator("cuda").manual_seed(0)
        self.numel, self.name, self.form = numel, name, FORMATS[name]
        self.grad = torch.randn(numel, generator=generator, device="cuda")
        self.old = torch.randn(numel, generator=generator, device="cuda")
        self.new, self.out = torch.empty_like(self.old), torch.empty_like(self.old)
        self.parts = torch.tensor([(start, min(PART, numel - start)) for start in range(0, numel, PART)])
        self.sums = torch.empty(len(self.parts), 2, dtype=torch.float64)
        self.symbols = torch.empty(numel, dtype=torch.uint8, pin_memory=True)
        self.counts = torch.empty(len(self.parts), 256, dtype=torch.int32)
        self.moments()
        self.shapes = generalized_normal.fit_all(*(self.sums / self.parts[:, 1:]).numpy().T)
        self.scales = Leveling(name, "huffman").scales(self.shapes)
        self.inputs = self.grad, self.old, MEMORY, self.parts, self.scales
        self.codes, _ = launch.quantized(*self.inputs, self.form, self.new)
        table, scales = torch.empty(len(self.parts) * launch.ROW, dtype=torch.uint8), self.scales.numpy()
        launch._fill(table, scales, self.parts[:, 1].numpy(), scales[:, 0] > 0)
        self.table = table.cuda().view(torch.int64)

    def moments(self) -> None:
        launch.gennorm_moments(self.grad, self.old, MEMORY, self.parts, self.sums)

    def quantize(self) -> None:
        launch.quantized(*self.inputs, self.form, self.new)

    def average(self) -> None:
        launch.averaged(self.codes, self.table, self.parts, 1, self.form, self.out)

    def different(self) -> list[str]:
        """Which results are not the reference's."""
        assert launch.gennorm_quantize(*self.inputs, self.name, self.new, self.symbols, self.counts)
        self.average()
        ours = self.symbols, self.counts, self.new.cpu(), self.out.cpu()
        grad, old, new = self.grad.cpu(), self.old.cpu(), torch.empty(self.numel)
        symbols, counts = torch.empty_like(self.symbols), torch.empty_like(self.counts)
        rest = MEMORY, self.parts, self.scales, self.name, new, symbols, counts
        assert ops.gennorm_quantize.reference(grad, old, *rest)
        said = self.form.levels[symbols.long()] * self.scales[:, 1].repeat_interleave(self.parts[:, 1])
        pairs = zip(ours, (symbols, counts, new, said), strict=True)
        names = ("symbols", "counts", "residual", "mean")
        return [name for name, pair in zip(names, pairs, strict=True) if not torch.equal(*pair)]


def wall(function, repetitions: int = 15) -> float:
    """The median of calls after which the device has nothing left to do."""
    times = []
    for _ in range(repetitions + 3):
        begin = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[3:])


def ways(work: Work) -> dict[str, float]:
    """Seconds to the host and back, from and to pinned memory."""
    return {
        "to the host": seconds(lambda: work.symbols.copy_(work.codes, non_blocking=True)),
        "back": seconds(lambda: work.codes.copy_(work.symbols, non_blocking=True)),
    }


def coded(work: Work, coder: str) -> tuple[float, dict[str, float]]:
    """Bits a level, and seconds of sealing and unsealing."""
    leveling = Leveling(work.name, coder)
    assert launch.gennorm_quantize(*work.inputs, work.name, work.new, work.symbols, work.counts)
    content = work.symbols, work.counts, work.parts[:, 1], work.shapes
    message = leveling.seal(*content)
    side = _side(message, len(work.parts), 0)
    assert side is not None
    which, books = leveling._books(side["prediction"])
    rows, offset = torch.stack([work.parts[:, 1], which], 1), coding.HEAD + side.nbytes
    unseal = message, rows, books, ops.width(work.form), offset, work.symbols
    times = {
        f"seal {coder}": wall(lambda: leveling.seal(*content)),
        f"unseal {coder}": wall(lambda: coding.unseal(*unseal)),
    }
    return 8 * len(message) / work.numel, times


def whole(work: Work, coder: str) -> dict[str, float]:
    """Seconds of encode, combine and decode of all `work` as one piece, whose messages the host carries."""
    scheme = GenNorm(work.name, coder=coder, memory=MEMORY).bind(Setting(WORKERS))
    (piece,) = scheme.cut(Bucket(("w",), (work.numel,), torch.float32), 1 << 30)
    turn = Turn(piece, 1, 0, {"residual": Cell(work.old, work.new)})
    desk = Desk(piece, 1, 0, {"reply residual": Cell(*torch.zeros(2, work.numel))})
    messages = list(scheme.encode(turn, work.grad))
    received = messages[:1] * WORKERS
    return {
        f"encode {coder}": wall(lambda: scheme.encode(turn, work.grad)),
        f"combine {coder}": wall(lambda: scheme.combine(desk, received)),
        f"decode {coder}": wall(lambda: scheme.decode(turn, messages, work.out)),
    }


def busy_link(host: dict[str, float], bits: dict[str, float], coder: str) -> dict[str, float]:
    """Gbit/s of a link that carries a worker's messages as fast as its host makes and reads them.

    A coordinate is sealed once, and 1/4 of all once more for replies; it is unsealed as one of a worker's shard from
    four workers, 1/4 each, and in replies. Of what is sent, 3/4 travels, up and down.
    """
    travels = 2 * (WORKERS - 1) / WORKERS * bits[coder]
    coding_alone = (1 + 1 / WORKERS) / host[f"seal {coder}"] + 2 / host[f"unseal {coder}"]
    everything = sum(1 / host[f"{name} {coder}"] for name in ("encode", "combine", "decode"))
    return {"coder": travels / coding_alone / 1e3, "everything": travels / everything / 1e3}


def main() -> None:
    """Prints the rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--format", default="fp4", choices=[*FORMATS])
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device")
    torch.set_num_threads(1)
    if different := Work((1 << 22) + 77, arguments.format).different():
        sys.exit(f"the device differs from the reference in {different}; its speed means nothing")
    copied, rates = copy_rate(), {}
    for numel in (1 << 24, 1 << 26, 1 << 28):
        work = Work(numel, arguments.format)
        rates[numel] = {
            name: count * numel / seconds(getattr(work, name), others=4) / 1e12
            for name, count in BYTES.items()
        }
    work, times, bits = Work(1 << 24, arguments.format), {}, {}
    times |= ways(work)
    piece = Work((1 << 23) // ops.width(work.form), arguments.format)
    for coder in level_codes.CODERS:
        bits[coder], spent = coded(work, coder)
        times |= spent
        times |= {name: t * work.numel / piece.numel for name, t in whole(piece, coder).items()}
    host = {name: work.numel / taken / 1e6 for name, taken in times.items()}
    links = {coder: busy_link(host, bits, coder) for coder in level_codes.CODERS}
    if arguments.json:
        print(json.dumps({"copy": copied, "rates": rates, "bits": bits, "host": host, "links": links}))
        return
    print(f"copy: {copied:.2f} TB/s")
    for numel, row in rates.items():
        cells = (f"{name} {rate:.2f} TB/s = {rate / copied:.3f}" for name, rate in row.items())
        print(f"{numel >> 20} M coordinates: " + ", ".join(cells))
    print("bits a level: " + ", ".join(f"{coder} {value:.2f}" for coder, value in bits.items()))
    print("millions a second: " + ", ".join(f"{name} {rate:.0f}" for name, rate in host.items()))
    for coder, link in links.items():
        print(f"{coder} keeps a link busy of " + ", ".join(f"{v:.1f} Gbit/s ({k})" for k, v in link.items()))


if __name__ == "__main__":
    main()
