"""What the workers of one attachment tell each other through the process group's store, apart from all messages.

Keys, under the group's name and the number of the attachment on it:

    technique   what worker 0 attached
    alike       how many attached the same
    beats/k     grows as long as worker k lives
    alarm       somebody has something to say
    symptom     what somebody saw who does not know why
    here/k      worker k has heard that, and lives
    failed      who failed for a reason of its own, and the reason; the first to say so
    verdict     what has happened, as all will say it; the first to say so
    alike s n/k the digest of worker k's parameters when it saved its state in step s, for the nth time
    left/k      worker k needs nobody any more, and why
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


class Board:
    """The store, for one attachment to `group`; what is read may be missing, and nothing waits."""

    def __init__(self, group: dist.ProcessGroup, patience: float) -> None:
        self._worker = dist.get_rank(group)
        shared: Any = c10d._get_default_store()
        self.holder = _holder(shared, group)
        """The worker in whose process the store lies, if it is one of the group's."""
        self._client = (
            shared.clone()
        )  # a client serves one thread at a time, and the program's may wait for long
        self._client.set_timeout(timedelta(seconds=patience))
        mine = dist.PrefixStore(f"laconic/{group.group_name}", self._client)
        number = mine.add(f"attached/{self._worker}", 1)
        self._store = dist.PrefixStore(str(number), mine)

    def write(self, key: str, text: str) -> None:
        """The key has this text."""
        self._store.set(key, text)

    def write_first(self, key: str, text: str) -> str:
        """The key has this text, unless it had one: what it has."""
        return str(self._store.compare_set(key, "", text).decode())

    def read(self, key: str) -> str | None:
        """The key's text, if it has one."""
        return str(self._store.get(key).decode()) if self._store.check([key]) else None

    def count(self, key: str, more: int = 0) -> int:
        """The key's number, which grows by `more`."""
        return int(self._store.add(key, more))

    def written(self, keys: list[str]) -> bool:
        """Whether all of these have a text."""
        return bool(self._store.check(keys))


def _holder(store: Any, group: dist.ProcessGroup) -> int | None:
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    ranks = dist.get_process_group_ranks(group)
    launchers = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return ranks.index(0) if isinstance(store, dist.TCPStore) and not launchers and 0 in ranks else None
