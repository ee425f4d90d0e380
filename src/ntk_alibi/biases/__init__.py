"""Biases, which are added to the scores of queries and keys.

`BiasObject` is the base class of all biases. `KernelBias` is the form in which the kernels take a
bias, `Problem` with its `Mask` describes the call, and `parameter` converts a parameter to the
call's framework.
"""

from ntk_alibi.biases.base import BiasObject
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.biases.parameters import parameter
from ntk_alibi.masks import Mask, Problem

__all__ = ["BiasObject", "KernelBias", "Mask", "Problem", "parameter"]
