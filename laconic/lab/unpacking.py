"""The texts in a pack of records (report/packs.py), of which there is an end: a small file may unpack to anything."""

from __future__ import annotations

import lzma
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT = 1 << 30
"""Bytes that a pack may unpack to; those of all records behind this package's pages are a fiftieth."""


def texts(path: Path) -> dict[Path, str]:
    """What each file in the pack says, by its path in the pack's."""
    try:
        with lzma.open(path) as packed, _opened(_Limited(packed, path)) as pack:
            return {path / name: content.decode() for name, content in _files(pack)}
    except (tarfile.TarError, UnicodeDecodeError, EOFError, lzma.LZMAError) as error:
        raise ValueError(
            f"{path} is no pack of records ({error}); give one that laconic pack wrote"
        ) from None


def _opened(unpacked: _Limited) -> tarfile.TarFile:
    return tarfile.open(fileobj=unpacked, mode="r|")  # type: ignore[call-overload]  # it only reads


def _files(pack: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for entry in pack:
        if entry.issparse():  # it would be longer than what is read of it
            raise tarfile.ReadError("it has a sparse file")
        file = pack.extractfile(entry) if entry.isfile() else None
        if file is not None:
            yield entry.name, file.read()


class _Limited:
    """What is unpacked, of which no more than `LIMIT` bytes are read."""

    def __init__(self, packed: lzma.LZMAFile, path: Path) -> None:
        self._packed, self._path, self._left = packed, path, LIMIT

    def read(self, size: int) -> bytes:
        """The next bytes."""
        content = self._packed.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise ValueError(
                f"{self._path} unpacks to more than {LIMIT >> 20} MiB, as no pack of records does; "
                "if you trust it, unpack it and give the directory"
            )
        return content
