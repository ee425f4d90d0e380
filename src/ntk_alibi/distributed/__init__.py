"""Attention over a sequence whose parts lie on several ranks of torch.distributed."""

from ntk_alibi import _installed

with _installed.needed_by("ntk_alibi.distributed"):
    from ntk_alibi.distributed.attention import attention

__all__ = ["attention"]
