import math

import pytest
import torch

from laconic.numerics import rng
from laconic.numerics.hadamard import hadamard


def _sylvester(width):
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < width:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


@pytest.mark.parametrize("width", [1, 2, 8, 256, 4096])
def test_it_is_the_hadamard_matrix(width):
    rows = torch.randn(3, width, dtype=torch.float64)
    assert torch.allclose(hadamard(rows), rows @ _sylvester(width), atol=1e-10)


@pytest.mark.parametrize("width", [1, 2, 64, 4096])
def test_twice_is_the_width_times_and_norms_grow_by_its_root(width):
    rows = torch.randn(5, width)
    rotated = hadamard(rows)
    # each of log2(width) additions rounds by at most 2^-24 relative, there and back
    tolerance = 2 * (math.log2(width) + 1) * 2**-23
    assert torch.allclose(rotated.norm(dim=1), rows.norm(dim=1) * math.sqrt(width), rtol=tolerance)
    assert (hadamard(rotated) - width * rows).norm() <= tolerance * width * rows.norm()


def test_of_integers_it_is_exact():
    rows = torch.randint(-(2**15), 2**15, (3, 4096), dtype=torch.int32)
    assert torch.equal(hadamard(rows).double(), hadamard(rows.double()))
    assert torch.equal(hadamard(hadamard(rows).long()), 4096 * rows.long())


def test_a_rotated_spike_is_spread_evenly():
    rows = torch.zeros(1, 4096)
    rows[0, 17] = 3.0
    assert hadamard(rows * rng.signs(3, 4096)).abs().unique().tolist() == [3.0]


def test_rotated_coordinates_are_close_to_normal():
    heavy = torch.randn(64, 4096, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) ** 5
    rotated = hadamard(heavy * rng.signs(4, heavy.numel()).view_as(heavy))
    unit = rotated / rotated.square().mean(1, keepdim=True).sqrt()
    assert (unit.abs() > 2.1539).double().mean().item() == pytest.approx(1 / 32, rel=0.1)
