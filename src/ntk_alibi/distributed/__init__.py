"""Attention over a sequence whose parts lie on several ranks of torch.distributed."""

from typing import TYPE_CHECKING, Any

from ntk_alibi import _installed

if TYPE_CHECKING:
    from ntk_alibi.distributed.sharded_attention import attention

__all__ = ["attention"]


def __getattr__(name: str) -> Any:
    """Load `attention` on first use: it brings in torch's compiler, which takes seconds."""
    if name != "attention":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _installed.needed_by("ntk_alibi.distributed.attention"):
        from ntk_alibi.distributed.sharded_attention import attention
    return attention
