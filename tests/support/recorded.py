"""Run records that tests share: lines, files, finished runs and realistic comparisons."""

import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from laconic.lab import records
from laconic.report import summary

Line = dict[str, Any]
HEADER: Line = {
    "kind": "header",
    "version": 1,
    "label": "plain DDP",
    "spec": "plain",
    "technique": "DistributedDataParallel",
    "family": "plain",
    "task": "fashion",
    "metric": "accuracy",
    "higher_is_better": True,
    "workers": 4,
    "link": "100mbit",
    "commit": "b7cb441",
    "device": "cpu",
    "shaped": True,
    "note": "",
    "warning": "",
    "seed": 0,
    "split": "iid",
    "batch": 32,
    "steps": 200,
    "lr": 0.05,
    "momentum": 0.9,
    "optimizer": "sgd",
    "eval_every": 20,
    "size": "default",
    "parameters": 3_800_000,
    "versions": {"laconic": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11.7"},
    "kernels": "cpu: avx512",
    "machine": "AMD EPYC, 2 cores",
    "started": "2026-11-15T08:00:00+00:00",
}
END: Line = {"kind": "end", "seconds": 83.0, "checksum": "9f3a", "replicas_equal": True}
MIXED: Line = {**END, "replicas_equal": False, "consensus": 2.5e-5}
THC: Line = {"label": "THC", "family": "laconic"}

# label, spec, family, seconds a step, bytes a step, how much slower it learns
TECHNIQUES = (
    ("plain DDP", "plain", "plain", 2.05, 22_900_000, 1.0),
    ("fp16 hook", "fp16", "peer", 1.09, 11_500_000, 1.0),
    ("PowerSGD rank 2", "powersgd:rank=2", "peer", 0.31, 420_000, 1.35),
    ("Dense bf16", "dense:dtype=bf16", "laconic", 1.12, 11_480_000, 1.02),
    ("THC 4 bit", "thc:bits=4", "laconic", 0.47, 2_900_000, 1.06),
)


def header(**changes: object) -> Line:
    """The header of a plain run with these changes."""
    return HEADER | changes


def step(number: int, seconds: float = 1.0, **changes: object) -> Line:
    """A step line of 100 bytes."""
    line = {"kind": "step", "step": number, "seconds": seconds, "loss": 1.0, "tx": 100, "rx": 100}
    return line | {"sent": None, "received": None, "phases": {}, "error": None} | changes


def evaluation(number: int, accuracy: float | None, seconds: float, **changes: object) -> Line:
    """An evaluation line after so many steps of 100 bytes."""
    loss = None if accuracy is None else 1 - accuracy
    line = {"kind": "eval", "step": number, "accuracy": accuracy, "loss": loss, "seconds": seconds}
    return line | {"tx": 100 * number, "sent": None} | changes


def write(path: Path, lines: Iterable[Line]) -> Path:
    """The lines are in the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def run(path: Path, *lines: Line, **changes: object) -> records.Run:
    """A finished run of these lines, under a header with these changes."""
    return records.read(write(path, [header(**changes), *lines, END]))


def technique(path: Path, seconds: float, sent: int, **changes: object) -> records.Run:
    """A run that reaches 90 % after so many seconds and bytes."""
    return run(path, step(1, tx=sent), evaluation(1, 0.9, seconds, tx=sent), **changes)


def rows_of(tmp_path: Path, *others: Line, plain: tuple[float, int] = (10.0, 1000)) -> list[summary.Row]:
    """Rows of plain DDP and of others, each a change of header with its seconds and bytes."""
    runs = [technique(tmp_path / "plain.jsonl", *plain)]
    for number, other in enumerate(others):
        changes = {name: value for name, value in other.items() if name not in ("seconds", "sent")}
        path = tmp_path / f"{number}.jsonl"
        runs.append(technique(path, other["seconds"], other["sent"], spec=str(number), **changes))
    return summary.summarize(runs)


def synthetic(folder: Path, seeds: int = 2, steps: int = 200, **changes: object) -> list[records.Run]:
    """Realistic runs of five techniques, recorded in the folder."""
    paths = [
        write(folder / f"{spec.replace(':', '-')}-{seed}.jsonl", _lines(row, seed, steps, changes))
        for row in TECHNIQUES
        for seed in range(seeds)
        for spec in [row[1]]
    ]
    return records.find(paths)


def _lines(row: tuple[str, str, str, float, int, float], seed: int, steps: int, changes: Line) -> list[Line]:
    label, spec, family, seconds, size, delay = row
    rng = random.Random(f"{label} {seed}")
    named = {"label": label, "spec": spec, "family": family, "technique": f"{spec}()", "seed": seed}
    lines, clock, sent = [header(steps=steps, **named | changes)], 0.0, 0
    for number in range(1, steps + 1):
        lines.append(_synthetic_step(rng, number, family, seconds, size, delay))
        clock, sent = clock + lines[-1]["seconds"], sent + lines[-1]["tx"]
        if number % 20 == 0:
            share = 0.895 - 0.55 * math.exp(-number / (32 * delay)) + rng.gauss(0, 0.004)
            extra = {"tx": sent, "sent": sent if family == "laconic" else None}
            lines.append(evaluation(number, round(share, 4), round(clock, 3), **extra))
    return [*lines, END]


def _synthetic_step(
    rng: random.Random, number: int, family: str, seconds: float, size: int, delay: float
) -> Line:
    loss = 0.33 + 1.97 * math.exp(-number / (26 * delay)) + abs(rng.gauss(0, 0.05))
    took = seconds * rng.uniform(0.96, 1.06) + (0.8 if number == 1 else 0)
    phases = {"compute": 0.11, "waiting": took - 0.11}
    if family == "laconic":
        moving = took - 0.15
        phases |= {
            "encode": 0.011,
            "up": 0.52 * moving,
            "combine": 0.014,
            "down": 0.46 * moving,
            "decode": 0.009,
        }
    sent = round(size * rng.uniform(0.995, 1.005))
    return step(number, took, loss=loss, tx=sent, rx=sent, phases=phases)


def timed(
    path: Path, workers: int, spec: str, seconds: float, compute: float, sent: int, link: str
) -> records.Run:
    """A finished run of twelve equal steps of `fashion`, which compute so long and send so many bytes."""
    steps = [
        step(number, seconds, tx=sent, rx=sent, sent=sent, received=sent, phases={"compute": compute})
        for number in range(1, 13)
    ]
    return run(
        path, *steps, workers=workers, spec=spec, link=link, shaped=link != "none", parameters=3_761_034
    )
