"""docs/faults.md from the outcomes of trials."""

from __future__ import annotations

import json
from pathlib import Path


def write(outcomes: Path, out: Path) -> None:
    """The page."""
    rows = [json.loads(line) for line in outcomes.read_text().splitlines()]
    out.write_text(str(len(rows)))
