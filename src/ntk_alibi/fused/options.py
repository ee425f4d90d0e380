"""The names, types and defaults of attention's options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, TypeVar

from ntk_alibi._arrays import Array
from ntk_alibi.fused.dropout import NO_DROPOUT
from ntk_alibi.fused.key_norms import KeyNorms
from ntk_alibi.masks import AT_END, BlockMask, Mask
from ntk_alibi.positions.log_n import LogN
from ntk_alibi.positions.rotary import XPOS, RoPE

Function = TypeVar("Function", bound=Callable[..., Any])


class AttentionOptions(TypedDict, total=False):
    """The options of `attention`, which its docstring describes, with their types."""

    causal: bool
    window: int | None
    causal_block: int | None
    sink: int
    mask: Array | BlockMask | None
    key_padding_mask: Array | None
    query_positions: Array | None
    key_positions: Array | None
    align: Literal["end", "start"]
    segment_ids: Array | None
    query_segment_ids: Array | None
    scale: float | None
    skip_tolerance: float | None
    rotary: RoPE | XPOS | None
    log_n: int | LogN | None
    initial: tuple[Array, Array] | None
    key_norms: KeyNorms | None
    dropout: float
    seed: int | None


#: The defaults of all options.
DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(AttentionOptions.__annotations__),
    **Mask()._asdict(),
    "align": AT_END,
    "skip_tolerance": 0.0,
    "dropout": NO_DROPOUT,
}


def with_options(function: Function) -> Function:
    """Replace `**options` in a function's signature by the options with their defaults."""
    named = list(inspect.signature(function).parameters.values())[:-1]
    types: dict[str, Any] = AttentionOptions.__annotations__
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=getattr(types[name], "__forward_arg__", types[name]),
        )
        for name, default in DEFAULTS.items()
    ]
    function.__signature__ = inspect.Signature([*named[:4], *options, *named[4:]])  # type: ignore[attr-defined]
    return function
