"""What every room speaks of: techniques and their turns, pieces, routes, memory, meters, CUDA streams, checks.

Types and bookkeeping only: it imports `numerics` and `kernels`, and starts no collective.
"""
