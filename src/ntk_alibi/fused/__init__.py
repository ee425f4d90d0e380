"""Fused attention: the compiled core computes scores, bias, mask and softmax tile by tile."""

from ntk_alibi.fused.attention import attention
from ntk_alibi.fused.forward import Stats
from ntk_alibi.fused.gradients import AttentionGradients, attention_gradients
from ntk_alibi.fused.key_norms import KeyNorms
from ntk_alibi.fused.merge import merge

__all__ = [
    "AttentionGradients",
    "KeyNorms",
    "Stats",
    "attention",
    "attention_gradients",
    "merge",
]
