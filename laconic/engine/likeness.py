"""Whether all workers have the same parameters: a digest of each one's, compared every so many steps.

Synchronous techniques give everybody the same result, so parameters stay equal; unless somebody's memory, kernel or
script did something else. Then the workers with the fewest of their kind are named, and have what the others have if
that is asked for. Nothing else would notice, and no later step would mend it.

Compared is what lies in memory at the end of a step's exchange, when backward has used the parameters and the
optimizer has yet to change them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import torch

from laconic.core import checks
from laconic.core.place import Everybody, Label, Seat, Way
from laconic.messages.seals import Envelopes, opened, sealed
from laconic.numerics import digests

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from laconic.core.meter import Meter
    from laconic.core.place import Messages, Post, Trip
    from laconic.engine.alarm import Quiet

EVERY = 100
"""Steps from one comparison to the next."""
WAYS = ("raise", "warn", "broadcast")
ROUTE = Everybody(8)


class DriftError(RuntimeError):
    """Workers have different parameters; the message names those of whom there are fewer."""


class Likeness(NamedTuple):
    """Of these parameters, which all workers are to have alike, compared after every `every`th step."""

    parameters: Sequence[torch.Tensor]
    every: int = EVERY
    on_drift: str = "raise"

    def due(self, step: int) -> bool:
        """Whether they are compared in this step."""
        return (step + 1) % self.every == 0

    def digest(self) -> int:
        """By which workers' parameters are told apart."""
        return digests.of_tensors(self.parameters)

    def travel(self, step: int, post: Post, meter: Meter) -> Trip[None]:
        """Workers whose parameters differ know it, and do what was asked for."""
        with meter.phase("compare"):
            own = torch.tensor([[_signed(self.digest())]], device=post.carrier).view(torch.uint8)
        label = Label(step, 0, ROUTE.size or 0)
        envelopes = Envelopes(ROUTE, post.seat, label, meter)
        heard = envelopes.opened((yield from post.deliver(ROUTE, envelopes.sealed(own), _refuse, label)))
        assert isinstance(heard, torch.Tensor)
        said = heard.view(torch.int64).flatten().tolist()
        if len(set(said)) == 1:
            return
        source = self._complain(dict(enumerate(said)), step, post.seat)
        if self.on_drift == "broadcast":
            yield from self._repair(source, post, label)

    def saved(self, step: int, times: int, alarm: Quiet, seat: Seat) -> None:
        """This worker, which saves its state, has the parameters of those who have done so as often in this step."""
        heard = alarm.said(f"alike {step} {times}", str(self.digest()))
        if len(set(heard.values())) > 1:
            self._complain(heard, step, seat)

    def _complain(self, said: Mapping[int, object], step: int, seat: Seat) -> int:
        """An error or a warning that names those of whom there are fewer; one of the others."""
        source, sentence = told_apart(said, step, seat)
        if self.on_drift == "raise":
            raise DriftError(sentence)
        warnings.warn(sentence, stacklevel=2)
        return source

    def _repair(self, source: int, post: Post, label: Label) -> Trip[None]:
        """Everybody has the source's parameters."""
        flat = [parameter.detach().contiguous().flatten().view(torch.uint8) for parameter in self.parameters]
        keys = [label.key(Way.REPLY, source)]
        (message,) = sealed([torch.cat(flat).to(post.carrier)], keys)
        yield from post.spread(message, source)
        (everything,) = opened([message], keys, [source])
        for parameter, part in zip(
            self.parameters, everything.split([len(part) for part in flat]), strict=True
        ):
            values = part.to(parameter.device).clone().view(parameter.dtype)  # at an address where it may be
            parameter.detach().copy_(values.view(parameter.shape))


def checked(every: int, on_drift: str) -> tuple[int, str]:
    """How often, and what then, as a `Likeness` takes them."""
    checks.integer("compare_every", every)
    if every < 0:
        raise ValueError(f"compare_every is {every}; use a number of steps, or 0 for never")
    checks.choice("on_drift", on_drift, *WAYS)
    return every, on_drift


def told_apart(said: Mapping[int, object], step: int, seat: Seat) -> tuple[int, str]:
    """Of workers who do not all say the same: one of the most, and a sentence that names the others."""
    most, count = Counter(said.values()).most_common(1)[0]  # of equally many, those of the first worker
    others = [worker for worker, each in said.items() if each != most]
    names = " and ".join(filter(None, (", ".join(map(str, others[:-1])), str(others[-1]))))
    who = (
        f"workers {names} of {seat.workers} have"
        if len(others) > 1
        else f"worker {names} of {seat.workers} has"
    )
    return next(worker for worker, each in said.items() if each == most), (
        f"{who} other parameters than the other {count} at step {step}, though all were given the same results; "
        "resume all workers from one checkpoint, or attach with on_drift='broadcast'"
    )


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def _refuse(_messages: Messages) -> torch.Tensor:
    raise AssertionError("what everybody hears is not combined")
