"""The study of docs/crossover.md on a GPU: `python benchmarks/gpu_crossover.py DATA DIR 64x64 32x128 64x32 …`.

DATA has Fashion-MNIST's files. For every pair of workers and batch, DIR gets a JSON record a cell, as `laconic
simulate` writes them, so that it makes tables and figures of them on any machine. Steps are many small kernels:
several processes side by side keep a GPU busier than one, most of all under NVIDIA's multi-process service
(`nvidia-cuda-mps-control -d`). Each takes the next cell that nobody has. A cell that is done is not run again.
"""

import argparse
import multiprocessing
import time
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty

import torch

from laconic.lab import tasks
from laconic.lab.tasks import Task
from laconic.studies import simulate_study
from laconic.studies.simulate import Cell

METHODS = ["allreduce", "crossover", "hierarchical", "sgp", "one_segment", "unfair"]


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("data", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("pairs", nargs="+", help="workers x batch, such as 64x32")
    parser.add_argument("--lr", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.4, 0.8])
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=3600, help="after which no cell is begun")
    return parser.parse_args()


def cells(chosen: argparse.Namespace, task: Task) -> list[Cell]:
    """All of a pair before the next pair, seed by seed."""
    found = []
    for pair in chosen.pairs:
        workers, batch = map(int, pair.split("x"))
        plan = simulate_study.Study(
            METHODS, [workers], 8, [batch], chosen.lr, chosen.seeds, 16, chosen.epochs, None, 0.9
        )
        found += plan.cells(task, "small")
    return found


def work(data: Path, directory: Path, queue: "Queue[Cell]", deadline: float) -> None:
    """One cell after the other, until there is none left or no time."""
    torch.set_num_threads(1)  # processes would take each other's cores
    torch.backends.cudnn.allow_tf32 = False
    task = tasks.load("fashion", data=data, size="small")
    while time.time() < deadline:
        try:
            cell = queue.get(timeout=1)
        except Empty:
            return
        for run in simulate_study.run([cell], task, directory, "cuda", lambda _cell, _step: None):
            shape = f"{cell.method} {cell.workers}x{cell.batch} lr {cell.lr:g} seed {cell.seed}"
            print(
                f"{shape}: {run.result.average['accuracy']:.4f}, {run.result.seconds:.4f} s/step", flush=True
            )


def main() -> None:
    """The records of all cells are there, or of those that there was time for."""
    chosen = options()
    chosen.directory.mkdir(parents=True, exist_ok=True)
    deadline, context = time.time() + chosen.seconds, multiprocessing.get_context("spawn")
    queue: Queue[Cell] = context.Queue()
    for cell in cells(chosen, tasks.load("fashion", data=chosen.data, size="small")):
        queue.put(cell)
    given = (chosen.data, chosen.directory, queue, deadline)
    at_work = [context.Process(target=work, args=given) for _ in range(chosen.processes)]
    for process in at_work:
        process.start()
    for process in at_work:
        process.join()
    queue.cancel_join_thread()


if __name__ == "__main__":
    main()
