"""What seals cost: python -m benchmarks.seals [--techniques thc gennorm … --link 1gbit --blocks 20].

`fashion`, 4 workers at the ends of emulated links. Blocks of steps with seals and without them take turns in one run,
so whatever else the machine does falls on both; without means that nothing is hashed, that no message is longer for
its seal, and that a gradient which travels as it is is not copied. Prints each technique's median step both ways and
by how much seals make it longer: the median over pairs of blocks, with half the distance between its quartiles.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from laconic.engine import journey, likeness, mixer
from laconic.lab import contestants, tasks
from laconic.lab.jobs import Job
from laconic.lab.links import Lab, parse_links
from laconic.lab.worker import grouped
from laconic.messages import seals
from laconic.places import peers
from laconic.techniques import dense

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from laconic.core.technique import Piece

WORKERS, BLOCK, LR = 4, 12, 0.02
TECHNIQUES = ("dense", "thc", "sign_vote", "gennorm", "dad", "rank_dad:dtype=bf16", "crossover")


class Open:
    """Envelopes that close nothing."""

    def __init__(self, *_: object) -> None:
        pass

    def sealed(self, messages: Any) -> Any:
        """What this worker says, as it is."""
        return messages

    opened = combining = sealed


def main() -> None:
    """A line for each technique."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.seals", description=__doc__)
    parser.add_argument("--techniques", nargs="+", default=TECHNIQUES, metavar="SPEC")
    parser.add_argument("--link", default="1gbit")
    parser.add_argument("--blocks", type=int, default=20, help="pairs of blocks")
    options = parser.parse_args()
    with Lab(parse_links(options.link, WORKERS)) as lab:
        for technique in options.techniques:
            print(_line(technique, *_timed(lab, technique, options.blocks)), flush=True)


def _timed(lab: Lab, technique: str, blocks: int) -> tuple[list[float], list[float]]:
    """The median steps of blocks with seals, and without."""
    root = str(Path(__file__).parents[1])
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "steps.json")
        arguments = [technique, str(blocks), str(out)]
        with Job(
            lab,
            "benchmarks.seals",
            arguments,
            log_directory=Path(directory),
            environment={"PYTHONPATH": root},
        ) as job:
            job.wait()
        sealed, unsealed = json.loads(out.read_text())
        return sealed, unsealed


def _line(technique: str, sealed: Sequence[float], unsealed: Sequence[float]) -> str:
    longer = [100 * (one / other - 1) for one, other in zip(sealed, unsealed, strict=True)]
    low, middle, high = statistics.quantiles(longer, n=4)
    steps = f"{1e3 * statistics.median(sealed):6.1f} and {1e3 * statistics.median(unsealed):6.1f} ms"
    return f"{technique:22s} {steps}, {middle:+.1f} % (± {(high - low) / 2:.1f})"


def work(technique: str, blocks: int, out: Path) -> None:
    """This worker's training; the first worker writes down how long steps took."""
    torch.set_num_threads(1)
    with grouped():
        taken = _train(technique, blocks)
        if dist.get_rank() == 0:
            out.write_text(json.dumps([taken[::2], taken[1::2]]))


def _train(technique: str, blocks: int) -> list[float]:
    """How long the steps of blocks took, with seals and without in turn."""
    task = tasks.load("fashion")
    model = DistributedDataParallel(task.model(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    attachment = contestants.parse(technique).apply(model, optimizer)
    assert attachment is not None
    batches = task.batches(dist.get_rank(), WORKERS, batch=task.defaults.batch, seed=0)

    def step() -> float:
        begun = time.perf_counter()
        optimizer.zero_grad()
        task.loss(model, next(batches)).backward()
        optimizer.step()
        return time.perf_counter() - begun

    taken = list(_blocks(step, attachment.land, blocks))
    attachment.detach()
    return taken


def _blocks(step: Callable[[], float], land: Callable[[], None], blocks: int) -> Iterator[float]:
    """The median step of each block, with seals and without in turn; the first blocks are for warming up."""
    for number in range(-2, 2 * blocks):
        land()
        dist.barrier()
        with _unsealed() if number % 2 else contextlib.nullcontext():
            taken = [step() for _ in range(BLOCK)]
            land()
        if number >= 0:
            yield statistics.median(taken[2:])


@contextlib.contextmanager
def _unsealed() -> Iterator[None]:
    """Neither journeys nor places nor mixers seal anything."""
    as_it_is = {
        "sealed": lambda messages, *_: messages,
        "opened": lambda messages, *_: messages,
        "sealed_size": lambda size, _: size,
        "opened_size": lambda told, *_: told,
    }
    cut = {"seal": lambda *_: None, "opened": lambda messages, *_: [each[: -mixer.SEAL] for each in messages]}
    with (
        mock.patch.object(seals, "SEAL", 0),
        mock.patch.object(dense, "written", _as_it_lies),
        mock.patch.object(journey, "Envelopes", Open),
        mock.patch.object(likeness, "Envelopes", Open),
        mock.patch.multiple(peers, **as_it_is),
        mock.patch.multiple(mixer, **cut),
    ):
        yield


def _as_it_lies(values: torch.Tensor, piece: Piece, wire: torch.dtype) -> torch.Tensor:
    """The values as messages; they share storage with `values` where nothing has to change."""
    values = (
        torch.nn.functional.pad(values.to(wire), (0, piece.padding)) if piece.padding else values.to(wire)
    )
    return values.view(piece.shards, piece.width).view(torch.uint8)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[3].endswith(".json"):
        work(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
