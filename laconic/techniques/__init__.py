"""What is said: one file a paper, each a frozen value that encodes, combines and decodes.

A technique knows neither its place nor its source. It imports the rooms above it, from `numerics` to `layers`.
"""
