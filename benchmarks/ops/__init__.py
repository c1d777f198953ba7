"""Ops against their peers: `python -m benchmarks.ops`, or `laconic bench` in a clone."""
