"""The checked arguments of one call of attention, for all implementations."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from ntk_alibi import _arrays, _checks, _core, _torch_state
from ntk_alibi.biases.kernel_bias import KernelBias, kernel_bias_of
from ntk_alibi.fused import checks
from ntk_alibi.masks import AT_END, Mask, Problem
from ntk_alibi.positions.log_n import log_n_of
from ntk_alibi.positions.rotary import XPOS, RoPE


class Options(NamedTuple):
    """Keyword arguments of `attention` other than mask options, scale and skip_tolerance."""

    key_padding_mask: Any = None
    query_positions: Any = None
    key_positions: Any = None
    align: str = AT_END
    rotary: RoPE | XPOS | None = None
    log_n: Any = None
    initial: Any = None


#: The options of most calls.
DEFAULTS = Options()


class CallForm(NamedTuple):
    """The checked part of a call that depends on shapes and plain numbers alone.

    Attributes:
        problem: the problem with real keys only, and columns as positions.
        scale: factor of the dot products.
        skip_tolerance: the argument of `attention`.
        rule: mask, scale and tolerance in the core's form; None while torch traces.
    """

    problem: Problem
    scale: float
    skip_tolerance: float | None
    rule: _core.CallRule | None

    @staticmethod
    def checked(
        dtypes: tuple[str, ...],
        dtype: Any,
        query_shape: tuple[int, ...],
        key_shape: tuple[int, ...],
        value_shape: tuple[int, ...],
        scale: Any = None,
        skip_tolerance: Any = 0.0,
        causal: Any = True,
        *limits: Any,
    ) -> CallForm:
        """Return the form of inputs with one of these dtypes and of unchecked numbers.

        limits are the mask options other than causal.
        """
        checks.input_dtype(dtype, dtypes)
        _checks.fitting_shapes(query_shape, key_shape, value_shape)
        mask = Mask.checked(causal, *limits)
        scale = _checks.scale(scale, query_shape[3])
        tolerance = checks.skip_tolerance(skip_tolerance)
        problem = Problem((*query_shape[:3], key_shape[2]), mask)
        rule = None if _torch_state.is_tracing() else core_rule(mask, scale, tolerance)
        return CallForm(problem, scale, tolerance, rule)


_new_form = functools.partial(CallForm.checked, _arrays.FUSED_DTYPES)

#: Forms are cached, since most calls have the form of an earlier call, of another layer.
_known_form = functools.lru_cache(maxsize=256, typed=True)(_new_form)


def call_form(dtype: Any, query: Any, key: Any, value: Any, *numbers: Any) -> CallForm:
    """Return the form, cached or new, of inputs of a dtype, or of their memory.

    numbers are scale, skip_tolerance and mask options.
    """
    try:
        return _known_form(dtype, query.shape, key.shape, value.shape, *numbers)
    except TypeError:  # a wrong type, or a type without a hash
        return _new_form(dtype, query.shape, key.shape, value.shape, *numbers)


@functools.lru_cache(maxsize=256)
def core_rule(mask: Mask, scale: float, skip_tolerance: float | None) -> _core.CallRule:
    """Return a mask, a scale and a tolerance in the core's form."""
    return _core.CallRule(scale, skip_tolerance, mask.numbers())


class AttentionCall(NamedTuple):
    """A checked call of attention.

    Attributes:
        query: (batch, heads, queries, head_dim), array or tensor.
        key: (batch, key heads, keys, head_dim).
        value: (batch, key heads, keys, head_dim).
        bias: the kernel form, of NumPy numbers or of tensors that autograd follows.
        problem: shape, mask and positions.
        rule: mask, scale and tolerance in the core's form; None while torch traces.
        scale: factor of the dot products.
        skip_tolerance: the argument of `attention`.
        rotary: rotary embedding that is not applied yet, or None.
        factors: factors of the dot products besides the scale, (1 or batch, 1 or heads, queries),
            in the bias's framework, or None.
        known: logsumexps over other keys, (batch, heads, queries) float64, which count as read when
            keys are skipped, or None.
    """

    query: Any
    key: Any
    value: Any
    bias: KernelBias
    problem: Problem
    rule: Any
    scale: float
    skip_tolerance: float | None
    rotary: RoPE | XPOS | None = None
    factors: Any = None
    known: Any = None

    @staticmethod
    def checked(
        query: Any,
        key: Any,
        value: Any,
        bias: Any,
        form: CallForm,
        options: Options = DEFAULTS,
        like: Any = None,
    ) -> AttentionCall:
        """Return the call of inputs with a checked form.

        Args:
            query: the queries.
            key: the keys.
            value: the values.
            bias: the argument of `attention`.
            form: the form of the inputs and the numbers.
            options: the other keyword arguments.
            like: a tensor of the call if the bias is to hold tensors, else None.
        """
        problem, scale, tolerance, rule = form
        if options is not DEFAULTS:
            problem = _placed(problem, query.shape[3], options, like)
        bias = kernel_bias_of(bias, problem, like)
        known = None if options.initial is None else _arrays.float64(options.initial[1], query)
        factors, log_n = None, log_n_of(options.log_n)
        if log_n is not None:
            factors = _factors(problem, log_n, like)
            bias = bias.times(factors) if log_n.biased else bias
        return AttentionCall(
            query, key, value, bias, problem, rule, scale, tolerance, options.rotary, factors, known
        )

    @property
    def rotates(self) -> bool:
        """True if queries and keys have to be rotated first."""
        return self.rotary is not None

    def of_key_heads(self, heads: slice) -> AttentionCall:
        """Return the call of some heads of keys, and of the heads of queries that read them."""
        batch, query_heads, *lengths = self.problem.shape
        group = query_heads // max(self.key.shape[1], 1)
        own = slice(heads.start * group, heads.stop * group)
        query, factors = self.query[:, own], self.factors
        return self._replace(
            query=query,
            key=self.key[:, heads],
            value=self.value[:, heads],
            bias=self.bias.of_heads(own),
            problem=self.problem._replace(shape=(batch, query.shape[1], *lengths)),
            factors=factors if factors is None or factors.shape[1] == 1 else factors[:, own],
            known=None if self.known is None else self.known[:, own],
        )

    def part(self, queries: slice, keys: slice) -> AttentionCall:
        """Return the call of some queries and some keys."""
        return self._replace(
            query=self.query[:, :, queries],
            key=self.key[:, :, keys],
            value=self.value[:, :, keys],
            bias=self.bias.part(queries, keys, self.problem),
            problem=self.problem.part(queries, keys),
            factors=None if self.factors is None else self.factors[:, :, queries],
            known=None if self.known is None else self.known[:, :, queries],
        )


def _placed(problem: Problem, head_dim: int, options: Options, like: Any) -> Problem:
    """Return the problem with its padding and positions; check the options."""
    padding, query_positions, key_positions, align, rotary, *_ = options
    if rotary is not None:
        checks.rotary(rotary, head_dim, causal=not problem.mask.sees_ahead)
    if align is AT_END and padding is query_positions is key_positions is None:
        return problem
    shape, mask = problem[:2]
    return Problem.checked(shape, mask, padding, query_positions, key_positions, align, like)


def _factors(problem: Problem, log_n: Any, like: Any) -> Any:
    """Return factors (1 or batch, 1 or heads, queries) of scores, float32 or like's float64."""
    factors = log_n.factors(problem, like)
    if like is None:
        return _arrays.to_float32(factors)
    return _arrays.as_tensor(factors, like, _arrays.wide_dtype(like))
