"""The cost model: what a step takes on a given link, and what would pay.

It imports the library, `lab` and `report`.
"""
