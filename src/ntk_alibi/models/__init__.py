"""The small BLOOM that ships with the package, and how to load it or any other one."""

from ntk_alibi.models.loading import load, nano_bloom_path

__all__ = ["load", "nano_bloom_path"]
