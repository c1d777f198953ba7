import math

import pytest
import torch

from laconic import rng
from laconic.rotation import hadamard, rotate, rotate_back


def _sylvester(width):
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < width:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(width)


@pytest.mark.parametrize("width", [1, 2, 8, 256, 4096])
def test_it_is_the_hadamard_matrix(width):
    rows = torch.randn(3, width, dtype=torch.float64)
    assert torch.allclose(hadamard(rows), rows @ _sylvester(width), atol=1e-12)


@pytest.mark.parametrize("width", [1, 2, 64, 4096])
def test_rotating_back_undoes_a_rotation_and_norms_are_kept(width):
    rows, signs = torch.randn(5, width), rng.signs(1, 5 * width).view(5, width)
    rotated = rotate(rows, signs)
    # each of log2(width) additions rounds by at most 2^-24 relative, there and back
    tolerance = 2 * (math.log2(width) + 1) * 2**-23
    assert torch.allclose(rotated.norm(dim=1), rows.norm(dim=1), rtol=tolerance)
    assert (rotate_back(rotated, signs) - rows).norm() <= tolerance * rows.norm()


def test_a_rotated_spike_is_spread_evenly():
    rows = torch.zeros(1, 4096)
    rows[0, 17] = 64.0
    assert rotate(rows, rng.signs(3, 4096).view(1, -1)).abs().unique().tolist() == [1.0]


def test_rotated_coordinates_are_close_to_normal():
    heavy = torch.randn(64, 4096, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) ** 5
    rotated = rotate(heavy, rng.signs(4, heavy.numel()).view_as(heavy))
    unit = rotated / rotated.square().mean(1, keepdim=True).sqrt()
    assert (unit.abs() > 2.1539).double().mean().item() == pytest.approx(1 / 32, rel=0.1)
