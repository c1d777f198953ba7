"""A technique as a plain DDP communication hook, for frameworks that take a callable.

    DDPStrategy(ddp_comm_hook=laconic.Hook(laconic.Dense(dtype="bf16")))

A framework that takes a hook may still not use it (Lightning leaves it out on CPU), so a hook that was never
called says so when the program ends.

A hook sees buckets but no names. DDP's first buckets depend on the model alone, so parameters are numbered in
the order of their first appearance, and state is keyed by these numbers.
"""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING, Any

from laconic.core.meter import Stats
from laconic.core.place import Place, Traffic
from laconic.core.technique import Scaler, Setting
from laconic.engine.alarm import PATIENCE
from laconic.engine.reducer import Reducer
from laconic.places.peers import Peers
from laconic.sources.attach import attaching, check, compare
from laconic.sources.attachment import Attachment
from laconic.sources.ddp import Buckets
from laconic.sources.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    import torch.distributed as dist

    from laconic.core.technique import Technique


class Hook:
    """`technique`, one for gradients, as a callable `(state, bucket) -> Future`; it opens at the first bucket.

    Give `process_group` where the DDP model has one of its own: a hook is not told. `scaler` and `patience` are as
    in `attach`.
    """

    def __init__(
        self,
        technique: Technique,
        process_group: dist.ProcessGroup | None = None,
        place: Place = Peers(),
        scaler: Scaler | None = None,
        patience: float = PATIENCE,
    ) -> None:
        if getattr(technique, "reads", "gradients") != "gradients":
            raise TypeError(
                f"{technique!r} needs the model, and a hook sees buckets alone; use laconic.attach"
            )
        self.__name__ = self.__qualname__ = "laconic"  # DDP reads both
        self.technique, self.place = technique, place
        self._group, self._scaler, self._patience = process_group, scaler, patience
        self._attachment: Attachment | None = None
        self._numbers: dict[int, str] = {}
        self._loaded: Mapping[str, Any] | None = None
        atexit.register(self._say_if_unused)

    def __call__(self, _state, bucket):  # type: ignore[no-untyped-def]  # DDP misreads postponed annotations
        """A future of the bucket's gradients as all workers have them."""
        if self._attachment is None:
            atexit.unregister(self._say_if_unused)
            self._attachment = self._open(bucket.buffer().device)
        return self._attachment.reduce(bucket)

    def stats(self) -> Stats:
        """Steps, bytes sent and received, and seconds by phase."""
        return self._attachment.stats() if self._attachment else Stats()

    def state_dict(self) -> Mapping[str, Any]:
        """All that a resumed run needs to go on exactly."""
        return self._attachment.state_dict() if self._attachment else self._loaded or {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The run goes on where `state` was taken."""
        self._loaded = state
        if self._attachment is not None:
            self._attachment.load_state_dict(state)

    def _open(self, device: torch.device) -> Attachment:
        more = " with a scaler" if self._scaler is not None else ""
        with attaching(self._group, self._patience) as alarm:
            check(self.technique, self.place)
            scheme = self.technique.bind(Setting(alarm.seat.workers, self.place.offers))
            self.technique = scheme.technique
            compare(alarm, f"{self.technique!r} at {self.place!r}{more}")
            post = self.place.open(alarm.group, device, Traffic(scheme.routes, scheme.surveys))
            reducer = Reducer(scheme, post, device, alarm=alarm)
            if self._scaler is not None:
                reducer.scaled(self._scaler)
            watch = Watch(reducer, lambda parameter: id(parameter) in self._numbers)
            attachment = Attachment(self.technique, Buckets(reducer, self._name), reducer, watch)
            if self._loaded:
                attachment.load_state_dict(self._loaded)
        return attachment

    def _say_if_unused(self) -> None:
        print(
            f"laconic: the hook for {self.technique!r} was never called, so gradients were exchanged without it; "
            "use laconic.attach(ddp_model, technique) where a framework ignores its hook",
            file=sys.stderr,
        )

    def _name(self, parameter: torch.Tensor) -> str:
        return self._numbers.setdefault(id(parameter), f"parameter {len(self._numbers)}")
