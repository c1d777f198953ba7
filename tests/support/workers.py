"""Runs a function on real worker processes that form a gloo group, and brings back what each returned.

Processes are forked from a server that has torch loaded, so that a group of eight starts in a moment.
"""

import contextlib
import multiprocessing
import pickle
import tempfile
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["torch.nn.parallel", "torch._dynamo", "pytest", "hypothesis", "tests.support.warm"]
)


class WorkerError(Exception):
    """A worker raised; the message has its traceback."""


def run(workers, function, *arguments, seconds=90, lost=()):
    """`[function(*arguments) on worker 0, on worker 1, …]`; inside it torch.distributed is initialized.

    Of those who are `lost` on the way there is None.
    """
    with tempfile.TemporaryDirectory() as directory:
        pipes, processes = [], []
        for rank in range(workers):
            ours, theirs = _context.Pipe(duplex=False)
            process = _context.Process(
                target=_work, args=(theirs, directory, rank, workers, function, arguments), daemon=True
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            return [
                None if rank in lost else _receive(pipe, rank, seconds) for rank, pipe in enumerate(pipes)
            ]
        finally:
            for process in processes:
                process.kill()
                process.join()
                process.close()


def _receive(pipe, rank, seconds):
    if not pipe.poll(seconds):
        raise WorkerError(f"worker {rank} did not answer within {seconds} s")
    failed, value = pickle.loads(pipe.recv_bytes())
    if failed:
        raise WorkerError(value)
    return value


def _work(pipe, directory, rank, workers, function, arguments):
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{Path(directory) / 'store'}", rank=rank, world_size=workers
        )
        answer = (False, function(*arguments))
    except BaseException:
        answer = (True, f"worker {rank} of {workers}\n{traceback.format_exc()}")
    if not answer[0] and dist.is_initialized():
        with contextlib.suppress(RuntimeError):  # another worker may have failed
            dist.barrier()  # whoever leaves first closes connections that others are still making
    pipe.send_bytes(pickle.dumps(answer))  # not send(): that would share tensors' memory, which ends with us
