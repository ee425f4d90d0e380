"""What a bias and a mask do: bias by distance, receptive field, weights, visible intervals.

Pictures, notebooks and tables take these arrays from here. They are computed by the bias and by
`attention`, so they are right for any bias object.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi.biases.base import check_defined, to_kernel_bias
from ntk_alibi.biases.slopes import alibi_slopes
from ntk_alibi.fused.attention import attention
from ntk_alibi.masks import Cut, Mask, Problem
from ntk_alibi.scaling import Scaling, is_dynamic

#: Number of distances that `receptive_field` searches by default.
LONGEST = 2**16


def check_bias(bias: Any) -> None:
    """Refuse what is no bias object."""
    if hasattr(bias, "kernel_bias") and not isinstance(bias, type):
        check_defined(bias)
    if not hasattr(bias, "num_heads") or not callable(getattr(bias, "tensor", None)):
        raise TypeError(
            "bias must be an object with num_heads and tensor(query_length, key_length) such as "
            f"ALiBi(8), got {_checks.briefly(bias)}"
        )


def slopes_at(
    num_heads: int,
    scaling: Scaling | None,
    length: int | None,
    rule: Literal["press", "geometric"] = "press",
) -> NDArray[np.float32]:
    """Return the slopes (heads,) of a text, whose length dynamic scalings need.

    Raises:
        TypeError, ValueError: an argument is wrong, as for `alibi_slopes`.
    """
    lengths = None
    if length is not None:
        lengths = np.array([_checks.integer("length", length, minimum=1)])
    return alibi_slopes(num_heads, scaling, lengths, rule=rule).reshape(-1)


def bias_by_distance(
    bias: Any,
    longest: int,
    *,
    length: int | None = None,
    side: Literal["behind", "ahead"] = "behind",
) -> NDArray[np.float64]:
    """Return a bias as a function of distance.

    Formula::

        out[h, d] = bias[h, i, i - d], or bias[h, i, i + d] for side="ahead"

    Args:
        bias: an object with num_heads and tensor(query_length, key_length), such as `ALiBi`. Of a
            batch, the first row counts. Slopes that require grad are detached.
        longest: number of distances, from 0 on.
        length: number of tokens of the text, for an `ALiBi` with a dynamic scaling; by default,
            longest. If queries have different slopes, the last query counts.
        side: "behind" the query, or "ahead".

    Returns:
        (heads, longest) float64, -inf where the bias masks.

    Raises:
        TypeError, ValueError: an argument is wrong.

    Example:
        >>> import ntk_alibi as na
        >>> from ntk_alibi.inspection import bias_by_distance
        >>> bias_by_distance(na.ALiBi(2), 4)[0]
        array([ 0.    , -0.0625, -0.125 , -0.1875])
    """
    check_bias(bias)
    count = _checks.integer("longest", longest, minimum=1)
    _checks.choice("side", side, ("behind", "ahead"))
    tokens = count if length is None else _checks.integer("length", length, minimum=0)
    if not hasattr(bias, "kernel_bias"):
        ends = (1, count) if side == "behind" else (count, 1)
        dense: NDArray[np.float64] = _arrays.to_numpy(bias.tensor(*ends)).astype(np.float64)
        return np.ascontiguousarray(dense[0].reshape(bias.num_heads, count)[:, ::-1])
    return _bias_of_one_query(bias, count, tokens, side)


def _bias_of_one_query(bias: Any, count: int, tokens: int, side: str) -> NDArray[np.float64]:
    """Return the bias of one query of a text at `count` distances, from 0 on."""
    dynamic = is_dynamic(getattr(bias, "scaling", None))
    keys = max(count, tokens) if dynamic else count
    shape = (bias.rows, bias.num_heads, bias.query_length or 1, keys)
    mask, real = Mask(causal=bias.sides == "causal"), None
    if dynamic and tokens < keys:
        real = (np.arange(keys) >= keys - tokens)[None].view(np.uint8)
    problem = Problem(shape, mask, real)
    if side == "ahead":
        first = np.int32(tokens - 1 if dynamic else 0)
        at_keys = first + np.arange(keys, dtype=np.int32)[None]
        at_queries = np.full((1, shape[2]), first, np.int32)
        problem = problem._replace(query_positions=at_queries, key_positions=at_keys)
    like = _arrays.first_tensor(*bias.parameters)
    last = slice(shape[2] - 1, shape[2])
    near = slice(keys - count, keys) if side == "behind" else slice(0, count)
    cut = Cut(queries=last, keys=near)
    kernel = to_kernel_bias(bias, problem, like).cut(cut, problem.shape)
    positions = problem.cut(cut).positions(like)
    scores, hidden = kernel.values(*positions)
    if mask.causal:
        hidden = hidden | ~mask.visible(*positions)[:, None]
    values = np.where(_arrays.to_numpy(hidden), -np.inf, _arrays.to_numpy(scores))
    row = np.broadcast_to(values[0], (shape[1], 1, count))[:, 0]
    return np.asarray(row[:, ::-1] if side == "behind" else row, np.float64)


def receptive_field(
    bias: Any,
    share: float = 1 / np.e,
    *,
    longest: int = LONGEST,
    length: int | None = None,
    side: Literal["behind", "ahead"] = "behind",
) -> NDArray[np.float64]:
    """Return how far each head reaches: where the weight of a key falls to a share of the greatest.

    Formula::

        exp(bias(d) - max bias) = share;  for a linear bias d = -ln(share) / m_h

    These are the weights of the bias alone, as if the query had the same product with all keys. The
    bias is linear between integer distances. If the weight falls to the share more than once, the
    farthest distance counts.

    Args:
        bias: as for `bias_by_distance`.
        share: share of the greatest weight, between 0 and 1.
        longest: number of distances to search, from 0 on.
        length: as for `bias_by_distance`.
        side: as for `bias_by_distance`.

    Returns:
        (heads,) float64; inf for a head whose weight exceeds the share at all distances below
            longest, 0 for one that does not see this side.

    Raises:
        TypeError, ValueError: an argument is wrong.

    Example:
        >>> import ntk_alibi as na
        >>> from ntk_alibi.inspection import receptive_field
        >>> receptive_field(na.ALiBi(4)).round(3)
        array([  4.,  16.,  64., 256.])

    Source: the weights of a linear bias are from Press et al. 2022 (arXiv 2108.12409).
    """
    level = np.log(_checks.share("share", share))
    values = bias_by_distance(bias, longest, length=length, side=side)
    reach = np.full(len(values), np.inf)
    for head, row in enumerate(values):
        if np.isneginf(row).all():
            reach[head] = 0.0
            continue
        differences = row - row.max() - level
        last = int(np.flatnonzero(differences >= 0)[-1])
        if last + 1 < longest:
            step = differences[last] - differences[last + 1]
            reach[head] = last + differences[last] / step
    return reach


def map_size(query_length: int, key_length: int | None) -> tuple[int, int]:
    """Return the checked lengths of a map; by default there are as many keys as queries."""
    queries = _checks.integer("query_length", query_length, minimum=1)
    if key_length is None:
        return queries, queries
    return queries, _checks.integer("key_length", key_length, minimum=1)


def weights(
    query_length: int, key_length: int | None = None, bias: Any = None, **options: Any
) -> NDArray[np.float32]:
    """Return the attention weights of bias and mask alone, as `attention` computes them.

    Formula::

        w[h, i, j] = exp(bias(i, j)) / sum_k exp(bias(i, k))  over the keys k that query i sees

    All queries are zero, so all products are equal; the values are unit vectors, so the output is
    the weights.

    Args:
        query_length: Q.
        key_length: K; Q by default.
        bias: a bias that `attention` accepts, or None for the mask alone.
        options: causal, window, causal_block, sink, mask (1, 1 or heads, queries, keys),
            key_padding_mask (1, keys), query_positions, key_positions and skip_tolerance of
            `attention`.

    Returns:
        (heads, queries, keys) float32, 0 for masked keys; without a bias, one head.

    Raises:
        TypeError, ValueError: an argument is wrong, as for `attention`.

    Example:
        >>> from ntk_alibi.inspection import weights
        >>> weights(3, window=2)[0]
        array([[1. , 0. , 0. ],
               [0.5, 0.5, 0. ],
               [0. , 0.5, 0.5]], dtype=float32)
    """
    queries, keys = map_size(query_length, key_length)
    heads = 1 if bias is None else _heads(bias)
    width = min(keys, _checks.MAX_HEAD_DIM)
    query = np.zeros((1, heads, queries, width), np.float32)
    key = np.zeros((1, 1, keys, width), np.float32)
    result = np.empty((heads, queries, keys), np.float32)
    for first in range(0, keys, width):
        marks = np.eye(keys, width, -first, np.float32)[None, None]
        part = attention(query, key, marks, bias, **options)[0]
        result[:, :, first : first + width] = part[:, :, : keys - first]
    return result


def visible_intervals(
    query_length: int, key_length: int | None = None, **options: Any
) -> NDArray[np.int64]:
    """Return the keys that each query sees as intervals.

    Args:
        query_length: Q.
        key_length: K; Q by default.
        options: options of the mask, as for `weights`.

    Returns:
        int64 (intervals, 3): query, first key and last key of each interval.

    Raises:
        TypeError, ValueError: an argument is wrong, as for `attention`.

    Example:
        >>> from ntk_alibi.inspection import visible_intervals
        >>> visible_intervals(4, window=2, sink=1)[-2:].tolist()
        [[3, 0, 0], [3, 2, 3]]
    """
    seen = weights(query_length, key_length, **options)[0] > 0
    edges = np.diff(np.pad(seen, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    query, first = np.nonzero(edges == 1)
    last = np.nonzero(edges == -1)[1] - 1
    return np.stack([query, first, last], axis=1)


def _heads(bias: Any) -> int:
    if hasattr(bias, "num_heads"):
        return int(bias.num_heads)
    return int(bias.shape[-3]) if np.ndim(bias) >= 3 else 1
