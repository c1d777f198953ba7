"""The one error of messages that are not what their worker sent."""

from __future__ import annotations


class DamagedMessage(ValueError):  # noqa: N818 (it is the message that is at fault)
    """A message that cannot be what its worker sent; `about` says what it was about, where that helps."""

    def __init__(self, worker: int, fault: str, about: str = "") -> None:
        self.worker, self.fault, self.about = worker, fault, about
        super().__init__(f"the message of worker {worker}{f' about {about}' if about else ''} {fault}")

    def __reduce__(self) -> tuple[type[DamagedMessage], tuple[int, str, str]]:
        return type(self), (self.worker, self.fault, self.about)
