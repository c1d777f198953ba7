"""THC's messages close to their entropy: codes up, sums down (coded_runs.py: format, normal_codes.py: models).

Codes are 2 to 8 bits wide and are symbols as they are. Sums are where their lane is a byte, which is the usual one;
wider ones are not coded. The number of contributors stands in front of the sums. Coordinates of a shard that belong
to no block have code 0 and sum 0, and are not sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from laconic.core.blocks import BlockPiece
from laconic.core.technique import Messages
from laconic.kernels import packing
from laconic.kernels import thc as kernels
from laconic.messages import coded_runs, normal_codes
from laconic.numerics import ans
from laconic.numerics.damage import DamagedMessage

BYTE = 8


@dataclass(frozen=True)
class CodedSums:
    """The messages of one piece; `table` is from codes of `bits` bits to integers, whose sums have `lane` bits."""

    table: tuple[int, ...]
    bits: int
    lane: int
    piece: BlockPiece

    @property
    def longest(self) -> int:
        """The bytes of a message or a reply, at most."""
        return coded_runs.longest(max(self.piece.width * self.bits // 8, self._row), kernels.COUNT_BYTES)

    def seal_codes(self, packed: torch.Tensor) -> list[torch.Tensor]:
        """A message for every shard, from its row of packed codes."""
        family = normal_codes.of_codes(self.table)
        return [
            coded_runs.seal(family, self._unpacked(row, self._used(shard)), row)
            for shard, row in enumerate(packed)
        ]

    def add(self, messages: Messages, shard: int) -> torch.Tensor:
        """The message of the sums of all workers' integers."""
        used = self._used(shard)
        codes = torch.zeros(len(messages), self.piece.width, dtype=torch.uint8)
        for worker, (message, row) in enumerate(zip(messages, codes, strict=True)):
            with _from_worker(worker):
                row[:used] = self._codes(message.cpu(), used)
        reply = torch.empty(self._row, dtype=torch.uint8)
        every = [*self.table, *self.table[-1:] * (packing.SYMBOLS - len(self.table))]
        kernels.thc_combine(codes, torch.tensor(every), BYTE, self.lane, reply)
        sums, count = reply[: -kernels.COUNT_BYTES], reply[-kernels.COUNT_BYTES :].numpy().tobytes()
        return coded_runs.seal(self._family, sums[:used], sums, count)

    def unseal_sums(self, replies: Messages) -> torch.Tensor:
        """Rows as they are without coding: every shard's sums and the number of contributors."""
        rows = torch.zeros(len(replies), self._row, dtype=torch.uint8)
        for shard, (reply, row) in enumerate(zip(replies, rows, strict=True)):
            with _from_worker(shard):
                opened = coded_runs.unseal(self._family, reply.cpu(), self._used(shard), kernels.COUNT_BYTES)
                sums = self._checked(opened, self._row - kernels.COUNT_BYTES)
                row[: len(sums)] = sums
                row[-kernels.COUNT_BYTES :] = torch.frombuffer(bytearray(opened.side), dtype=torch.uint8)
        return rows

    def _codes(self, message: torch.Tensor, count: int) -> torch.Tensor:
        """The codes in a worker's message."""
        opened = coded_runs.unseal(normal_codes.of_codes(self.table), message, count)
        content = self._checked(opened, self.piece.width * self.bits // 8)
        codes = self._unpacked(content, count) if opened.symbols is None else content
        ans.require(not count or int(codes.max()) < len(self.table), "has a code that there is not")
        return codes

    def _checked(self, opened: coded_runs.Opened, size: int) -> torch.Tensor:
        """What is plain, which has so many bytes, or symbols."""
        if opened.symbols is not None:
            return opened.symbols
        assert opened.plain is not None
        ans.require(len(opened.plain) >= size, "is cut short")
        ans.require(len(opened.plain) == size, "is longer than it says")
        return opened.plain

    @property
    def _family(self) -> coded_runs.Family:
        """The models of sums."""
        return coded_runs.NONE if self.lane > BYTE else normal_codes.of_sums(self.table, self.piece.shards)

    @property
    def _row(self) -> int:
        """The bytes of a reply without coding."""
        return self.piece.width * self.lane // 8 + kernels.COUNT_BYTES

    def _used(self, shard: int) -> int:
        """How many coordinates of a shard belong to blocks."""
        last = self.piece.blocks[-1]
        return min(self.piece.width, max(0, last.at + last.size - shard * self.piece.width))

    def _unpacked(self, packed: torch.Tensor, count: int) -> torch.Tensor:
        codes = torch.empty(count, dtype=torch.uint8)
        packing.unpack_symbols(packed, self.bits, codes)
        return codes


@contextmanager
def _from_worker(worker: int) -> Iterator[None]:
    """What is wrong with a message is said of this worker's."""
    try:
        yield
    except ValueError as error:
        raise DamagedMessage(worker, str(error)) from None
