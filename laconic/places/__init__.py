"""Where messages meet: how a piece travels to whoever combines it, and back.

A place knows routes and bytes, and no technique. It imports `core`.
"""
