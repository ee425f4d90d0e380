"""Fused attention: scores, bias, mask and softmax in one pass, no matrix of all pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _core, _validation
from ntk_alibi._arrays import Array
from ntk_alibi.bias import ALiBi
from ntk_alibi.core_call import (
    Call,
    Options,
    Outside,
    as_floats,
    checked_problem,
    checked_rule,
    readable,
)
from ntk_alibi.kernel_bias import BiasObject, KernelBias
from ntk_alibi.rotary import XPOS, RoPE
from ntk_alibi.rotary_attention import Part, Rotated, attend_rotated, needs_rotation
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


def attention(
    query: Array,
    key: Array,
    value: Array,
    bias: BiasObject | Array | None = None,
    *,
    causal: bool = True,
    window: int | None = None,
    causal_block: int | None = None,
    sink: int = 0,
    key_padding_mask: Array | None = None,
    query_positions: Array | None = None,
    key_positions: Array | None = None,
    align: Literal["end", "start"] = "end",
    scale: float | None = None,
    skip_tolerance: float | None = 0.0,
    rotary: RoPE | XPOS | None = None,
    log_n: int | None = None,
    key_norms: KeyNorms | None = None,
    dropout: float = 0.0,
    return_logsumexp: bool = False,
    return_stats: bool = False,
) -> Any:
    """Attention with a bias over distance, computed tile by tile in float32.

    output[i] = sum_j softmax_j(scale q_i.k_j + bias(i, j)) v_j

    over the keys j that query i sees. With d = position(i) - position(j) these are the real keys
    with d >= 0 if causal, |d| < window if there is one, and, if there is a causal_block, in blocks
    of so many positions i's own or the previous one; and the first `sink` positions. A query that
    sees none gets 0 and logsumexp -inf. What it does not see takes part in no arithmetic: NaN
    in padding or in the future stays there.

    Args:
        query: (batch, heads, queries, head_dim), float32, bfloat16 or float16, head_dim 1 to 256.
        key: (batch, key heads, keys, head_dim); heads are a multiple of key heads (GQA, MQA).
        value: as key.
        bias: an `ALiBi`, `BiALiBi`, `KerplePower`, `KerpleLog`, `Sandwich`, `BAM`, `T5`,
            `DistanceTable`, `DistanceFunction` or `ForgetGates`, or numbers broadcastable to
            (batch, heads, queries, keys), or None.
        causal: whether keys ahead of the query are hidden.
        window: how many positions back (and ahead) a query sees, itself included.
        causal_block: length of the blocks of block-wise causal attention, in which a query sees its
            own block up to itself and the one before it.
        sink: positions below this are seen from beyond the window or the block, too.
        key_padding_mask: (batch, keys), 1 or True for real keys, as transformers' attention_mask.
        query_positions: (queries,) or (batch, queries) integers; the columns by default, the last
            query at the last key. Where key_positions are given, the last of those.
        key_positions: (keys,) or (batch, keys) integers, the columns by default. BLOOM counts real
            tokens: cumsum(mask) - 1.
        align: without query_positions, "end" puts the last query at the last key, "start" the first
            at the first, as in cross-attention between two texts that run side by side.
        scale: of the dot products, 1 / sqrt(head_dim) by default.
        skip_tolerance: keys that are proven to have at most this share of a query's softmax mass,
            together, are left out; less than 1. 0.0 leaves out only what rounding would swallow
            (2^-24); None reads every visible key. Linear biases with slopes >= 0, tables and
            running sums have a proof (docs/certified-skipping.md), others read all.
        rotary: a `RoPE` or `XPOS` that rotates queries and keys by their positions first.
        log_n: a training length: scores before the bias are multiplied by `log_n_scale`. With this
            or rotary, bfloat16 and float16 are attended to in float32, and rounded once.
        key_norms: kept by the caller of the very keys, without rotary, key_padding_mask and
            key_positions, and without exempt tokens.
        dropout: only 0; another is refused with a sentence that says who has it.
        return_logsumexp: whether to return the logsumexp too, float32 (batch, heads, queries),
            natural, of the scores as above. `merge` takes both.
        return_stats: whether to return `Stats` too.

    Returns:
        The output, or a tuple of it and what else was asked for, in this order. As query:
        framework, shape and dtype. Strides are taken as they come where the last one is 1; other
        arrays are copied once.

    Tensors may require grad, the parameters of biases and dense ones too, and may come under
    torch.compile, autocast and vmap. float64 tensors, and tensors on other devices than the CPU, go
    through torch's own operations, some queries at a time.

    Raises:
        TypeError, ValueError: an argument is wrong, or two of them contradict each other; key_norms
            or return_stats with tensors that require grad. NumPy's float64 is refused:
            `ntk_alibi.reference.attention` takes it.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> query, key, value = np.ones((3, 1, 8, 5, 16), np.float32)
        >>> na.attention(query, key, value, na.ALiBi(8, na.NTK(4.0))).shape
        (1, 8, 5, 16)

    Source: Dao et al. 2022 (arXiv 2205.14135) for the tiling, Press et al. 2022 for the bias.
    """
    if dropout != 0.0:
        _validation.no_dropout(dropout)
    options = Options(
        causal, window, causal_block, sink, key_padding_mask, query_positions, key_positions, scale,
        skip_tolerance, align, rotary, log_n,
    )  # fmt: skip
    if _arrays.is_tensor(query) and _arrays.needs_torch(query, key, value, bias):
        _validation.attention_shapes(query, key, value, differentiable=True)
        _validation.without_torch("key_norms", key_norms is not None)
        _validation.without_torch("return_stats", return_stats)
        output, logsumexp = _arrays.torch_layer().attention(query, key, value, bias, options)
        return (output, logsumexp) if return_logsumexp else output
    return plain_attention(
        query,
        key,
        value,
        bias,
        options,
        key_norms=key_norms,
        return_logsumexp=return_logsumexp,
        return_stats=return_stats,
    )


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


@dataclass(frozen=True)
class AttentionGradients:
    """What `attention_gradients` returns; arrays as the inputs, but for the bias's float32 NumPy.

    Attributes:
        query, key, value: shapes and dtypes as theirs.
        left, right: of a linear bias's slopes, (batch, heads, queries), or None.
        dense: of a bias of plain numbers, (batch, heads, queries, keys), or None.
        table: of a bias over distance, (heads, distances), float64, or None. The first distance is
            `table_begin`; parameters get theirs by the chain rule, as torch's autograd does it.
        sums: of running sums of log gates, (batch, heads, keys), float64, or None.
        first: of `BiALiBi`'s constant, (batch, heads, queries), or None.
    """

    query: Any
    key: Any
    value: Any
    left: NDArray[np.float32] | None
    right: NDArray[np.float32] | None
    dense: NDArray[np.float32] | None
    table: NDArray[np.float64] | None = None
    table_begin: int = 0
    sums: NDArray[np.float64] | None = None
    first: NDArray[np.float32] | None = None


def attention_gradients(
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    logsumexp: Array,
    output_gradient: Array,
    logsumexp_gradient: Array | None = None,
    bias: BiasObject | KernelBias | Array | None = None,
    *,
    bias_gradient: bool = False,
    **options: Any,
) -> AttentionGradients:
    """Gradients of `attention`, from its output and logsumexp; the matrix of all pairs is not kept.

    p_ij = exp(s_ij - logsumexp_i);  ds_ij = p_ij (do_i.v_j - do_i.o_i + dl_i)
    dq_i = scale sum_j ds_ij k_j;  dk_j = scale sum_i ds_ij q_i;  dv_j = sum_i p_ij do_i

    Tensors that require grad get theirs by torch's autograd, which calls this.

    Args:
        query: as of the call of `attention`.
        key: likewise.
        value: likewise.
        output: what it returned.
        logsumexp: likewise, with return_logsumexp=True.
        output_gradient: as output, any strides.
        logsumexp_gradient: as logsumexp, or None for zeros.
        bias: as of the call of `attention`.
        bias_gradient: whether to compute the gradient of the bias, too.
        options: causal, window, causal_block, sink, key_padding_mask, query_positions,
            key_positions, align, scale, skip_tolerance, rotary and log_n of that call; blocks of
            keys with no more than that share of a query's mass are left out here, too.

    Returns:
        The gradients; the same bits for any number of threads.

    Raises:
        TypeError, ValueError: as `attention`.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> from ntk_alibi.fused_attention import attention_gradients
        >>> query, key, value = np.random.default_rng(0).random((3, 1, 2, 5, 8), np.float32)
        >>> results = na.attention(query, key, value, na.ALiBi(2), return_logsumexp=True)
        >>> gradients = attention_gradients(
        ...     query, key, value, *results, np.ones_like(query), bias=na.ALiBi(2)
        ... )
        >>> bool(np.allclose(gradients.value.sum(), 2 * 5 * 8, atol=1e-4))  # weights sum to 1
        True

    Source: Dao et al. 2022 (arXiv 2205.14135), appendix B.
    """
    dtype = _validation.attention_shapes(query, key, value)
    given = Options(**options)
    _validation.forward_results(query, output, logsumexp, output_gradient, logsumexp_gradient)
    if needs_rotation(given):
        results = (output, logsumexp, output_gradient, logsumexp_gradient)
        return _rotated_gradients(query, key, value, results, bias, bias_gradient, given)
    call = Call.checked(query, key, value, bias, given, dtype)
    log_gradient = None if logsumexp_gradient is None else as_floats(logsumexp_gradient)
    outside = Outside(output, as_floats(logsumexp), output_gradient, log_gradient)
    torch = _arrays.is_tensor(query)
    key_gradient, value_gradient = (
        _arrays.empty(tuple(x.shape), dtype, torch=torch) for x in (key, value)
    )
    parts = call.parts()
    if call.problem.mask is not None or len(parts) > 1:  # the core leaves what is hidden as it is
        for gradient in (key_gradient, value_gradient):
            _arrays.storage(gradient)[...] = 0
    shared = tuple(map(_arrays.storage, (key_gradient, value_gradient)))
    gradients = call.bias_gradients() if bias_gradient else {}
    own = [call.query_gradient(part, outside, shared, gradients) for part in parts]
    if bias_gradient and call.bias.exempt:
        call.finish_exempt(parts[0], outside, gradients)
    query_gradient = own[0] if len(own) == 1 else own[0] + own[1]
    known: dict[str, Any] = {name: gradients.get(name) for name in ("left", "right", "dense")}
    return AttentionGradients(
        query_gradient,
        key_gradient,
        value_gradient,
        **known,
        table=gradients.get("table"),
        table_begin=call.bias.table_begin,
        sums=gradients.get("sums"),
        first=gradients.get("first"),
    )


def _rotated_gradients(
    query: Any,
    key: Any,
    value: Any,
    results: tuple[Any, ...],
    bias: Any,
    bias_gradient: bool,
    options: Options,
) -> AttentionGradients:
    """Gradients of queries and keys that were rotated: rotated back, summed over the parts."""
    bias, checked = prepared(query, key, bias, options)
    rotated = Rotated(query, key, checked)
    turned = rotated.query(query), rotated.key(key)
    module, wide = _arrays.namespace(query), _arrays.at_least_float32
    key_sum, value_sum = (module.zeros_like(wide(x)) for x in (key, value))
    found = []
    for part in rotated.parts(query, bias):
        output, logsumexp, *incoming = map(part.of_queries, results)
        own = attention_gradients(
            part.query(part.of_queries(turned[0])),
            part.key(part.of_keys(turned[1])),
            part.of_keys(wide(value)),
            wide(output),
            logsumexp,
            wide(incoming[0]),
            incoming[1],
            part.bias(bias),
            bias_gradient=bias_gradient,
            **part.options(rotated.options)._asdict(),
        )
        key_sum[:, :, part.keys] += part.key(own.key)
        value_sum[:, :, part.keys] += own.value
        found.append((part, own))
    query_sum = module.concatenate([part.query(own.query) for part, own in found], 2)
    return AttentionGradients(
        _arrays.cast_like(rotated.query(query_sum, back=True), query),
        _arrays.cast_like(rotated.key(key_sum, back=True), key),
        _arrays.cast_like(value_sum, value),
        **_joined_bias_gradients(found, rotated.shape),
    )


def _joined_bias_gradients(
    found: list[tuple[Part, AttentionGradients]], shape: tuple[int, ...]
) -> dict[str, Any]:
    """Of the bias of a whole problem (batch, heads, queries, keys), from those of its parts."""
    joined: dict[str, Any] = {"left": None, "right": None, "first": None, "dense": None}
    for name in ("left", "right", "first"):
        rows = [getattr(own, name) for _, own in found]
        if rows[0] is not None:
            joined[name] = np.concatenate(rows, axis=2)
    first = found[0][1]
    if first.dense is not None:
        joined["dense"] = np.zeros(shape, np.float32)
        for part, own in found:
            joined["dense"][:, :, part.queries, part.keys] = own.dense
    if first.sums is not None:
        joined["sums"] = np.zeros((*shape[:2], shape[3]), np.float64)
        for part, own in found:
            joined["sums"][:, :, part.keys] += own.sums
    if first.table is not None:
        tables = [(own.table_begin, own.table) for _, own in found if own.table is not None]
        joined["table"], joined["table_begin"] = _joined_tables(tables)
    return joined


def _joined_tables(tables: list[tuple[int, NDArray[np.float64]]]) -> tuple[NDArray[Any], int]:
    """The sum of tables that begin at different distances, and where it begins."""
    begin = min(offset for offset, _ in tables)
    end = max(offset + table.shape[1] for offset, table in tables)
    joined = np.zeros((tables[0][1].shape[0], end - begin), np.float64)
    for offset, table in tables:
        joined[:, offset - begin : offset - begin + table.shape[1]] += table
    return joined, begin


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
