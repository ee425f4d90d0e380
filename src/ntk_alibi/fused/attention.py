"""Fused attention: scores, bias, mask and softmax tile by tile, without a matrix of all pairs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from ntk_alibi import _checks
from ntk_alibi._arrays import Array, ArrayT
from ntk_alibi._torch_state import Way, way_of
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.fused.call import AttentionCall, all_options, checked_call
from ntk_alibi.fused.forward import compute_in_core, rounded_logsumexp
from ntk_alibi.fused.merge import merge_checked
from ntk_alibi.fused.options import AttentionOptions, with_options
from ntk_alibi.fused.parts import Results, compute_in_parts
from ntk_alibi.fused.quantized_rows import QuantizedRows, is_quantized

if TYPE_CHECKING:
    from typing_extensions import Unpack


@overload
def attention(
    query: ArrayT,
    key: ArrayT | QuantizedRows,
    value: ArrayT | QuantizedRows,
    bias: BiasObject | Array | None = None,
    *,
    return_logsumexp: Literal[False] = False,
    return_stats: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> ArrayT: ...
@overload  # a tuple, as return_logsumexp and return_stats ask for
def attention(
    query: ArrayT,
    key: ArrayT | QuantizedRows,
    value: ArrayT | QuantizedRows,
    bias: BiasObject | Array | None = None,
    *,
    return_logsumexp: bool = False,
    return_stats: bool = False,
    **options: Unpack[AttentionOptions],
) -> tuple[ArrayT, Unpack[tuple[Any, ...]]]: ...
@with_options
def attention(
    query: Array,
    key: Array | QuantizedRows,
    value: Array | QuantizedRows,
    bias: BiasObject | Array | None = None,
    *,
    return_logsumexp: bool = False,
    return_stats: bool = False,
    **options: Unpack[AttentionOptions],
) -> Any:
    """Compute attention with a bias, tile by tile in float32, without a matrix of all pairs.

    Formula::

        output[i] = sum_j softmax_j(scale q_i.k_j + bias(i, j)) v_j

    The sum is over the keys j that query i sees. With d = position(i) - position(j), these are the
    real keys with d >= 0 if causal; with `|d| < window` if there is a window; in the query's block
    of causal_block positions or the block before, if there is a causal_block. Keys at the first
    `sink` positions are also seen beyond the window and the block, at their true distances; without
    `causal`, sinks ahead of the query are seen within the window only. Two examples, with 1 where
    the query (row) sees the key (column)::

        3 queries, 5 keys, causal        window=2, sink=1
            1 1 1 0 0                        1 1 1 0 0
            1 1 1 1 0                        1 0 1 1 0
            1 1 1 1 1                        1 0 0 1 1

    A mask hides further keys, pair by pair: a query sees a key that it and all other options show.
    A query that sees no key gets output 0 and logsumexp -inf. Hidden keys take part in no
    arithmetic, so NaN in padding or in the future does not spread.

    Shapes: B batch, H query heads, H' key heads, Q queries, K keys, D head_dim.

    Args:
        query: (B, H, Q, D), float32, bfloat16 or float16, D from 1 to 256.
        key: (B, H', K, D); H is a multiple of H' (GQA, MQA). Key and value may be `QuantizedRows`.
        value: (B, H', K, D).
        bias: None, a bias object such as `ALiBi` or any other `BiasObject`, or an array or tensor
            that broadcasts to (B, H, Q, K).
        options: the following arguments, by name. Names of other libraries' arguments raise an
            error that names the argument to pass here.
        causal: whether keys ahead of the query are hidden.
        window: how many positions back (and ahead) a query sees, itself included.
        causal_block: length of the blocks of block-wise causal attention: a query sees its own
            block up to itself, and the block before.
        sink: how many of the first positions every later query sees beyond its window or block, one
            of which must be given with it. `sink` of `patch` differs: it
            moves sinks next to the window.
        mask: (B or 1, H or 1, Q, K), boolean, True where a query may see a key; or a `BlockMask`
            of it, which several calls share. Blocks of keys that no query of a tile sees are
            skipped. With causal=True, keys ahead stay hidden.
        key_padding_mask: (B, K), 1 or True for real keys, like transformers' attention_mask.
        query_positions: (Q,) or (B, Q) integers; by default the positions of the last Q keys. To be
            given, or align="start", for more queries than keys if the first would see none.
        key_positions: (K,) or (B, K) integers; by default the columns 0 .. K - 1. BLOOM counts real
            tokens: cumsum(mask) - 1.
        align: without query_positions, "end" puts the last query at the last key, "start" the first
            query at the first key, as for cross-attention between two parallel texts.
        segment_ids: (K,), (1, K) or (B, K) integers, the packed segment of each key: keys with the
            same id in a row form one text. The result equals one call per segment, with positions
            from 0 in each, for every option. `segment_ids_from_cu_seqlens` converts cumulative
            lengths. key_positions must not decrease within a segment.
        query_segment_ids: (Q,), (1, Q) or (B, Q) integers, the packed segment of each query; by
            default the ids of the last Q keys. A query whose segment has no keys sees none.
        scale: the factor of q.k, 1 / sqrt(D) by default.
        skip_tolerance: skip keys whose weights are proven to sum to at most this share of each
            query's weights; less than 1. 0.0 skips only keys that rounding would lose (2^-24); None
            reads every visible key. The proof covers linear biases with slopes >= 0, tables and
            prefix sums (docs/exactness.md); other biases, devices other than the CPU, and calls
            with few keys read all keys.
        rotary: a `RoPE` or `XPOS`, which first rotates queries and keys by their positions.
            bfloat16 and float16 are then computed in float32 and rounded once.
        log_n: a training length or a `LogN`: multiply scores by a factor that grows with the
            logarithm of the number of keys that a query sees.
        initial: (output, logsumexp) of the same queries over other keys, as this function returns
            them. The result covers both sets of keys, as with `merge`; keys that do not matter for
            it are skipped.
        key_norms: the `KeyNorms` of these keys; not with rotary, key_padding_mask, key_positions,
            segment_ids or exempt tokens.
        dropout: the share of weights that are set to 0 at random, 0 to 1, rounded to a multiple of
            2^-16. The other weights are divided by the share that stays; the logsumexp is without
            dropout. Which weights are dropped depends only on seed, row, head, query and key
            (docs/formulas.md), not on threads or instruction sets.
        seed: the seed of dropout, 0 to 2^64 - 1; required for arrays. Tensors draw one from torch's
            generator for the CPU by default.
        return_logsumexp: whether to return the logsumexp, too: float32 (B, H, Q), the natural
            logarithm of the sum over exp(scores). `merge` takes both.
        return_stats: whether to return `Stats`, too.

    Returns:
        The output, with query's framework, shape and dtype; or a tuple of output, logsumexp and
        stats, as far as they are requested.

    Arrays are read without a copy if their last stride is 1. Tensors, parameters of biases and
    dense biases may require grad; torch.compile, autocast, vmap and every derivative of torch work
    (docs/compile.md). float64 tensors, and other derivatives than first gradients, go through
    torch's operations, some queries at a time; tensors on devices other than the CPU go through
    flash-attn, FlexAttention or torch's operations (docs/versions.md; NaN in hidden keys may spread
    there).

    Raises:
        TypeError: an argument has the wrong type or dtype; NumPy arrays are float64 (use
            `ntk_alibi.reference.attention`); a tensor is a DTensor (pass
            its `full_tensor()`).
        ValueError: an argument has the wrong shape or is out of range, or two arguments contradict
            each other; `QuantizedRows`, key_norms or return_stats with tensors that require grad;
            dropout of NumPy arrays without a seed.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> query, key, value = np.ones((3, 1, 8, 5, 16), np.float32)
        >>> na.attention(query, key, value, na.ALiBi(8, na.NTK(4.0))).shape
        (1, 8, 5, 16)

    Source: Dao et al. 2022 (arXiv 2205.14135) for the tiling, Press et al. 2022 for the bias.
    """
    given = all_options(options)
    if return_logsumexp is not False or return_stats is not False:
        _checks.boolean("return_logsumexp", return_logsumexp)
        _checks.boolean("return_stats", return_stats)
    way = way_of(query, key, value, bias=bias)
    if way is not Way.CORE:
        for name, used in (
            ("key_norms", given["key_norms"] is not None),
            ("return_stats", return_stats),
            ("a quantized key or value", is_quantized(key) or is_quantized(value)),
        ):
            if used:
                raise ValueError(
                    f"{name} is for calls that torch neither records nor traces: use "
                    "torch.no_grad() and float32, bfloat16 or float16 on the CPU"
                )
    check = checked_call
    if way is not Way.CORE:
        from ntk_alibi.fused.tensors.operator import check_tensors as check
    call = check(query, key, value, bias, given, way)
    initial = given["initial"]
    log = return_logsumexp or initial is not None
    compute = compute_in_core if way is Way.CORE and call.rotary is None else compute_call
    output, logsumexp, stats = compute(call, log=log, stats=return_stats)
    if initial is not None:
        output, logsumexp = merge_checked((initial[0], output), (call.initial_logsumexp, logsumexp))
    if not return_logsumexp and not return_stats:
        return output
    rounded = (rounded_logsumexp(logsumexp, query),) if return_logsumexp else ()
    return (output, *rounded, *((stats,) if return_stats else ()))


def compute_call(call: AttentionCall, *, log: bool = True, stats: bool = False) -> Results:
    """Return output, logsumexp (float64; None without log) and stats (or None) of a checked call.

    The core computes what torch need not see.
    """
    if call.way is Way.CORE:
        if call.rotary is None:
            return compute_in_core(call, log=log, stats=stats)
        return compute_in_parts(call, partial(compute_in_core, log=log, stats=stats))
    # Imported here because torch is optional.
    from ntk_alibi.fused.tensors.operator import compute_tensors

    return (*compute_tensors(call, log=log), None)
