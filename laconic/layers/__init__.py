"""What hooks see of layers: which there are, the rows that go in and come back, and gradients as products of them.

It knows modules and autograd, and nothing of workers. It imports `kernels` and `core`.
"""
