"""The order of work on a CUDA device, where several threads give it work on streams of their own.

A future of something on a device knows when its device is done with it: who waits for it, or is called when it is
there, comes after that. One that holds nothing on the device, or that was made without it, knows nothing.

Without a device all of this does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

Mark = torch.cuda.Event


def future(device: torch.device) -> torch.futures.Future[Any]:
    """A future of what lies on this device."""
    return torch.futures.Future(devices=[device] if device.type == "cuda" else [])


def mark() -> Mark | None:
    """What the calling thread's current stream has been given so far."""
    if not torch.cuda.is_initialized():
        return None
    event = torch.cuda.Event()
    event.record()
    return event


def after(moment: Mark | None) -> None:
    """What the current stream is given from now on comes after all that was marked."""
    if moment is not None:
        torch.cuda.current_stream().wait_event(moment)


def borrow(tensors: Iterable[torch.Tensor | None]) -> None:
    """The current stream uses these, which are another's: their memory stays theirs until it has."""
    for tensor in tensors:
        if tensor is not None and tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream())
