"""The comparison that comes with Laconic: command lines of `laconic compare`, by the name of their preset.

quick   A few minutes on 2 cores, without a data set: what `laconic compare` does when it is told nothing.

The large ones, which need hours, are in a clone of the repository: benchmarks/presets.py.
"""

DEFAULT = "quick"

ROWS = "ddp fp16 powersgd:rank=2 thc sign_vote:density=0.1@lr=0.003,momentum=0 gennorm rank_dad crossover:codec=int8"

PRESETS = {
    DEFAULT: (
        f"digits --size wide --workers 4 --link 100mbit --steps 56 --eval-every 4 --techniques {ROWS}",
    ),
}
