"""Fused attention: scores, bias, mask and softmax in one pass, no matrix of all pairs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from ntk_alibi import _arrays
from ntk_alibi._arrays import Array, ArrayT
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.fused.call import AttentionCall, all_options, checked_call
from ntk_alibi.fused.forward import forward, rounded_logsumexp
from ntk_alibi.fused.merge import merged
from ntk_alibi.fused.options import AttentionOptions, with_options
from ntk_alibi.fused.parts import Results, in_parts
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
@overload  # an output, and what is asked for with it
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
    """Compute attention with a bias over distance, tile by tile in float32.

    Formula::

        output[i] = sum_j softmax_j(scale q_i.k_j + bias(i, j)) v_j

    The sum is over the keys j that query i sees. With d = position(i) - position(j), it sees the
    real keys with d >= 0 if causal, with `|d| < window` if there is a window, and, if there is a
    causal_block, in its own block of that many positions or the one before. Keys at the first
    `sink` positions are seen from beyond the window and the block, too, at their true distances;
    without `causal`, those ahead of the query are seen within the window alone. Queries (rows) and
    keys (columns) of two masks, 1 for a pair that is seen::

        3 queries, 5 keys, causal        window=2, sink=1
            1 1 1 0 0                        1 1 1 0 0
            1 1 1 1 0                        1 0 1 1 0
            1 1 1 1 1                        1 0 0 1 1

    A query that sees no key gets 0 and logsumexp -inf. Hidden keys take part in no arithmetic: NaN
    in padding or in the future stays there.

    Letters of shapes: B batch, H heads of queries, H' heads of keys, Q queries, K keys, D head_dim.

    Args:
        query: (B, H, Q, D), float32, bfloat16 or float16, D from 1 to 256.
        key: (B, H', K, D); H is a multiple of H' (GQA, MQA). Key and value may be `QuantizedRows`.
        value: (B, H', K, D).
        bias: an `ALiBi`, `BiALiBi`, `KerplePower`, `KerpleLog`, `Sandwich`, `BAM`, `T5`,
            `DistanceTable`, `DistanceFunction`, `ForgetGates` or any other `BiasObject`, or numbers
            broadcastable to (B, H, Q, K), or None.
        options: the arguments that follow, by name. The error for names of torch's arguments says
            what to pass here.
        causal: whether keys ahead of the query are hidden.
        window: the number of positions back (and ahead) that a query sees, itself included.
        causal_block: length of the blocks of block-wise causal attention, in which a query sees its
            own block up to itself and the one before it.
        sink: the number of first positions that every query behind them sees. `patch` has a `sink`
            of another kind, which moves sinks next to the window.
        key_padding_mask: (B, K), 1 or True for real keys, as transformers' attention_mask.
        query_positions: (Q,) or (B, Q) integers; by default the columns, the last query at the last
            key. With key_positions, the last of those.
        key_positions: (K,) or (B, K) integers, the columns by default. BLOOM counts real tokens:
            cumsum(mask) - 1.
        align: without query_positions, "end" puts the last query at the last key, "start" the first
            at the first, as in cross-attention between two texts that run side by side.
        segment_ids: (K,), (1, K) or (B, K) integers, the number of its text for each key: a run of
            equal numbers is a text of its own. The result is that of one call for each text, with
            positions from 0 in each, for every option. `segment_ids_from_cu_seqlens` makes them
            from cumulative lengths. key_positions must not fall inside a text.
        query_segment_ids: (Q,), (1, Q) or (B, Q) integers, the same for queries; by default those
            of the last Q keys. A query whose text has no keys sees none.
        scale: factor of the dot products, 1 / sqrt(D) by default.
        skip_tolerance: keys are left out that are proven to have, together, at most this share of a
            query's softmax mass; less than 1. 0.0 leaves out only what rounding would swallow
            (2^-24); None reads every visible key. Linear biases with slopes >= 0, tables and prefix
            sums have a proof (docs/exactness.md); other biases, and other devices than the CPU,
            read all keys.
        rotary: a `RoPE` or `XPOS` that rotates queries and keys by their positions first. bfloat16
            and float16 are then computed in float32 and rounded once.
        log_n: a training length, or a `LogN`: scores before the bias, or with it, are multiplied by
            a factor that grows with the logarithm of the number of keys that a query sees.
        initial: an output and a logsumexp of the same queries over other keys, as this function
            returns them. The result is that over both sets of keys, as by `merge`, and keys are
            skipped if they do not matter for it.
        key_norms: norms of these very keys, kept by the caller; without rotary, key_padding_mask,
            key_positions, segment_ids and exempt tokens.
        dropout: the share of weights that are set to 0 at random, 0 to 1, of which the nearest
            multiple of 2^-16 is taken. The others are divided by the share that stays; the
            logsumexp is without dropout. A random number depends on seed, row, head, query and key
            alone (docs/formulas.md), so threads and instruction sets do not change what is dropped.
        seed: of the random numbers of dropout, from 0 to 2^64 - 1. Arrays need one; tensors draw
            one from torch's generator for the CPU by default.
        return_logsumexp: whether to return the logsumexp, too: float32 (B, H, Q), natural, of the
            scores as above. `merge` takes both.
        return_stats: whether to return `Stats`, too.

    Returns:
        The output, or a tuple of output, logsumexp and stats as far as they are asked for. The
        output has query's framework, shape and dtype. Any strides are read in place if the last one
        is 1; other arrays are copied once.

    Tensors may require grad, and so may parameters of biases and dense biases; torch.compile,
    autocast and vmap work. float64 tensors go through torch's own operations, some queries at a
    time, and tensors on other devices than the CPU through flash-attn, FlexAttention or these
    (docs/gpu.md; NaN in hidden keys may show there).

    Raises:
        TypeError, ValueError: an argument is wrong, or two of them contradict each other;
            `QuantizedRows`, key_norms or return_stats with tensors that require grad; dropout of
            NumPy arrays without a seed; NumPy arrays are float64 (use
            `ntk_alibi.reference.attention`); DTensors (use `ntk_alibi.distributed.attention`).

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> query, key, value = np.ones((3, 1, 8, 5, 16), np.float32)
        >>> na.attention(query, key, value, na.ALiBi(8, na.NTK(4.0))).shape
        (1, 8, 5, 16)

    Source: Dao et al. 2022 (arXiv 2205.14135) for the tiling, Press et al. 2022 for the bias.
    """
    given = all_options(options)
    torch = _arrays.needs_torch(query, key, value, bias)
    if torch:
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
    call = checked_call(query, key, value, bias, given, torch)
    initial = given["initial"]
    log = return_logsumexp or initial is not None
    output, logsumexp, stats = attend(call, log=log, stats=return_stats)
    if initial is not None:
        output, logsumexp = merged((initial[0], output), (call.known, logsumexp))
    if not return_logsumexp and not return_stats:
        return output
    rounded = (rounded_logsumexp(logsumexp, query),) if return_logsumexp else ()
    return (output, *rounded, *((stats,) if return_stats else ()))


def attend(call: AttentionCall, *, log: bool = True, stats: bool = False) -> Results:
    """Return output, logsumexp (float64; None without log) and stats (or None) of a checked call.

    The core computes if the call has its rule, else torch's operator, which autograd follows.
    """
    if call.rule is not None:
        if call.rotary is None:
            return forward(call, log=log, stats=stats)
        return in_parts(call, partial(forward, log=log, stats=stats))
    # Imported here, since torch is optional; it is loaded if there is a tensor.
    from ntk_alibi.torch.operator import attend_tensors

    return (*attend_tensors(call, log=log), None)
