"""Bytes on the wire: how codes, votes, levels and segments are written as messages and read again.

A message is untrusted, so every reader checks every length. It imports `numerics`, `kernels` and `core`.
"""
