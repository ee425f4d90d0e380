"""Old path of `ntk_alibi.fused.gradients`, which holds `attention_gradients` and its result now."""

from ntk_alibi.fused.gradients import AttentionGradients, attention_gradients

__all__ = ["AttentionGradients", "attention_gradients"]
