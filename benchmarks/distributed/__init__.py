"""Benchmark of attention over several processes: bytes, balance, memory, and links."""
