"""Fused attention: scores, bias, mask and softmax in one pass, no matrix of all pairs."""

from __future__ import annotations

from typing import Any, Literal

from ntk_alibi import _arrays, _checks
from ntk_alibi._arrays import Array
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.fused import checks
from ntk_alibi.fused.call import DEFAULTS, AttentionCall, Options, call_form
from ntk_alibi.fused.forward import forward
from ntk_alibi.fused.key_norms import KeyNorms
from ntk_alibi.positions.rotary import XPOS, RoPE


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
    """Compute attention with a bias over distance, tile by tile in float32.

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
        dropout: must be 0: the fused kernel has no attention dropout.
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
        checks.no_dropout(dropout)
    arrays = key_padding_mask, query_positions, key_positions
    placed = not (key_padding_mask is None and query_positions is None and key_positions is None)
    options = DEFAULTS
    if placed or align != "end" or rotary is not None or log_n is not None:
        options = Options(*arrays, align, rotary, log_n)
    if _arrays.is_tensor(query) and _arrays.needs_torch(query, key, value, bias):
        checks.without_torch("key_norms", key_norms is not None)
        checks.without_torch("return_stats", return_stats)
        # Only now: torch is optional, and here because a tensor is.
        from ntk_alibi.torch.operator import attention_of_tensors as attend

        tensors: tuple[Any, Any, Any] = (query, key, value)
        _checks.attention_inputs(*tensors)
        mask = causal, window, causal_block, sink
        output, logsumexp = attend(*tensors, bias, options, scale, skip_tolerance, *mask)
        return (output, logsumexp) if return_logsumexp else output
    if not _arrays.alike(query, key, value):
        _checks.attention_inputs(query, key, value)
    form = call_form(query, key, value, scale, skip_tolerance, causal, window, causal_block, sink)
    call = AttentionCall.checked(query, key, value, bias, form, options)
    output, logsumexp, stats = forward(
        call, key_norms=key_norms, log=return_logsumexp, stats=return_stats
    )
    if not (return_logsumexp or return_stats):
        return output
    return (output, *([logsumexp] if return_logsumexp else []), *([stats] if return_stats else []))
