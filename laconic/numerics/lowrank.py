"""The best low-rank factors of a linear layer's gradient, from the rows whose product it is.

A gradient is G = ΔᵀA. Whatever is a sum of outer products is such a pair of rows: the factors of several workers,
stacked, or a batch with a residual's factors below it. So there is one function, `factor`, and one use of it more:

    factor                 P Qᵀ ≈ ΔᵀA of rank r
    factor_with_residual   P Qᵀ ≈ ΔᵀA + γ E, and the next E, which is the next columns of the same factors

Below, σ_i are the singular values of G, falling, and b_i and c_i its singular vectors. √σ_i goes to both sides: the
columns of P are √σ_i b_i, those of Q √σ_i c_i. So both have the same range of magnitudes, the narrowest there is
(a gradient's σ of 1e-4 would leave float16 little of a P that has it alone), rounding errors of either side weigh
alike, and whoever has the columns has σ_i = |P_i||Q_i|. The largest entry of every column of P is positive.

`method="qr"` is exact. What is called after the QR of both thin sides and the SVD of their N×N core is done on Gram
matrices in double precision, with less rounding error than in float32; it takes less time from 64 rows on:

    K_A = AAᵀ, K_Δ = ΔΔᵀ          products of float32 are exact in float64, so errors are 2^-53 of |A|² and |Δ|²
    K_A = R Rᵀ                    by eigenvectors, as rows may be equal or zero
    RᵀK_ΔR z = σ² z               because G Gᵀ = Δᵀ K_A Δ
    b σ = Δᵀ R z                  |Δᵀ R z|² = zᵀRᵀK_ΔR z = σ²
    c σ² = Aᵀ K_Δ R z             c σ = Gᵀb

Squaring costs half the digits: of 53 bits 26 are left, for float32's 24. Where σ is below 2^-23 |A||Δ|, what float32
rounds off ΔᵀA, the columns are zero. Nothing has the size of G. If there are as many rows as one width, G is smaller
than the other side's rows, and has fewer operations ahead of it (N(h_in + h_out) > 2 h_in h_out soon after): then
G itself is formed, and G Gᵀ or GᵀG, whichever is smaller, has the eigenvectors.

`method="block"` finds a few rows whose product has nearly all that the best r columns have, and factors those. Where
N, h_in and h_out are all 256 or more an eigendecomposition takes long, and this a quarter of the time:

    X_0 = orth(Gᵀ Ω), X_1 = orth(GᵀG X_0)        Ω has r + 8 random columns
    V = orth(X_0, X_1), G ≈ (G V) Vᵀ             both blocks together have less error than the last

A start from the last step's factors has more error: error feedback takes just their directions out of G.

`method="power"` is the paper's structured power iteration, one vector after another:

    b ← G Gᵀ b - Σ_j σ_j² b_j b_jᵀ b, normalized    G Gᵀ = Δᵀ A Aᵀ Δ, until its length σ² settles, or `sweeps` times
    σ = |Gᵀ b|, c = Gᵀ b / σ

with one change: b loses what it has of all b_j, which is the same for exact b_j (G Gᵀ b_j = σ_j² b_j). For others the
sum would leave parts of them behind, and where the rank is used up find them a second time.

N rows, h_in inputs, h_out outputs, r columns: Δ (N×h_out), A (N×h_in), P (h_out×r), Q (h_in×r), |·| of Frobenius.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Matrices = tuple[Tensor, ...]
Method = Literal["qr", "block", "power"]

ROUNDED_OFF = 2.0**-46
"""The share of (|A||Δ|)² that a direction's σ² needs to count: float32's rounding, squared."""
SETTLED = 1e-6
"""The share of σ² that a sweep has to change for another sweep to follow."""
LARGE = 256
"""Rows and columns from which on the block method takes less time than eigenvectors."""
BLOCKS, SPARE = 2, 8
"""Of the block method: how many blocks, and columns more than asked for. The error of the worst, random matrices is
then within 2 % of the least, that of gradients within 1 %; a third block takes half as long again."""


class Factors(NamedTuple):
    """A matrix of rank r, nearly G; what `sigma` and `energy` say of G is in double precision."""

    P: Tensor
    Q: Tensor
    sigma: Tensor
    """Singular values of G, falling: those of the columns, and with "qr" all others, too."""
    energy: Tensor
    """|G|²."""

    @property
    def rank(self) -> int:
        """The number of columns."""
        return self.P.shape[1]

    @property
    def kept(self) -> float:
        """The share of |G|² that the columns have; of nothing, all."""
        return kept_energy(self.sigma, self.rank, self.energy)

    def product(self) -> Tensor:
        """P Qᵀ, of the size of G."""
        return self.P @ self.Q.T

    def columns(self, start: int, stop: int) -> Factors:
        """The same with only these columns."""
        return self._replace(P=self.P[:, start:stop], Q=self.Q[:, start:stop])


def factor(
    deltas: Tensor,
    inputs: Tensor,
    rank: int,
    energy: float | None = None,
    method: Method = "qr",
    sweeps: int = 10,
) -> Factors:
    """The best factors of ΔᵀA with min(rank, N, h_out, h_in) columns.

    With `energy`, the fewest of these columns that keep that share of |G|², or all. Columns past the rank that G has
    are zero (with "power", rounding). If anything is not finite, all columns are NaN, and there is one at least.
    """
    deltas, inputs = _widened(deltas), _widened(inputs)
    most = min(rank, *deltas.shape, *inputs.shape)
    if most == 0:
        return _nothing(deltas, inputs)
    if method == "power":
        found = _power(_matrices(deltas, inputs), most, sweeps)
    elif method == "block" and BLOCKS * (most + SPARE) < min(*deltas.shape, *inputs.shape):
        found = _block(_matrices(deltas, inputs), most)
    else:
        found = _exact(deltas, inputs, most)
    return found if energy is None else found.columns(0, _count(found, energy))


def factor_with_residual(
    deltas: Tensor,
    inputs: Tensor,
    residual: Factors | None,
    memory: float,
    rank: int,
    energy: float | None = None,
    keep: int = 32,
    method: Method = "qr",
    sweeps: int = 10,
) -> tuple[Factors, Factors]:
    """The best factors of M = ΔᵀA + memory · E, and of what they leave of M the best with `keep` columns, the next E.

    A residual of all that was left is of full rank and as large as G; it is forgotten beyond its first columns. The
    share of |M|² so lost is 1 - kept_energy(sigma, columns of both); with keep = min(h_in, h_out) there is none.
    `sigma` is M's. Where anything is not finite both are NaN, and the caller is to stay with the residual it has.
    """
    if residual is not None:
        deltas = torch.cat([_widened(deltas), memory * residual.P.T])
        inputs = torch.cat([_widened(inputs), residual.Q.T])
    return _parted(factor(deltas, inputs, rank + keep, None, method, sweeps), rank, energy, keep)


def factor_matrix(matrix: Tensor, rank: int, energy: float | None = None) -> Factors:
    """The best factors of a matrix that is there already, with as many columns as `factor` would take."""
    matrix = _widened(matrix)
    most = min(rank, *matrix.shape)
    if most == 0:
        return _nothing(matrix.T, matrix)
    large = min(matrix.shape) >= LARGE and BLOCKS * (most + SPARE) < min(matrix.shape)
    found = _block((matrix,), most) if large else _from_matrix(matrix, most)
    return found if energy is None else found.columns(0, _count(found, energy))


def _parted(both: Factors, rank: int, energy: float | None, keep: int) -> tuple[Factors, Factors]:
    """The columns that are sent, and the next ones."""
    count = min(rank, both.rank) if energy is None else min(rank, _count(both, energy))
    return both.columns(0, count), both.columns(count, count + keep)


def singular_values(deltas: Tensor, inputs: Tensor) -> Tensor:
    """All min(N, h_out, h_in) singular values of ΔᵀA, falling."""
    return factor(deltas, inputs, rank=1).sigma


def effective_rank(sigma: Tensor, fraction: float) -> int:
    """How many singular values are above that fraction of the largest."""
    return int((sigma > fraction * sigma[:1]).sum())


def rank_by_energy(sigma: Tensor, share: float, energy: Tensor | None = None) -> int:
    """The fewest singular values whose squares have that share of `energy`, by default of all; all if none have."""
    sums = sigma.square().cumsum(0)
    if not len(sums) or sums[-1] == 0:
        return 0
    return min(len(sums), 1 + int((sums < share * (sums[-1] if energy is None else energy)).sum()))


def kept_energy(sigma: Tensor, rank: int, energy: Tensor | None = None) -> float:
    """The share of `energy`, by default of all squares, that the first `rank` have; of nothing, all."""
    total = sigma.square().sum() if energy is None else energy
    return float(sigma[:rank].square().sum() / total) if total else 1.0


def _count(found: Factors, energy: float) -> int:
    """How many columns keep that share; all, if that cannot be said."""
    return min(found.rank, rank_by_energy(found.sigma, energy, found.energy))


def _exact(deltas: Tensor, inputs: Tensor, most: int) -> Factors:
    if len(deltas) < min(deltas.shape[1], inputs.shape[1]):
        return _from_rows(deltas, inputs, most)
    return _from_matrix(deltas.T @ inputs, most)


def _from_matrix(matrix: Tensor, most: int) -> Factors:
    if matrix.shape[0] <= matrix.shape[1]:
        return _from_gradient(matrix, most)
    p, q, sigma, energy = _from_gradient(matrix.T, most)
    return _signed(q, p, sigma, energy)


def _from_rows(deltas: Tensor, inputs: Tensor, most: int) -> Factors:
    gram_in, gram_out = _gram(inputs), _gram(deltas)
    energy = (gram_in * gram_out).sum()
    if not energy.isfinite():
        return _unknown((deltas.T, inputs), most)
    root = _root(gram_in)
    squares, vectors = _eigen(root.T @ gram_out @ root, gram_in.trace() * gram_out.trace())
    sigma = squares.sqrt()
    y, divisor = root @ vectors[:, :most], _divisor(sigma[:most])
    p = (y / divisor.sqrt()).T.to(deltas.dtype) @ deltas
    q = (gram_out @ y / divisor**1.5).T.to(inputs.dtype) @ inputs
    return _signed(p.T, q.T, sigma, energy)


def _from_gradient(gradient: Tensor, most: int) -> Factors:
    """For a matrix that is not taller than wide."""
    gram = _gram(gradient)
    energy = gram.trace()
    if not energy.isfinite():
        return _unknown((gradient,), most)
    squares, vectors = _eigen(gram, energy)
    sigma, vectors = squares.sqrt(), vectors[:, :most]
    p = (vectors * sigma[:most].sqrt()).to(gradient.dtype)
    q = (vectors / _divisor(sigma[:most]).sqrt()).T.to(gradient.dtype) @ gradient
    return _signed(p, q.T, sigma, energy)


def _block(matrices: Matrices, most: int) -> Factors:
    if matrices[0].shape[0] < matrices[-1].shape[1]:  # the basis is for the shorter side
        p, q, sigma, energy = _block(tuple(matrix.T for matrix in reversed(matrices)), most)
        return _signed(q, p, sigma, energy)
    energy = _energy(matrices)
    if not energy.isfinite():
        return _unknown(matrices, most)
    start = _random(matrices[0].shape[0], most + SPARE).to(matrices[0])
    blocks = [_orthonormal(_transposed_times(matrices, start))]
    for _ in range(BLOCKS - 1):
        blocks.append(_orthonormal(_transposed_times(matrices, _times(matrices, blocks[-1]))))
    basis = _orthonormal(torch.cat(blocks, dim=1))
    q, p, sigma, _ = _from_gradient(_times(matrices, basis).T, most)
    return _signed(p, basis @ q, sigma[:most], energy)


def _power(matrices: Matrices, most: int, sweeps: int) -> Factors:
    energy = _energy(matrices)
    if not energy.isfinite():
        return _unknown(matrices, most)
    found = matrices[0].new_zeros(matrices[0].shape[0], 0)
    for start in _random(matrices[-1].shape[1], most).to(found).T:
        found = torch.cat(
            [found, _next_vector(_times(matrices, start), found, matrices, sweeps)[:, None]], dim=1
        )
    images = _transposed_times(matrices, found)
    sigma, order = images.double().norm(dim=0).sort(descending=True, stable=True)
    sigma = _rounded_off(sigma.square(), _scale(matrices)).sqrt()
    p = found[:, order] * sigma.sqrt().to(found)
    q = images[:, order] / _divisor(sigma).sqrt().to(images)
    return _signed(p, q, sigma, energy)


def _next_vector(start: Tensor, found: Tensor, matrices: Matrices, sweeps: int) -> Tensor:
    """The leading b of what the vectors found leave of G."""
    vector, square = _unit(_without(found, start)), start.new_zeros(())
    for _ in range(sweeps):
        rest = _without(found, _times(matrices, _transposed_times(matrices, vector)))
        before, square = square, rest.norm()
        vector = _unit(rest)
        if (square - before).abs() <= SETTLED * square:
            break
    return _unit(_without(found, vector))  # rounding leaves a part of those found where the rest is small


def _without(found: Tensor, vector: Tensor) -> Tensor:
    return vector - found @ (vector @ found)


def _matrices(deltas: Tensor, inputs: Tensor) -> Matrices:
    """Those whose product G is: itself, if it is not larger than both sides."""
    if len(deltas) < min(deltas.shape[1], inputs.shape[1]):
        return deltas.T, inputs
    return (deltas.T @ inputs,)


def _times(matrices: Matrices, x: Tensor) -> Tensor:
    for matrix in reversed(matrices):
        x = matrix @ x
    return x


def _transposed_times(matrices: Matrices, x: Tensor) -> Tensor:
    for matrix in matrices:
        x = matrix.T @ x
    return x


def _energy(matrices: Matrices) -> Tensor:
    if len(matrices) == 1:
        return matrices[0].double().square().sum()
    left, right = matrices
    return ((left.T @ left).double() * (right @ right.T)).sum()


def _scale(matrices: Matrices) -> Tensor:
    """(|A||Δ|)²; of G by itself, |G|²."""
    return torch.stack([matrix.double().square().sum() for matrix in matrices]).prod()


def _random(rows: int, columns: int) -> Tensor:
    """Where iterations start, always the same."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def _orthonormal(columns: Tensor) -> Tensor:
    return torch.linalg.qr(columns).Q


def _unit(vector: Tensor) -> Tensor:
    return vector / _divisor(vector.norm())


def _gram(rows: Tensor) -> Tensor:
    rows = rows.double()
    return rows @ rows.T


def _root(gram: Tensor) -> Tensor:
    """R with R Rᵀ = K."""
    squares, vectors = torch.linalg.eigh(gram)
    return vectors * squares.clamp_min(0).sqrt()


def _eigen(matrix: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, falling, and eigenvectors; zero for those that rounding takes."""
    squares, vectors = torch.linalg.eigh(matrix)
    return _rounded_off(squares, scale).flip(0), vectors.flip(1)


def _rounded_off(squares: Tensor, scale: Tensor) -> Tensor:
    return torch.where(squares > ROUNDED_OFF * scale, squares, 0)


def _divisor(sigma: Tensor) -> Tensor:
    """To divide by: what is divided by 0 is to be 0."""
    return torch.where(sigma > 0, sigma, torch.inf)


def _signed(p: Tensor, q: Tensor, sigma: Tensor, energy: Tensor) -> Factors:
    """With the largest entry of every column of P positive."""
    largest = p.gather(0, p.abs().argmax(0, keepdim=True))
    sign = torch.where(largest < 0, -1, 1)
    return Factors(p * sign, q * sign, sigma, energy)


def _widened(rows: Tensor) -> Tensor:
    return rows.to(torch.promote_types(rows.dtype, torch.float32))


def _nothing(deltas: Tensor, inputs: Tensor) -> Factors:
    """No columns, for no rows."""
    p, q = (rows.new_zeros(rows.shape[1], 0) for rows in (deltas, inputs))
    sigma = deltas.new_zeros(0, dtype=torch.float64)
    return Factors(p, q, sigma, sigma.sum())


def _unknown(matrices: Matrices, most: int) -> Factors:
    """What is not a number, for rows that are not."""
    first, last = matrices[0], matrices[-1]
    p, q = (first.new_full((width, most), torch.nan) for width in (first.shape[0], last.shape[1]))
    sigma = first.new_full((most,), torch.nan, dtype=torch.float64)
    return Factors(p, q, sigma, sigma.sum())
