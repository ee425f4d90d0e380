"""The keyword arguments of `attention`, and their checks."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from ntk_alibi import _checks, masks
from ntk_alibi.fused import checks
from ntk_alibi.masks import Problem, aligned_positions
from ntk_alibi.positions.rotary import XPOS, RoPE


class Options(NamedTuple):
    """Arguments of `attention` that say which keys are seen and how, as they came.

    A tuple, since making a dataclass takes microseconds, which calls with few tokens would feel.
    """

    causal: bool = True
    window: int | None = None
    causal_block: int | None = None
    sink: int = 0
    key_padding_mask: Any = None
    query_positions: Any = None
    key_positions: Any = None
    scale: float | None = None
    skip_tolerance: float | None = 0.0
    align: str = "end"
    rotary: RoPE | XPOS | None = None
    log_n: int | None = None


def checked_options(options: Options, head_dim: int, *, known: bool = False) -> Options:
    """The options with plain numbers checked and the scale given; masks as they came.

    With `known`, numbers of calls before are not checked again, which torch could not trace.
    """
    numbers = (
        options.causal, options.window, options.causal_block, options.sink, options.scale,
        options.skip_tolerance, head_dim,
    )  # fmt: skip
    check = _known_numbers if known else _checked_numbers
    try:
        causal, window, causal_block, sink, scale, tolerance = check(*numbers)
    except TypeError:  # a wrong type, or one that cannot be looked up
        causal, window, causal_block, sink, scale, tolerance = _checked_numbers(*numbers)
    masks, rest = options[4:7], options[9:]
    return Options(causal, window, causal_block, sink, *masks, scale, tolerance, *rest)


def _checked_numbers(
    causal: Any,
    window: Any,
    causal_block: Any,
    sink: Any,
    scale: Any,
    tolerance: Any,
    head_dim: int,
) -> tuple[bool, int | None, int | None, int, float, float | None]:
    causal = _checks.boolean("causal", causal)
    if window is not None:
        window = _checks.integer("window", window, minimum=1)
    scale = 1.0 / math.sqrt(head_dim) if scale is None else scale
    return (
        causal,
        window,
        masks.checked_causal_block(causal_block, causal=causal),
        _checks.integer("sink", sink, minimum=0),
        _checks.finite("scale", scale, minimum=-math.inf),
        checks.skip_tolerance(tolerance),
    )


#: Most calls have the numbers of the call before.
_known_numbers = functools.lru_cache(maxsize=64, typed=True)(_checked_numbers)


def checked_problem(options: Options, shape: tuple[int, ...]) -> Problem:
    """The problem (batch, heads, queries, keys) of options whose plain numbers are checked."""
    rule = (shape, options.causal, options.window, options.causal_block, options.sink)
    if (
        options.align == "end"
        and options.key_padding_mask is None
        and options.query_positions is None
        and options.key_positions is None
    ):
        return Problem(*rule)
    batch, _, queries, keys = shape
    align = masks.checked_alignment(options.align, options.query_positions)
    mask = masks.checked_key_padding_mask(options.key_padding_mask, batch, keys)
    key_positions = masks.checked_positions("key_positions", options.key_positions, batch, keys)
    query_positions = masks.checked_positions(
        "query_positions", options.query_positions, batch, queries
    )
    if query_positions is None:
        query_positions = aligned_positions(key_positions, queries, keys, align)
    return Problem(
        *rule,
        align,
        mask,
        query_positions,
        key_positions,
        placed=options.query_positions is not None,
    )
