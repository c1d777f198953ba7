"""The results page, from records: `python -m benchmarks.results`."""
