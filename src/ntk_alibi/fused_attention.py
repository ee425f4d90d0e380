"""Fused attention: scores, bias, mask and softmax in one pass, no matrix of all pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _core, _validation
from ntk_alibi._arrays import Array
from ntk_alibi.bias import ALiBi
from ntk_alibi.rotary import XPOS, RoPE
from ntk_alibi.rotary_attention import Rotated, attend_rotated, needs_rotation
from ntk_alibi.slopes import scaling_per

#: Keys that are skipped, or read, together.
BLOCK = 64

#: The share of a float32 sum that rounding to nearest may swallow: half an ulp.
ROUNDING = 2.0**-24


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


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `attention` that say which keys are seen and how, as they came."""

    causal: bool = True
    window: int | None = None
    causal_block: int | None = None
    sink: int = 0
    key_padding_mask: Any = None
    query_positions: Any = None
    key_positions: Any = None
    scale: float | None = None
    skip_tolerance: float | None = 0.0
    rotary: RoPE | XPOS | None = None
    log_n: int | None = None

    def given(self) -> dict[str, Any]:
        """As keywords."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


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
        _core.measure_key_norms(_readable(key), _arrays.CORE_DTYPES[dtype], first, self._norms)
        self.length = length
        return self


def attention(
    query: Array,
    key: Array,
    value: Array,
    bias: ALiBi | Array | None = None,
    *,
    causal: bool = True,
    window: int | None = None,
    causal_block: int | None = None,
    sink: int = 0,
    key_padding_mask: Array | None = None,
    query_positions: Array | None = None,
    key_positions: Array | None = None,
    scale: float | None = None,
    skip_tolerance: float | None = 0.0,
    rotary: RoPE | XPOS | None = None,
    log_n: int | None = None,
    key_norms: KeyNorms | None = None,
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
        bias: an `ALiBi`, or numbers broadcastable to (batch, heads, queries, keys), or None.
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
        scale: of the dot products, 1 / sqrt(head_dim) by default.
        skip_tolerance: keys that are proven to have at most this share of a query's softmax mass,
            together, are left out; less than 1. 0.0 leaves out only what rounding would swallow
            (2^-24); None reads every visible key. Linear biases with slopes >= 0, tables and
            running sums have a proof (docs/certified-skipping.md), others read all.
        rotary: a `RoPE` or `XPOS` that rotates queries and keys by their positions first.
        log_n: a training length: scores before the bias are multiplied by `log_n_scale`. With this
            or rotary, bfloat16 and float16 are attended to in float32, and rounded once.
        key_norms: kept by the caller of the very keys, without rotary, key_padding_mask and
            key_positions.
        return_logsumexp: whether to return the logsumexp too, float32 (batch, heads, queries),
            natural, of the scores as above. `merge` takes both.
        return_stats: whether to return `Stats` too.

    Returns:
        The output, or a tuple of it and what else was asked for, in this order. As query:
        framework, shape and dtype. Strides are taken as they come where the last one is 1; other
        arrays are copied once.

    Tensors may require grad, the slopes of an `ALiBi` and dense biases too, and may come under
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
    options = Options(
        causal, window, causal_block, sink, key_padding_mask, query_positions, key_positions, scale,
        skip_tolerance, rotary, log_n,
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
    arguments = _core_arguments(query, key, value, bias, options, dtype)
    if key_norms is not None:
        consecutive = options.key_padding_mask is None and options.key_positions is None
        _validation.key_norms(key_norms, key.shape, consecutive=consecutive)
    output = _arrays.empty(tuple(query.shape), dtype, torch=_arrays.is_tensor(query))
    logsumexp = np.empty(query.shape[:3], np.float32) if return_logsumexp else None
    counts = np.zeros((*query.shape[:2], 2), np.int64) if return_stats else None
    norms = None if key_norms is None else key_norms._norms
    _core.attention(*(*arguments, _arrays.storage(output), logsumexp, counts, norms))
    results: list[Any] = [output]
    if logsumexp is not None:
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
    module = _arrays.module_of(query)
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
    if _arrays.is_tracing():
        _validation.untraced_positions(options)
        return bias, options
    mask, (query_positions, _) = checked_masks(options, shape)
    if scaling_per(getattr(bias, "scaling", None)) is not None:
        slopes = linear_slopes(bias, shape, mask, query_positions)
        bias = ALiBi(bias.num_heads, slopes=slopes, sides="two_slopes")
    return bias, options


@dataclass(frozen=True)
class AttentionGradients:
    """What `attention_gradients` returns; arrays as the inputs, but for the bias's float32 NumPy.

    Attributes:
        query, key, value: shapes and dtypes as theirs.
        left, right: of a linear bias's slopes, (batch, heads, queries), or None.
        dense: of any other bias, (batch, heads, queries, keys), or None.
    """

    query: Any
    key: Any
    value: Any
    left: NDArray[np.float32] | None
    right: NDArray[np.float32] | None
    dense: NDArray[np.float32] | None


def attention_gradients(
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    logsumexp: Array,
    output_gradient: Array,
    logsumexp_gradient: Array | None = None,
    bias: ALiBi | Array | None = None,
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
            key_positions, scale, skip_tolerance, rotary and log_n of that call; blocks of keys with
            no more than that share of a query's mass are left out here, too.

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
    _validation.forward_results(query, output, logsumexp, output_gradient, logsumexp_gradient)
    if needs_rotation(Options(**options)):
        results = (output, logsumexp, output_gradient, logsumexp_gradient)
        return _rotated_gradients(query, key, value, results, bias, bias_gradient, options)
    arguments = _core_arguments(query, key, value, bias, Options(**options), dtype)
    torch = _arrays.is_tensor(query)
    gradients = [_arrays.empty(tuple(x.shape), dtype, torch=torch) for x in (query, key, value)]
    if options.get("key_padding_mask") is not None:  # the core leaves padding as it is
        for gradient in gradients[1:]:
            _arrays.storage(gradient)[...] = 0
    linear = isinstance(bias, ALiBi)
    rows = tuple(query.shape[:3])
    left, right = (np.zeros(rows, np.float32) if linear and bias_gradient else None for _ in "lr")
    dense = None
    if bias is not None and not linear and bias_gradient:
        dense = np.zeros((*rows, key.shape[2]), np.float32)
    log_gradient = None if logsumexp_gradient is None else _floats(logsumexp_gradient)
    incoming = (_readable(output), _floats(logsumexp), _readable(output_gradient), log_gradient)
    outgoing = (*map(_arrays.storage, gradients), left, right, None, None, dense)
    _core.attention_gradients(*(*arguments, *incoming, *outgoing))
    return AttentionGradients(gradients[0], gradients[1], gradients[2], left, right, dense)


def _rotated_gradients(
    query: Any,
    key: Any,
    value: Any,
    results: tuple[Any, ...],
    bias: Any,
    bias_gradient: bool,
    options: dict[str, Any],
) -> AttentionGradients:
    """Gradients of queries and keys that were rotated: rotated back, summed over the parts."""
    bias, checked = prepared(query, key, bias, Options(**options))
    rotated = Rotated(query, key, checked)
    turned = rotated.query(query), rotated.key(key)
    module, wide = _arrays.module_of(query), _arrays.at_least_float32
    key_sum, value_sum = (module.zeros_like(wide(x)) for x in (key, value))
    query_parts, left, right = [], [], []
    dense = None
    if bias_gradient and bias is not None and not isinstance(bias, ALiBi):
        dense = np.zeros(rotated.shape, np.float32)
    for part in rotated.parts(query):
        output, logsumexp, *incoming = map(part.of_queries, results)
        found = attention_gradients(
            part.query(part.of_queries(turned[0])),
            part.key(part.of_keys(turned[1])),
            part.of_keys(wide(value)),
            wide(output),
            logsumexp,
            wide(incoming[0]),
            incoming[1],
            part.bias(bias),
            bias_gradient=bias_gradient,
            **part.options(rotated.options).given(),
        )
        query_parts.append(part.query(found.query))
        key_sum[:, :, part.keys] += part.key(found.key)
        value_sum[:, :, part.keys] += found.value
        left.append(found.left)
        right.append(found.right)
        if dense is not None:
            dense[:, :, part.queries, part.keys] = found.dense
    turned_back = rotated.query(module.concatenate(query_parts, 2), back=True)
    return AttentionGradients(
        _arrays.cast_like(turned_back, query),
        _arrays.cast_like(rotated.key(key_sum, back=True), key),
        _arrays.cast_like(value_sum, value),
        _joined(left),
        _joined(right),
        dense,
    )


def _joined(parts: list[NDArray[np.float32] | None]) -> NDArray[np.float32] | None:
    """Gradients of slopes of all queries, (batch, heads, queries); None where none were asked."""
    given = [part for part in parts if part is not None]
    return np.concatenate(given, axis=2) if given else None


def merge(outputs: Sequence[Array], logsumexps: Sequence[Array]) -> tuple[Array, Array]:
    """Join results of `attention` over disjoint sets of keys into the result over all of them.

    logsumexp = log sum_c exp(logsumexp_c),  output = sum_c exp(logsumexp_c - logsumexp) output_c

    Args:
        outputs: at least one, each (batch, heads, queries, head_dim).
        logsumexps: as many, each (batch, heads, queries).

    Returns:
        (output, logsumexp), as the first output and in float32; 0 and -inf for queries that no part
        saw a key of.

    Raises:
        TypeError, ValueError: the lists differ in length or hold other shapes.

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
    """
    _validation.parts(outputs, logsumexps)
    parts = np.stack([_arrays.to_numpy(part).astype(np.float64) for part in outputs])
    logs = np.stack([_arrays.to_numpy(log).astype(np.float64) for log in logsumexps])
    largest = logs.max(axis=0)
    weights = np.exp(logs - np.where(np.isneginf(largest), 0.0, largest))
    total = weights.sum(axis=0)
    with np.errstate(divide="ignore"):
        logsumexp = (largest + np.log(total)).astype(np.float32)
    weights /= np.where(total == 0.0, 1.0, total)
    output = np.where(weights[..., None] == 0.0, 0.0, weights[..., None] * parts).sum(axis=0)
    return _arrays.as_example(output, outputs[0]), _arrays.like(logsumexp, logsumexps[0])


def _core_arguments(
    query: Any, key: Any, value: Any, bias: Any, options: Options, dtype: str
) -> Any:
    """A tuple of what the core's functions take first, from inputs to the tolerance; checked."""
    options = checked_rule(options, query.shape[3])
    shape = (*query.shape[:3], key.shape[2])
    _validation.attention_bias(bias, shape, causal=options.causal)
    mask, positions = checked_masks(options, shape)
    tolerance = options.skip_tolerance
    return (
        _readable(query),
        _readable(key),
        _readable(value),
        _core_bias(bias, shape, mask, positions[0]),
        _arrays.CORE_DTYPES[dtype],
        options.scale,
        *positions,
        mask,
        options.causal,
        _validation.MAX_LENGTH if options.window is None else options.window,
        options.causal_block or 0,
        options.sink,
        ROUNDING if tolerance == 0.0 else tolerance or 0.0,
    )


def checked_rule(options: Options, head_dim: int) -> Options:
    """The options with plain numbers checked and the scale given; masks as they came."""
    causal = _validation.boolean("causal", options.causal)
    window = options.window
    if window is not None:
        window = _validation.integer("window", window, minimum=1)
    scale = 1.0 / math.sqrt(head_dim) if options.scale is None else options.scale
    return replace(
        options,
        causal=causal,
        window=window,
        causal_block=_validation.causal_block(options.causal_block, causal=causal),
        sink=_validation.integer("sink", options.sink, minimum=0),
        scale=_validation.finite("scale", scale, minimum=-math.inf),
        skip_tolerance=_validation.skip_tolerance(options.skip_tolerance),
    )


def checked_masks(
    options: Options, shape: tuple[int, ...]
) -> tuple[NDArray[np.uint8] | None, tuple[NDArray[np.int32] | None, NDArray[np.int32] | None]]:
    """Padding mask, and positions of queries and keys, of (batch, heads, queries, keys)."""
    batch, _, queries, keys = shape
    mask = _validation.key_padding_mask(options.key_padding_mask, batch, keys)
    return mask, _positions(options.query_positions, options.key_positions, batch, queries, keys)


def _floats(array: Any) -> NDArray[np.float32]:
    return np.require(_arrays.to_numpy(array), np.float32, ["C", "ALIGNED"])


def _readable(array: Any) -> NDArray[Any]:
    """Memory of an array, aligned and with unit last stride, copied only where it is not so."""
    memory = _arrays.storage(array)
    unit = memory.strides[-1] == memory.itemsize or memory.shape[-1] <= 1
    return memory if unit and memory.flags.aligned else memory.copy()


def _positions(
    query_positions: Any, key_positions: Any, batch: int, queries: int, keys: int
) -> tuple[NDArray[np.int32] | None, NDArray[np.int32] | None]:
    """Positions (1 or batch, length) as the core takes them; None for the columns."""
    checked_keys = _validation.positions("key_positions", key_positions, batch, keys)
    _validation.aligned(queries, keys, query_positions, key_positions)
    if query_positions is None and checked_keys is not None:
        return np.ascontiguousarray(checked_keys[:, keys - queries :]), checked_keys
    return _validation.positions("query_positions", query_positions, batch, queries), checked_keys


def _core_bias(
    bias: Any,
    shape: tuple[int, ...],
    mask: NDArray[np.uint8] | None,
    query_positions: NDArray[np.int32] | None,
) -> _core.AttentionBias:
    if bias is None:
        return _core.no_bias()
    if not isinstance(bias, ALiBi):
        dense = np.require(_arrays.to_numpy(bias), np.float32, ["ALIGNED"])
        return _core.dense_bias(np.broadcast_to(dense, shape))
    left, right = linear_slopes(bias, shape, mask, query_positions)
    _validation.slope_batch(max(left.shape[0], right.shape[0]), shape[0])
    return _core.linear_bias(left, right)


def linear_slopes(
    bias: ALiBi,
    shape: tuple[int, ...],
    mask: NDArray[np.uint8] | None,
    query_positions: NDArray[np.int32] | None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Left and right slopes of a problem (batch, heads, queries, keys), dynamic ones too."""
    lengths = None
    if scaling_per(bias.scaling) is not None:
        lengths = _lengths(bias, shape, mask, query_positions)
    return bias.left_right(shape[2], lengths)


def _lengths(
    bias: ALiBi,
    shape: tuple[int, ...],
    mask: NDArray[np.uint8] | None,
    query_positions: NDArray[np.int32] | None,
) -> NDArray[np.int64]:
    """Real tokens of each row, or for per="query" up to each query."""
    queries, keys = shape[2:]
    real = np.ones((1, keys), np.uint8) if mask is None else mask
    if scaling_per(bias.scaling) == "sequence":
        rows: NDArray[np.int64] = real.sum(axis=1, dtype=np.int64)
        return rows
    if query_positions is not None:
        return query_positions.astype(np.int64) + 1
    counts = np.pad(real.cumsum(axis=1, dtype=np.int64), ((0, 0), (1, 0)))
    columns = np.arange(keys - queries, keys)
    prefixes: NDArray[np.int64] = counts[:, np.maximum(columns + 1, 0)]
    return prefixes
