"""An emulated slow network on one machine: links, jobs, tasks, data, the worker of a run, and comparisons.

It imports the library; the library imports nothing of it.
"""
