"""Looks at gradients, at their rank and at simulated workers, without a network.

It imports the rooms above it.
"""
