"""Modules of torch. Importing it registers the operators of graphs that torch has saved."""

from ntk_alibi.biases import traced_alibi as traced_alibi
from ntk_alibi.fused.tensors import operator as operator
