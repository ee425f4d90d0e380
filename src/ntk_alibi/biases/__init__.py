"""Biases: numbers added to the scores of queries and keys.

`BiasObject` is the base of all of them, `KernelBias` the form in which the kernels take one, and
`parameter` brings a parameter into the framework of a call.
"""

from ntk_alibi.biases.base import BiasObject
from ntk_alibi.biases.kernel_bias import KernelBias, parameter

__all__ = ["BiasObject", "KernelBias", "parameter"]
