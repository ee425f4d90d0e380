"""Biases: numbers added to the scores of queries and keys.

`BiasObject` is the base class of all biases, and `KernelBias` the kernel form, in which the kernels
take a bias. `parameter` converts a parameter to the framework of a call, which a `Problem` with its
`Mask` describes.
"""

from ntk_alibi.biases.base import BiasObject
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.biases.parameters import parameter
from ntk_alibi.masks import Mask, Problem

__all__ = ["BiasObject", "KernelBias", "Mask", "Problem", "parameter"]
