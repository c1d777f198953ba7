"""How a step runs: the lane, the reducer that takes gradients through a technique and a place, and the mixer.

It imports the rooms above it, and knows nothing of models and hooks.
"""
