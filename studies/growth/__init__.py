"""Comparison of rules for the factor of a text that grows under a cache: `-m studies.growth`."""
