"""Finding the processes of a lab."""

from pathlib import Path


def members(name: str) -> list[int]:
    """The processes that carry this lab's name."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if name.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
