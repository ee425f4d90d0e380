"""The nano BLOOM that ships with the package, and functions that load it and other models."""

from ntk_alibi.models.loading import load, nano_bloom_path

__all__ = ["load", "nano_bloom_path"]
