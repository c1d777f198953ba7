"""What the workers of tests have ready when they are forked: tables that each would otherwise make again.

They depend on settings alone, and a training process makes each of them once.
"""

import torch

import laconic
from laconic.core.technique import Bucket
from laconic.numerics.generalized_normal import BETAS, grid_beta, spread
from laconic.numerics.minifloat import FORMATS
from tests.support.by_hand import Group

BUCKET = Bucket(("w",), (512,), torch.float32)


def _once(technique, workers):
    Group(technique, workers).reduce(BUCKET, list(torch.randn(workers, 512)))


torch.set_num_threads(1)  # a pool of threads would not live on in a fork
for name, minifloat in FORMATS.items():
    _once(laconic.GenNorm(name), 2)
    for beta in range(BETAS):
        spread(grid_beta(beta), minifloat)
for workers in (1, 2, 3, 4, 8):
    _once(laconic.THC(block=256, entropy=True), workers)
