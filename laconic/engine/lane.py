"""The lane: all collectives of one attachment, issued by one thread in one order that all workers share.

A journey is a generator that yields transfers; the lane issues each and resumes the journey when it has
completed. Journeys are submitted in the same order on all workers, because DDP hands over its buckets so.

`InterleavedLane`: every transfer belongs to a channel, and a channel issues its transfers strictly in the order of
their journeys. So collectives match whatever the timing, while one piece comes down, the next goes up and a third is
being encoded.

`StreamLane` (NCCL): the device's streams do the waiting. Each journey is issued to its end before the next
begins, on alternating streams, so that the kernels of one run beside the transfers of another.
"""

from __future__ import annotations

import abc
import itertools
import queue
import threading
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

from laconic.core import streams
from laconic.engine.alarm import LinkError, Quiet, linked
from laconic.engine.waiters import Waiters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from laconic.core.meter import Meter
    from laconic.core.place import Post, Transfer, Trip

    Journey: TypeAlias = Trip[None]

AT_ONCE = 2
"""Transfers of a process group that gloo has under way at once."""


@dataclass(eq=False)
class _Traveler:
    number: int
    journey: Journey
    done: Callable[[], None]
    failed: Callable[[BaseException], None]
    ready: streams.Mark | None = None
    passed: int = 0
    """The channels that this journey has behind it."""


def lane_for(post: Post, device: torch.device, meter: Meter, alarm: Quiet) -> Lane:
    """The lane that suits where messages lie."""
    if post.carrier.type == "cuda":
        return StreamLane(device, meter, alarm)
    return InterleavedLane(post.channels, device, meter, alarm)


class Lane(abc.ABC):
    """A thread that carries journeys to their end."""

    def __init__(self, device: torch.device, meter: Meter, alarm: Quiet | None = None) -> None:
        self._device = device
        self._alarm = alarm or Quiet()
        self._meter = meter
        self._numbers = itertools.count()
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._traveling: set[_Traveler] = set()
        self.error: BaseException | None = None
        """Why no journey comes to its end any more, if none does."""
        self._cores = torch.get_num_threads()
        self._thread = threading.Thread(target=self._run, name="laconic-lane", daemon=True)
        self._thread.start()
        self._alarm.listen(self.fail)

    def submit(
        self, journey: Journey, done: Callable[[], None], failed: Callable[[BaseException], None]
    ) -> None:
        """`journey` will be carried to its end; then the lane's thread calls `done`, or `failed` with the reason.

        What the calling thread's current CUDA stream has been given so far comes before the journey.
        """
        traveler = _Traveler(next(self._numbers), journey, done, failed, streams.mark())
        self._events.put(lambda: self._depart(traveler))

    def fail(self, error: BaseException) -> None:
        """No journey comes to its end any more."""
        self._events.put(lambda: self._fail(error))

    def close(self, timeout: float = 5.0) -> None:
        """The thread has ended, or was given `timeout` seconds to end."""
        self._events.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        event: Callable[[], None] | None = self._enter_device
        while event is not None:
            try:
                event()
            except BaseException as error:  # whatever it is, those who wait for a result must learn of it
                self._fail(error)
            event = None  # while it waits, nothing of the last step is kept
            event = self._events.get()

    def _enter_device(self) -> None:
        # A thread of its own would take all cores, whatever the program said, and sums depend on how many there are.
        torch.set_num_threads(self._cores)
        torch.set_grad_enabled(False)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            torch.cuda.set_stream(torch.cuda.Stream())  # never the stream on which backward runs

    def _depart(self, traveler: _Traveler) -> None:
        self._traveling.add(traveler)
        if self.error is not None:
            self._fail(self.error)
        else:
            self._begin(traveler)

    def _end(self, traveler: _Traveler) -> None:
        traveler.done()  # if this raises, the traveler is still one of those to be told
        self._traveling.discard(traveler)

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or self._alarm.verdict(error)
        while self._traveling:
            try:
                self._traveling.pop().failed(self.error)
            except BaseException:  # whatever it is, the others must still be told
                traceback.print_exc()

    @abc.abstractmethod
    def _begin(self, traveler: _Traveler) -> None: ...


class _Channel:
    """Issues transfers in the order of their journeys."""

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[int, tuple[_Traveler, Transfer] | None] = {}

    def offer(
        self, number: int, item: tuple[_Traveler, Transfer] | None
    ) -> Iterator[tuple[_Traveler, Transfer]]:
        """What may be issued now that journey `number` has its transfer, or has none for this channel."""
        self._waiting[number] = item
        while self._next in self._waiting:
            ready = self._waiting.pop(self._next)
            self._next += 1
            if ready is not None:
                yield ready


class InterleavedLane(Lane):
    """For transfers that run in the background and announce their end, on so many channels."""

    def __init__(self, channels: int, device: torch.device, meter: Meter, alarm: Quiet | None = None) -> None:
        self._channels = [_Channel() for _ in range(channels)]
        self._waiters = [Waiters(AT_ONCE, f"channel-{number}") for number in range(channels)]
        super().__init__(device, meter, alarm)

    def close(self, timeout: float = 5.0) -> None:
        """The threads have ended, or were given `timeout` seconds to end."""
        super().close(timeout)
        for waiters in self._waiters:
            waiters.close()

    def _begin(self, traveler: _Traveler) -> None:
        streams.after(traveler.ready)
        self._advance(traveler)

    def _advance(self, traveler: _Traveler) -> None:
        transfer = next(traveler.journey, None)
        if transfer is not None:
            self._pass(traveler, transfer.channel)
            traveler.passed += 1
            self._offer(self._channels[transfer.channel], traveler.number, (traveler, transfer))
            return
        self._pass(traveler, len(self._channels))
        self._end(traveler)

    def _pass(self, traveler: _Traveler, channel: int) -> None:
        """The journey has nothing for the channels before this one."""
        assert traveler.passed <= channel, "a journey uses channels in rising order"
        for skipped in self._channels[traveler.passed : channel]:
            self._offer(skipped, traveler.number, None)
        traveler.passed = channel

    def _offer(self, channel: _Channel, number: int, item: tuple[_Traveler, Transfer] | None) -> None:
        for traveler, transfer in channel.offer(number, item):
            self._issue(traveler, transfer)

    def _issue(self, traveler: _Traveler, transfer: Transfer) -> None:
        self._meter.depart(transfer)
        with linked():
            work = transfer.start()

        def tell(error: Exception | None) -> None:
            self._events.put(lambda: self._arrive(traveler, transfer, error))

        self._waiters[transfer.channel].post([work], tell)

    def _arrive(self, traveler: _Traveler, transfer: Transfer, error: Exception | None) -> None:
        self._meter.arrive(transfer)
        if traveler in self._traveling:
            if error is not None:
                raise LinkError(str(error)) from error
            self._advance(traveler)


class StreamLane(Lane):
    """For transfers that are ordered by a CUDA device's streams."""

    def __init__(self, device: torch.device, meter: Meter, alarm: Quiet | None = None) -> None:
        self._streams = itertools.cycle([torch.cuda.Stream(device), torch.cuda.Stream(device)])
        self._previous = next(self._streams)
        super().__init__(device, meter, alarm)

    def _begin(self, traveler: _Traveler) -> None:
        stream, previous = next(self._streams), self._previous
        self._previous = stream
        with torch.cuda.stream(stream):
            streams.after(traveler.ready)
            for transfer in traveler.journey:
                self._meter.count(transfer)
                with self._meter.phase(transfer.phase), linked():
                    transfer.start().wait()
            stream.wait_stream(previous)  # what is done on this stream is done on both
            self._end(traveler)
