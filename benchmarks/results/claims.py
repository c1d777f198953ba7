"""The papers' headline claims beside what the records show."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.results.board import Board, lost, missed, sooner
from benchmarks.results.rules import MISSING
from laconic.report.summary import Row

Place = tuple[str, int, str]
SLOW: tuple[Place, ...] = (("fashion", 4, "100mbit"), ("fashion", 4, "1gbit"), ("text", 4, "100mbit"))
COMMAND = "python -m benchmarks.compare --preset paper"


class Claim(NamedTuple):
    """What a paper claims, the parts of what was measured (None for what is missing), and how to measure it."""

    paper: str
    claim: str
    measured: Callable[[Board], list[str | None]]
    command: str


def measured(claim: Claim, board: Board) -> str:
    """What the records show, or a dash."""
    return "; ".join(part for part in claim.measured(board) if part is not None) or MISSING


def _thc(board: Board) -> list[str | None]:
    return [_against(board, "thc", "fp16", "the fp16 hook", where) for where in (*SLOW, ("text", 4, "1gbit"))]


def _votes(board: Board) -> list[str | None]:
    return [_sparse_against_all(board, split) for split in ("iid", "labels:2")]


def _gennorm(board: Board) -> list[str | None]:
    return [_thrift(board, "gennorm", where) for where in SLOW if where[2] == "100mbit"]


def _dad(board: Board) -> list[str | None]:
    text = "rank_dad:two_way=true,rank=28,dtype=bf16"
    specs = (("dad", SLOW[0]), ("rank_dad", SLOW[0]), ("dad", SLOW[2]), (text, SLOW[2]))
    return [_thrift(board, spec, where) for spec, where in specs]


def _crossover(board: Board) -> list[str | None]:
    places = (("fashion", 8, "100mbit"), ("fashion", 8, "1gbit"))
    return [_gossip(board, where) for where in places]


CLAIMS = (
    Claim(
        "THC (Li et al., NSDI 2024)",
        "The target accuracy 1.28 to 1.33 times sooner with a software server, 1.40 to 1.47 times with aggregation "
        "in the switch, than the best of fp32 and fp16 all-reduce, TernGrad, top-K and DGC.",
        _thc,
        COMMAND,
    ),
    Claim(
        "S³GD-MV (Park and Lee, 2023)",
        "Votes of the largest tenth of the coordinates reach a higher accuracy than the signs of all of them "
        "(signSGD with majority vote), with 15 workers, at a lower cost.",
        _votes,
        "python -m benchmarks.compare --preset votes",
    ),
    Claim(
        "GenNorm (Chen et al., ICC 2022; CO3, 2022)",
        "Gradients of 4 and 8 bits follow a generalized normal so well that a code built from its fit needs few more "
        "bits than their entropy, and training keeps its accuracy.",
        _gennorm,
        COMMAND,
    ),
    Claim(
        "dAD and rank-dAD (Baker et al., 2021)",
        "Factors instead of gradients: dAD is exact, and rank-dAD learns about as well with a fraction of the bytes.",
        _dad,
        COMMAND,
    ),
    Claim(
        "Crossover-SGD (Yeo et al., 2020)",
        "Gossip of 8 workers on ImageNet ends at 75.73 % where all-reduce ends at 75.67 %, with iterations of 0.495 "
        "s instead of 0.566 s (1.14 times).",
        _crossover,
        COMMAND,
    ),
)


def _against(board: Board, spec: str, other: str, name: str, where: Place) -> str | None:
    row, peer = board.row(spec, *where), board.row(other, *where)
    if row is not None and missed(row):
        return f"{_words(where)}: the target is not reached"
    ratio = sooner(row, [peer]) if row is not None and peer is not None else None
    return (
        None if ratio is None else f"{_words(where)}: {ratio} sooner than {name}".replace("> ", "more than ")
    )


def _thrift(board: Board, spec: str, where: Place) -> str | None:
    """The row's share of plain DDP's bytes, and what it loses."""
    row, plain = board.row(spec, *where), board.row("ddp", *where)
    share = _share(row, plain) if row is not None and plain is not None else None
    if row is None or plain is None or share is None:
        return None
    return f"{_words(where)}: {row.label} sends {share:.3f} of plain DDP's bytes{_ends(row, plain)}"


def _gossip(board: Board, where: Place) -> str | None:
    row, plain = board.row("crossover:overlap=true", *where), board.row("ddp", *where)
    if row is None or plain is None or row.step_seconds is None or plain.step_seconds is None:
        return None
    ratio = plain.step_seconds.mean / row.step_seconds.mean
    return f"{_words(where)}: steps {ratio:.2f} times as fast as plain DDP's{_ends(row, plain)}"


def _sparse_against_all(board: Board, split: str) -> str | None:
    where = ("fashion", 15, "none", split)
    sparse, everything = (board.row(f"sign_vote:density={density}", *where) for density in ("0.1", "1"))
    if sparse is None or everything is None or sparse.final is None or everything.final is None:
        return None
    ends = f"{100 * sparse.final.mean:.2f} % against {100 * everything.final.mean:.2f} %"
    share = _share(sparse, everything)
    return f"fashion, {split}: {ends}" + ("" if share is None else f", with {share:.2f} of the bytes")


def _share(row: Row, other: Row) -> float | None:
    """Of the other's bytes, where both were counted."""
    if row.bytes_per_step is None or other.bytes_per_step is None:
        return None
    return row.bytes_per_step.mean / other.bytes_per_step.mean


def _ends(row: Row, plain: Row) -> str:
    gap = lost(row, plain)
    if gap is None or math.isinf(gap):
        return "" if gap is None else " and diverges"
    unit = "points of accuracy" if row.setting.metric == "accuracy" else f"% of {row.setting.metric}"
    return f" and ends {abs(gap):.2f} {unit} {'behind' if gap > 0 else 'ahead'}"


def _words(where: Place) -> str:
    return f"{where[0]}, {where[1]} workers, {where[2]}"
