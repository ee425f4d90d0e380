"""What a bias and a mask do, as numbers, for any bias object.

Kept apart from the drawing, so that pictures, notebooks and tables ask one place; the numbers come
from `tensor` of the bias and from `attention` itself.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi.biases import checks as bias_checks
from ntk_alibi.biases.alibi import ALiBi
from ntk_alibi.biases.slopes import both_sides, scaling_per
from ntk_alibi.fused.attention import attention

#: Where `receptive_field` stops looking, in tokens.
LONGEST = 2**16


def bias_by_distance(
    bias: Any,
    longest: int,
    *,
    length: int | None = None,
    side: Literal["behind", "ahead"] = "behind",
) -> NDArray[np.float64]:
    """A bias as a function of distance.

    out[h, d] = bias[h, i, i - d], or bias[h, i, i + d] for side="ahead"

    Args:
        bias: an object with num_heads and tensor(query_length, key_length), such as `ALiBi`; of a
            batch, the first row. Slopes that require grad are taken as they are now.
        longest: number of distances, from 0 on.
        length: number of tokens of the text, for an `ALiBi` with a dynamic scaling; longest if not
            given. Of slopes for each query the last query's are taken.
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
    bias_checks.bias_object(bias)
    count = _checks.integer("longest", longest, minimum=1)
    _checks.choice("side", side, ("behind", "ahead"))
    static = _at_length(bias, count if length is None else length)
    if side == "behind":
        values = _arrays.to_numpy(static.tensor(1, count))[0, :, 0, ::-1]
    else:
        values = _arrays.to_numpy(static.tensor(count, 1))[0, :, ::-1, 0]
    return values.astype(np.float64)


def receptive_field(
    bias: Any,
    share: float = 1 / np.e,
    *,
    longest: int = LONGEST,
    length: int | None = None,
    side: Literal["behind", "ahead"] = "behind",
) -> NDArray[np.float64]:
    """How far each head reaches: where the weight of a key falls to a share of the greatest.

    exp(bias(d) - max bias) = share;  for a linear bias d = -ln(share) / m_h

    It is the weight that the bias alone gives, for keys whose products with the query are equal.
    Between two distances the bias is taken to be linear; where the weight falls more than once, the
    last time counts.

    Args:
        bias: as for `bias_by_distance`.
        share: between 0 and 1.
        longest: distances below this are looked at.
        length: as for `bias_by_distance`.
        side: likewise.

    Returns:
        (heads,) float64; inf where the weight is greater at all distances below longest, 0 for a
            head that does not see this side.

    Raises:
        TypeError, ValueError: an argument is wrong.

    Example:
        >>> import ntk_alibi as na
        >>> from ntk_alibi.inspection import receptive_field
        >>> receptive_field(na.ALiBi(4)).round(3)
        array([  4.,  16.,  64., 256.])

    Source: the weights are those of Press et al. 2022 (arXiv 2108.12409).
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


def weights(
    query_length: int, key_length: int | None = None, bias: Any = None, **options: Any
) -> NDArray[np.float32]:
    """The weights that bias and mask alone give, as `attention` itself applies them.

    w[h, i, j] = exp(bias(i, j)) / sum of the same over the keys that query i sees

    All queries are zero, so that no key is preferred, and the values tell the keys apart.

    Args:
        query_length: Q.
        key_length: K; Q if not given.
        bias: whatever `attention` takes, or None for the mask alone.
        options: causal, window, causal_block, sink, key_padding_mask (1, keys), query_positions,
            key_positions and skip_tolerance of `attention`.

    Returns:
        (heads, queries, keys) float32, 0 for keys that are not seen; one head without a bias.

    Raises:
        TypeError, ValueError: as `attention`.

    Example:
        >>> from ntk_alibi.inspection import weights
        >>> weights(3, window=2)[0]
        array([[1. , 0. , 0. ],
               [0.5, 0.5, 0. ],
               [0. , 0.5, 0.5]], dtype=float32)
    """
    queries = _checks.integer("query_length", query_length, minimum=1)
    keys = queries
    if key_length is not None:
        keys = _checks.integer("key_length", key_length, minimum=1)
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
    """What each query sees, as intervals of keys.

    Args:
        query_length: Q.
        key_length: K; Q if not given.
        options: of the mask, as for `weights`.

    Returns:
        (intervals, 3) int64: query, first key, last key.

    Raises:
        TypeError, ValueError: as `attention`.

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


def _at_length(bias: Any, length: int) -> Any:
    """The bias as one of constant slopes, for a text of this length."""
    if not isinstance(bias, ALiBi):
        return bias
    if bias.slopes is None:
        per = scaling_per(bias.scaling)
        tokens = bias_checks.lengths([length])
        asked = {None: None, "sequence": tokens, "query": tokens[:, None]}[per]
        return ALiBi(bias.num_heads, slopes=bias.left_right(1, asked), sides="two_slopes")
    left, right = (_arrays.to_numpy(side) for side in both_sides(bias.slopes))
    if bias.sides == "two_slopes":
        return ALiBi(bias.num_heads, slopes=(_last(left), _last(right)), sides="two_slopes")
    return ALiBi(bias.num_heads, slopes=_last(left), sides=bias.sides)


def _last(slopes: NDArray[Any]) -> NDArray[Any]:
    return slopes[..., -1:] if slopes.ndim == 3 else slopes
