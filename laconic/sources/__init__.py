"""Whence gradients come: DDP's buckets, layers' rows, gossip after the optimizer's step; and `attach`.

Hooks on models and optimizers come and go here. It imports the rooms above it.
"""
