"""Benchmarks against other libraries: `python -m benchmarks --help`."""
