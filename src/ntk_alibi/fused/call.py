"""A call of attention: its arguments, converted and checked once.

`checked_call` is the boundary of `na.attention`; all later code trusts its result.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from ntk_alibi import _arrays, _checks
from ntk_alibi._backends import backend_of
from ntk_alibi._torch_state import Way, in_autocast_dtype, is_tracing
from ntk_alibi.biases.base import check_fits, to_kernel_bias
from ntk_alibi.biases.kernel_bias import NO_BIAS, KernelBias
from ntk_alibi.fused.core_problem import CoreProblems, core_problems
from ntk_alibi.fused.dropout import NO_DROPOUT, Dropout, checked_dropout
from ntk_alibi.fused.options import DEFAULTS
from ntk_alibi.fused.quantized_rows import is_quantized
from ntk_alibi.masks import ALL, AT_END, Cut, Mask, Problem, checked_block_mask
from ntk_alibi.positions.log_n import as_log_n
from ntk_alibi.positions.rotary import XPOS, RoPE

#: Arguments of torch's scaled_dot_product_attention and of flash-attn, with advice for errors.
FOREIGN_ARGUMENTS = {
    "attn_mask": "pass a boolean array as mask, an array to add as bias, and padding as "
    "key_padding_mask",
    "block_mask": "pass mask: a boolean array, or a na.BlockMask of it that calls share",
    "dropout_p": "pass dropout, and a seed with arrays",
    "enable_gqa": "leave it out, because key and value may always have fewer heads",
    "is_causal": "pass causal, which is True by default",
    "alibi_slopes": "pass bias=na.ALiBi(num_heads, slopes=alibi_slopes)",
    **dict.fromkeys(
        ("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k"),
        "pass segment_ids=na.segment_ids_from_cu_seqlens(cu_seqlens)",
    ),
    **dict.fromkeys(
        ("max_seqlen", "max_seqlen_q", "max_seqlen_k", "deterministic"),
        "leave it out, because nothing depends on it",
    ),
    **dict.fromkeys(
        ("return_attn_probs", "return_softmax_lse"),
        "pass return_logsumexp for the logsumexp; weights are never made",
    ),
    "softcap": "leave it out, because scores are not capped here",
    "softmax_scale": "pass scale",
    "window_size": "pass window, which counts the query itself: window_size[0] + 1",
}


#: The options of padding, positions and packed segments.
OF_TOKENS = (
    "key_padding_mask", "query_positions", "key_positions", "segment_ids", "query_segment_ids",
    "align",
)  # fmt: skip


class AttentionCall(NamedTuple):
    """A checked call of attention.

    Attributes:
        query: (batch, heads, queries, head_dim), array or tensor.
        key: (batch, key heads, keys, head_dim).
        value: (batch, key heads, keys, head_dim).
        bias: of NumPy arrays, or of tensors that autograd follows.
        problem: shape, mask and positions.
        way: how it is computed.
        scale: the factor of q.k.
        skip_tolerance: the argument of `attention`.
        rotary: the rotary embedding, not applied yet, or None.
        factors: factors of q.k beside the scale, (1 or batch, 1 or heads, queries), in the bias's
            framework, or None.
        initial_logsumexp: the logsumexp of `initial`, (batch, heads, queries) float64, which counts
            when keys are skipped, or None.
        memory: the memory of query, key and value if it was found before, else None.
        norms: the `KeyNorms` of these keys, or None.
        dropout: the dropout of weights, or None.
        core: the core's objects for all of this but the inputs, if they were made before, or None.
    """

    query: Any
    key: Any
    value: Any
    bias: KernelBias
    problem: Problem
    way: Way
    scale: float
    skip_tolerance: float | None
    rotary: RoPE | XPOS | None = None
    factors: Any = None
    initial_logsumexp: Any = None
    memory: _arrays.Memory | None = None
    norms: Any = None
    dropout: Dropout | None = None
    core: CoreProblems | None = None

    @property
    def group(self) -> int:
        """The number of query heads that read one key head."""
        group: int = self.query.shape[1] // max(self.key.shape[1], 1)
        return group

    def with_inputs(self, query: Any, key: Any, value: Any, **others: Any) -> AttentionCall:
        """Return the call with other inputs, and with other values of fields by name."""
        new = {"query": query, "key": key, "value": value, "memory": None, "norms": None}
        return self._replace(**new, core=None, **others)

    def in_core(self) -> CoreProblems:
        """Return the core's objects for all of the call but its inputs."""
        if self.core is not None:
            return self.core
        rest = self.scale, self.skip_tolerance, self.factors
        return core_problems(self.bias, self.problem, *rest)

    def cut(self, cut: Cut) -> AttentionCall:
        """Return the call of a part, whose heads are all that read their keys."""
        of_keys, group = cut, self.group
        if cut.heads != ALL:
            begin, end = cut.ends(self.problem.shape)[1]
            of_keys = cut._replace(heads=slice(begin // group, end // group))
        return self.with_inputs(
            cut.of(self.query, "bhq"),
            of_keys.of(self.key, "bhk"),
            of_keys.of(self.value, "bhk"),
            bias=self.bias.cut(cut, self.problem.shape),
            problem=self.problem.cut(cut),
            factors=cut.of(self.factors, "BHq"),
            initial_logsumexp=cut.of(self.initial_logsumexp, "bhq"),
            dropout=self.dropout and self.dropout.cut(cut),
        )


def all_options(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return all options of a call, with defaults for those that are missing.

    Raises:
        TypeError, ValueError: an option is unknown, or attention cannot be called here.
    """
    _checks.check_no_context_parallel()
    if not given:
        return DEFAULTS
    options = {**DEFAULTS, **given}
    if len(options) > len(DEFAULTS):
        others = given.keys() - DEFAULTS.keys()
        name = min(sorted(others), key=lambda name: name not in FOREIGN_ARGUMENTS)
        instead = f": {FOREIGN_ARGUMENTS[name]}" if name in FOREIGN_ARGUMENTS else ""
        raise TypeError(f"attention() got an unexpected keyword argument {name!r}{instead}")
    return options


def checked_call(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    options: Mapping[str, Any],
    way: Way = Way.CORE,
) -> AttentionCall:
    """Convert and check the arguments of `attention`.

    Args:
        query: the queries.
        key: the keys.
        value: the values.
        bias: a bias object, a dense array or None.
        options: all options, as `all_options` returns them.
        way: how the call is computed. Where torch has to see it, the bias becomes tensors that
            autograd follows, inputs get autocast's dtype, and float64 is allowed.

    Raises:
        TypeError, ValueError: an argument is wrong, or two of them contradict each other.
    """
    given, like, torch = query, None, way is not Way.CORE
    # If their memory is found, their types and dtypes are equal.
    memory = None if torch else _arrays.find_memory(query, key, value)
    if memory is None:
        _check_inputs(query, key, value)
    if torch:
        query, key, value = in_autocast_dtype(query, key, value)
        like = query

    # Most calls repeat the shapes and scalars of an earlier call, of another layer.
    basics = (
        query.dtype, query.shape, key.shape, value.shape, torch,
        options["scale"], options["skip_tolerance"],
        options["causal"], options["window"], options["causal_block"], options["sink"],
    )  # fmt: skip
    try:
        checked = None if torch else _kept_basics(*basics)
    except TypeError:  # a wrong type, or a type without a hash
        checked = None
    problem, scale, skip_tolerance = checked or _check_basics(*basics)

    rotary, log_n, factors = options["rotary"], options["log_n"], None
    if rotary is not None:
        _check_rotary(rotary, query.shape[3], problem.mask)
    padding, at_queries, at_keys, ids, query_ids, align = map(options.__getitem__, OF_TOKENS)
    columns = padding is at_queries is at_keys is ids is query_ids is None
    if not columns or align is not AT_END:
        of_tokens = padding, at_queries, at_keys, align, like, ids, query_ids
        problem = Problem.checked(problem.shape, problem.mask, *of_tokens)
    if options["mask"] is not None:
        visible = checked_block_mask(options["mask"], problem.shape, query)
        problem = problem._replace(visible=visible)
    kept = None
    if checked is not None and problem is checked[0]:
        kept = _find_core(bias, *checked)
    kernel, core = kept or (to_kernel_bias(bias, problem, like), None)
    # While torch traces, lengths may be symbols: then the operator checks.
    if (not torch or not is_tracing()) and query.shape[2] > key.shape[2]:
        problem.check_columns()
    if log_n is not None:
        log_n = as_log_n(log_n)
        factors, core = log_n.factors(problem, like), None

    initial_logsumexp, key_norms, dropped = None, options["key_norms"], None
    if options["initial"] is not None:
        initial_logsumexp = _checked_initial(options["initial"], query, given.dtype)
    if key_norms is not None:
        _checks.at_most_one(segment_ids=ids, key_norms=key_norms)
        _checks.at_most_one(rotary=rotary, key_norms=key_norms)
        _check_norms(key_norms, key, problem, kernel)
    if options["dropout"] is not NO_DROPOUT or options["seed"] is not None:
        dropped = checked_dropout(options["dropout"], options["seed"], query, key.shape[2])
    return AttentionCall(
        query, key, value, kernel, problem, way, scale, skip_tolerance,
        rotary, factors, initial_logsumexp, memory, key_norms, dropped, core,
    )  # fmt: skip


def check_lengths(queries: int, keys: int) -> None:
    """Check that the core takes so many queries and keys."""
    for name, length in (("query", queries), ("key", keys)):
        if length > _checks.MAX_LENGTH:
            raise ValueError(f"{name} must have at most {_checks.MAX_LENGTH} tokens, got {length}")


def _check_inputs(query: Any, key: Any, value: Any) -> None:
    """Check the types, dtypes and devices of query, key and value."""
    if not (is_quantized(key) or is_quantized(value)):
        _checks.attention_inputs(query, key, value)
        return
    _checks.attention_input("query", query)
    for name, rows in (("key", key), ("value", value)):
        if not is_quantized(rows):
            raise TypeError(
                "key and value must both be QuantizedRows or both be arrays, got a "
                f"{name} of type {type(rows).__name__}"
            )
        if not backend_of(query).holds(rows.numbers):
            raise TypeError(f"{name} must be of query's framework, got {type(rows.numbers)}")
        if getattr(rows.numbers, "device", None) != getattr(query, "device", None):
            raise ValueError(f"{name} must be on query's {query.device}, got {rows.numbers.device}")


def _check_rotary(rotary: Any, head_dim: int, mask: Mask) -> None:
    """Check the argument rotary."""
    if isinstance(rotary, type) or not callable(getattr(rotary, "rotated", None)):
        raise TypeError(f"rotary must be None, a RoPE or an XPOS, got {_checks.briefly(rotary)}")
    if rotary.head_dim != head_dim:
        raise ValueError(
            f"rotary must have query's head_dim {head_dim}, got {_checks.briefly(rotary)}"
        )
    if rotary.decays and mask.sees_ahead:
        raise ValueError(
            "causal must be True, which hides all keys ahead, with XPOS, which grows there, "
            f"got {_checks.briefly(rotary)}"
        )


def _checked_initial(initial: Any, query: Any, dtype: Any) -> Any:
    """Check the argument initial, results over other keys, and return its logsumexp, float64."""
    if not isinstance(initial, tuple) or len(initial) != 2:
        raise TypeError(
            f"initial must be a pair (output, logsumexp), got {_checks.briefly(initial)}"
        )
    names = "initial's output", "initial's logsumexp"
    for name, array, shape in zip(names, initial, (query.shape, query.shape[:3]), strict=True):
        if not backend_of(query).holds(array):
            raise TypeError(f"{name} must be of query's framework, got {type(array).__name__}")
        _checks.check_plain(name, array)
        if tuple(array.shape) != tuple(shape):
            raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(array.shape)}")
    if initial[0].dtype != dtype:
        raise TypeError(f"{names[0]} must be of query's {dtype}, got {initial[0].dtype}")
    _checks.floating_dtype(initial[1].dtype, ("float32", "float64"), names[1])
    return backend_of(query).convert(initial[1], "float64")


def _check_norms(key_norms: Any, key: Any, problem: Problem, kernel: KernelBias) -> None:
    """Check the argument key_norms, of keys at consecutive positions."""
    if not hasattr(key_norms, "norms"):
        raise TypeError(f"key_norms must be None or a KeyNorms, got {_checks.briefly(key_norms)}")
    consecutive = problem.key_padding_mask is problem.key_positions is None
    if not consecutive or kernel.exempt:
        raise ValueError("key_norms must be None with key_padding_mask or key_positions")
    *of_keys, head_dim = key.shape
    got = [*key_norms.norms.shape[:2], key_norms.length]
    if got != of_keys:
        raise ValueError(
            f"key_norms must be of key's (batch, heads, keys) {tuple(of_keys)}, got {tuple(got)}"
        )
    if key_norms.centres.shape[2] != head_dim:
        raise ValueError(
            f"key_norms must be of key's head_dim {head_dim}, got {key_norms.centres.shape[2]}"
        )
    dtype = _arrays.dtype_name((key.numbers if is_quantized(key) else key).dtype)
    if key_norms.dtype != dtype:
        raise TypeError(f"key_norms must be of key's dtype {dtype}, got {key_norms.dtype}")


def _check_basics(
    dtype: Any,
    query_shape: tuple[int, ...],
    key_shape: tuple[int, ...],
    value_shape: tuple[int, ...],
    torch: bool,
    scale: Any,
    skip_tolerance: Any,
    *mask: Any,
) -> tuple[Problem, float, float | None]:
    """Check the part of a call that depends on shapes and scalars only.

    Returns:
        The problem with real keys only and columns as positions, the scale and the tolerance.
    """
    allowed = _arrays.ANY_DTYPES if torch else _arrays.FUSED_DTYPES
    if not torch and _arrays.dtype_name(dtype) == "float64":
        raise TypeError(
            f"query must be of a dtype of {', '.join(allowed)}, got float64: pass "
            "query.astype(numpy.float32), or see ntk_alibi.reference.attention"
        )
    _checks.floating_dtype(dtype, allowed, "query")
    _checks.check_shapes(query_shape, key_shape, value_shape)
    if not torch:  # else in the operator, since lengths may be symbols here
        check_lengths(query_shape[2], key_shape[2])
    checked_mask = Mask.checked(*mask)
    scale = _checks.scale(scale, _checks.head_dim(query_shape[3]))
    if skip_tolerance is not None:
        share = _checks.finite("skip_tolerance", skip_tolerance, minimum=0.0)
        if share >= 1.0:
            raise ValueError(
                f"skip_tolerance must be below 1, got {_checks.briefly(skip_tolerance)}"
            )
        skip_tolerance = share
    problem = Problem((*query_shape[:3], key_shape[2]), checked_mask)
    return problem, scale, skip_tolerance


_kept_basics = functools.lru_cache(maxsize=256, typed=True)(_check_basics)


def _find_core(
    bias: Any, problem: Problem, *scalars: Any
) -> tuple[KernelBias, CoreProblems] | None:
    """Return a bias and a plain problem for the core, kept if the bias is constant, else None."""
    constant = getattr(bias, "constant", None)
    if constant is None and bias is not None:
        return None
    if bias is not None and (bias.num_heads != problem.shape[1] or not problem.mask.causal):
        check_fits(bias, problem.shape[1], causal=problem.mask.causal, length=problem.shape[2])
    try:
        return _kept_core(problem, constant, *scalars)
    except TypeError:  # the scaling has no hash
        return None


@functools.lru_cache(maxsize=256)
def _kept_core(problem: Problem, constant: Any, *scalars: Any) -> tuple[KernelBias, CoreProblems]:
    kernel = NO_BIAS if constant is None else constant.kernel_bias()
    return kernel, core_problems(kernel, problem, *scalars)
