"""Attention of numbers by the compiled core, whatever else torch knows about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _core, _validation
from ntk_alibi._arrays import Array
from ntk_alibi.bias import ALiBi
from ntk_alibi.core_call import Call, Options, checked_problem, checked_rule, readable
from ntk_alibi.rotary_attention import attend_rotated, needs_rotation
from ntk_alibi.slopes import scaling_per

#: Keys that are skipped, or read, together.
BLOCK = 64


@dataclass(frozen=True)
class Stats:
    """How much of the keys `attention` read, in blocks of 64 keys by tiles of some queries.

    Attributes:
        visited: int64 (batch, heads), blocks read.
        visible: int64 (batch, heads), blocks that the mask leaves.
    """

    visited: NDArray[np.int64]
    visible: NDArray[np.int64]

    @property
    def share(self) -> NDArray[np.float64]:
        """Visited of visible blocks, (batch, heads); 1 where none is visible."""
        share: NDArray[np.float64] = np.where(
            self.visible == 0, 1.0, self.visited / np.maximum(self.visible, 1)
        )
        return share


class KeyNorms:
    """Norms of a growing key cache, kept so that `attention` need not measure them at each call.

    `skip_tolerance` needs the greatest norm of each 64 keys, which costs a pass over all of them;
    with many keys and one query that pass is most of the work. `update` reads only the keys that
    were appended since the last one. Keys that were changed in place are not noticed: start anew.

    Attributes:
        length: keys measured.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> query, key, value = np.random.default_rng(0).random((3, 1, 2, 100, 8), np.float32)
        >>> norms = na.KeyNorms()
        >>> for length in (99, 100):
        ...     cache = key[:, :, :length], value[:, :, :length]
        ...     output = na.attention(
        ...         query[:, :, length - 1 : length], *cache, na.ALiBi(2),
        ...         key_norms=norms.update(cache[0]),
        ...     )
        >>> norms.length
        100
    """

    def __init__(self) -> None:
        self.length = 0
        self._norms = np.empty((0, 0, 0, 3), np.float32)  # (batch, key heads, blocks, kinds)

    def update(self, key: Array) -> KeyNorms:
        """Measure the keys from `length` on; returns itself.

        Args:
            key: (batch, key heads, keys, head_dim), the whole cache, at least as long as before.

        Raises:
            TypeError, ValueError: key is no array of that kind, is shorter than before or has
                another batch or number of heads.
        """
        dtype = _validation.key_cache(key, self._norms.shape[:2], self.length)
        batch, heads, length, _ = key.shape
        blocks = -(-length // BLOCK)
        if self._norms.shape[:2] != (batch, heads) or blocks > self._norms.shape[2]:
            grown = np.empty((batch, heads, max(blocks, 2 * self._norms.shape[2]), 3), np.float32)
            known = self._norms.shape[2] if self.length else 0
            grown[:, :, :known] = self._norms[:, :, :known] if known else 0.0
            self._norms = grown
        first = self.length // BLOCK
        _core.measure_key_norms(readable(key), _arrays.CORE_DTYPES[dtype], first, self._norms)
        self.length = length
        return self


def plain_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    options: Options,
    *,
    key_norms: KeyNorms | None = None,
    return_logsumexp: bool = False,
    return_stats: bool = False,
) -> Any:
    """`attention` of numbers, whatever else torch knows about them."""
    dtype = _validation.attention_shapes(query, key, value)
    if needs_rotation(options):
        _validation.at_most_one(rotary=options.rotary, key_norms=key_norms)
        found = _rotated_attention(query, key, value, bias, options, key_norms, return_stats)
        asked = (True, return_logsumexp, return_stats)
        wanted = [x for x, wish in zip(found, asked, strict=False) if wish]
        return tuple(wanted) if len(wanted) > 1 else wanted[0]
    call = Call.checked(query, key, value, bias, options, dtype)
    parts = call.parts()
    if key_norms is not None:
        plain = options.key_padding_mask is None and options.key_positions is None
        _validation.key_norms(key_norms, key.shape, consecutive=plain and len(parts) == 1)
    counts = np.zeros((*query.shape[:2], 2), np.int64) if return_stats else None
    norms = None if key_norms is None else key_norms._norms
    if len(parts) == 1:
        output, logsumexp = call.attend(parts[0], counts=counts, norms=norms, log=return_logsumexp)
    else:
        outputs, logs = zip(*(call.attend(part, counts=counts) for part in parts), strict=True)
        output, log = merge(outputs, [_arrays.like(x, query) for x in logs])
        logsumexp = _arrays.to_numpy(log)
    results: list[Any] = [output]
    if return_logsumexp and logsumexp is not None:
        results.append(_arrays.like(logsumexp, query))
    if counts is not None:
        results.append(Stats(counts[..., 0], counts[..., 1]))
    return tuple(results) if len(results) > 1 else output


def _rotated_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    options: Options,
    key_norms: KeyNorms | None,
    return_stats: bool,
) -> tuple[Any, ...]:
    """Output, logsumexp and, if asked for, stats of queries and keys that are rotated first."""

    def attend(*arguments: Any) -> Any:
        return plain_attention(
            *arguments, key_norms=key_norms, return_logsumexp=True, return_stats=return_stats
        )

    bias, options = prepared(query, key, bias, options)
    outputs, logsumexps, *stats = attend_rotated(attend, query, key, value, bias, options)
    module = _arrays.namespace(query)
    output = _arrays.cast_like(module.concatenate(outputs, 2), query)
    logsumexp = module.concatenate(logsumexps, 2)
    if not return_stats:
        return output, logsumexp
    visited, visible = (sum(getattr(part, x) for part in stats[0]) for x in ("visited", "visible"))
    return output, logsumexp, Stats(visited, visible)


def prepared(query: Any, key: Any, bias: Any, options: Options) -> tuple[Any, Options]:
    """Bias and options of a problem that is rotated, checked; slopes that depend on no lengths."""
    options = checked_rule(options, query.shape[3])
    _validation.rotary(options.rotary, query.shape[3], causal=options.causal)
    if options.log_n is not None:
        _validation.train_length("log_n", options.log_n)
    shape = (*query.shape[:3], key.shape[2])
    _validation.attention_bias(bias, shape, causal=options.causal)
    if _validation.alignment(options.align, options.query_positions) == "start":
        beside = first_positions(query, options.key_positions)
        options = options._replace(query_positions=beside, align="end")
    if _arrays.is_tracing():
        _validation.untraced_positions(options)
        return bias, options
    problem = checked_problem(options, shape)
    if scaling_per(getattr(bias, "scaling", None)) is not None:
        own = bias.kernel_bias(problem)
        slopes = own.left, own.right
        bias = ALiBi(bias.num_heads, slopes=slopes, sides="two_slopes", exempt=own.exempt)
    return bias, options


def first_positions(query: Any, key_positions: Any) -> Any:
    """Positions of queries that stand beside the first keys, (queries,) or (batch, queries)."""
    queries = query.shape[2]
    if key_positions is None:
        return _arrays.arange(queries, query)
    _validation.keys_for_queries(queries, key_positions.shape[-1])
    return key_positions[..., :queries]


def merge(outputs: Sequence[Array], logsumexps: Sequence[Array]) -> tuple[Array, Array]:
    """Join results of `attention` over disjoint sets of keys into the result over all of them.

    logsumexp = log sum_c exp(logsumexp_c),  output = sum_c exp(logsumexp_c - logsumexp) output_c

    Args:
        outputs: at least one, each (batch, heads, queries, head_dim).
        logsumexps: as many, each (batch, heads, queries).

    Returns:
        (output, logsumexp), as the first of each, computed in float64; 0 and -inf for queries that
        no part saw a key of. Tensors may require grad.

    Raises:
        TypeError, ValueError: the lists differ in length, shapes or framework.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> query, key, value = np.random.default_rng(0).random((3, 1, 2, 6, 8), np.float32)
        >>> positions = np.arange(6)
        >>> parts = [
        ...     na.attention(query, key[:, :, part], value[:, :, part], query_positions=positions,
        ...                  key_positions=positions[part], return_logsumexp=True)
        ...     for part in (slice(0, 2), slice(2, 6))
        ... ]
        >>> whole, _ = na.merge(*zip(*parts))
        >>> bool(np.allclose(whole, na.attention(query, key, value), atol=1e-6))
        True

    Source: Milakov and Gimelshein 2018 (arXiv 1805.02867).
    """
    _validation.parts(outputs, logsumexps)
    xp = _arrays.namespace(outputs[0])
    parts = xp.stack([_arrays.float64(part, outputs[0]) for part in outputs])
    logs = xp.stack([_arrays.float64(log, outputs[0]) for log in logsumexps])
    largest = _arrays.constant(xp.amax(logs, 0))
    weights = xp.exp(logs - xp.where(xp.isneginf(largest), 0.0, largest))
    total = xp.sum(weights, 0)
    none = total == 0.0
    total = xp.where(none, 1.0, total)
    logsumexp = xp.where(none, -math.inf, largest + xp.log(total))
    weights = (weights / total)[..., None]
    output = xp.sum(xp.where(weights == 0.0, 0.0, weights * parts), 0)
    return _arrays.as_dtype(output, outputs[0].dtype), _arrays.as_dtype(
        logsumexp, logsumexps[0].dtype
    )
