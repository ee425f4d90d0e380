"""Biases: what is added to the score of a query and a key."""

from ntk_alibi.biases.base import BiasObject, KernelBias

__all__ = ["BiasObject", "KernelBias"]
