"""The records of many runs in one small file, which a repository can hold and `records.find` reads.

It is a tar file of the records, by their names in the directory that they are from: `tar xf` gives that directory
again, and `laconic compare --preset … --out` goes on from there. Of full trainings on the bare machine a step keeps
its number, loss, seconds and bytes, and loses phases and readings: the cost model takes these from short runs.
Records of unfinished runs are left out. The same records make the same file, bit for bit.
"""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING

from laconic.lab.records import PACKED, read
from laconic.report.projection import shows_only_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEPT = ("kind", "step", "seconds", "loss", "sent")


def write(directory: Path, path: Path) -> Path:
    """The directory's records are in the file."""
    if not path.name.endswith(PACKED):
        raise ValueError(f"records cannot be packed into {path}; use a name that ends in {PACKED}")
    files = sorted(directory.rglob("*.jsonl"))
    if not files:
        raise ValueError(f"no *.jsonl file in {directory}; name a directory of run records")
    with tarfile.open(path, "w:xz") as pack:
        for file in files:
            _add(pack, str(file.relative_to(directory)), "".join(f"{line}\n" for line in _packed(file)))
    return path


def _packed(file: Path) -> Iterator[str]:
    """The record's lines, as far as they are kept."""
    run = read(file)
    lines = file.read_text(encoding="utf-8").splitlines() if run.end is not None else []
    if run.header.link == "none" and not shows_only_time(run):
        return map(_thin, lines)
    return iter(lines)


def _thin(line: str) -> str:
    values = json.loads(line)
    if values["kind"] != "step":
        return line
    return json.dumps({**{name: values[name] for name in KEPT if name in values}, "phases": {}})


def _add(pack: tarfile.TarFile, name: str, text: str) -> None:
    if text:
        content = text.encode()
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        pack.addfile(entry, io.BytesIO(content))
