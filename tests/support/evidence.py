"""Hand-made records of a small `paper`: trajectories on the bare machine, timings on links, full runs to check."""

from pathlib import Path

from tests.support.recorded import END, Line, evaluation, header, step, write

STEPS, EVERY = 100, 10
BARE: Line = {"link": "none", "shaped": False, "steps": STEPS, "eval_every": EVERY}
DDP: Line = {"spec": "ddp@lr=0.1", "label": "plain DDP", "family": "plain"}
FP16: Line = {"spec": "fp16@lr=0.1", "label": "fp16 hook", "family": "peer"}
POWER: Line = {"spec": "powersgd:rank=2@lr=0.1", "label": "PowerSGD, rank 2", "family": "peer"}
THC: Line = {"spec": "thc@lr=0.1", "label": "THC", "family": "laconic"}


def trajectory(folder: Path, technique: Line, best: float = 0.9, seed: int = 0, **changes: object) -> Path:
    """A training whose accuracy rises evenly until half of its steps, and stays there."""
    lines = [header(**BARE | technique | {"seed": seed} | changes)]
    for number in range(1, STEPS + 1):
        lines.append(step(number, 0.01, tx=None, rx=None, loss=1.0 / number))
        if number % EVERY == 0:
            value = best * min(1.0, number / (STEPS / 2))
            lines.append(evaluation(number, value, 0.01 * number, tx=None))
    return write(_path(folder, "none", technique, seed, changes), [*lines, END])


def timing(
    folder: Path,
    technique: Line,
    seconds: list[float],
    sent: int = 1000,
    seed: int = 0,
    first: tuple[float, int] | None = None,
    **changes: object,
) -> Path:
    """A short run on a link, whose settled steps take these seconds; `first`: seconds and bytes of as many before."""
    early, count = len(seconds), 2 * len(seconds)
    lines = [header(**technique | {"seed": seed, "steps": count, "eval_every": count} | changes)]
    slow, more = first or (seconds[0], sent)
    phases = {"compute": 0.1, "waiting": 0.4}
    lines += [step(1 + n, slow, tx=more, phases=phases) for n in range(early)]
    lines += [step(1 + early + n, each, tx=sent, phases=phases) for n, each in enumerate(seconds)]
    lines += [evaluation(count, 0.1, sum(seconds)), END]
    return write(_path(folder, "timing", technique, seed, changes), lines)


def full(folder: Path, technique: Line, seconds: float, seed: int = 0, **changes: object) -> Path:
    """A whole training on a link that took so long."""
    lines = [header(**technique | {"seed": seed, "steps": STEPS, "eval_every": EVERY} | changes)]
    lines += [evaluation(number, 0.9, seconds) for number in (50, STEPS)]
    return write(_path(folder, "full", technique, seed, changes), [*lines, END | {"seconds": seconds}])


def _path(folder: Path, kind: str, technique: Line, seed: int, changes: Line) -> Path:
    where = "-".join(str(value) for value in changes.values())
    return folder / f"{kind}-{technique['label']}-{seed}-{where}.jsonl".replace(":", "-").replace("/", "-")
