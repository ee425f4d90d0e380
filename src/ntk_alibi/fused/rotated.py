"""`attention` of queries and keys that are rotated and scaled first, for any way to attend.

The kernels know neither: they get other queries and keys. Only XPOS needs more than one call, since
its factors are powers of the distance to a centre: each run of queries has a centre of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ntk_alibi import _arrays, masks
from ntk_alibi.biases.alibi import ALiBi
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.biases.bialibi import BiALiBi
from ntk_alibi.biases.forget_gates import ForgetGates
from ntk_alibi.biases.slopes import both_sides, scaling_per
from ntk_alibi.fused import checks
from ntk_alibi.fused.options import Options, checked_options, checked_problem
from ntk_alibi.masks import first_positions
from ntk_alibi.positions import checks as position_checks
from ntk_alibi.positions.log_n import log_n_factors


def resolve_dynamic_slopes(
    query: Any, key: Any, bias: Any, options: Options
) -> tuple[Any, Options]:
    """Bias and options of a problem that is rotated, checked; slopes that depend on no lengths."""
    options = checked_options(options, query.shape[3])
    checks.rotary(options.rotary, query.shape[3], causal=options.causal)
    if options.log_n is not None:
        position_checks.train_length("log_n", options.log_n)
    shape = (*query.shape[:3], key.shape[2])
    checks.attention_bias(bias, shape, causal=options.causal)
    if masks.checked_alignment(options.align, options.query_positions) == "start":
        beside = first_positions(query, options.key_positions)
        options = options._replace(query_positions=beside, align="end")
    if _arrays.is_tracing():
        checks.untraced_positions(options)
        return bias, options
    problem = checked_problem(options, shape)
    if scaling_per(getattr(bias, "scaling", None)) is not None:
        own = bias.kernel_bias(problem)
        slopes = own.left, own.right
        bias = ALiBi(bias.num_heads, slopes=slopes, sides="two_slopes", exempt=own.exempt)
    return bias, options


#: By how much the logarithm of XPOS's fastest factor may differ between queries of one centre: less
#: means more calls, more makes the bounds on scores loose that skipping rests on.
SPREAD = 4.0

#: XPOS's factors below e^-70 are 0: no float32 sum of scores would notice them.
FADED = -70.0

#: Some way to attend: (query, key, value, bias, options) to results with queries on axis 2.
Attend: TypeAlias = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class QueryRun:
    """Some queries, the keys that they may see, and what both are multiplied with."""

    queries: slice
    keys: slice
    query_factor: Any = None
    key_factor: Any = None

    def of_queries(self, x: Any) -> Any:
        """Of (batch, heads, queries, …), what belongs to the part."""
        return x if x is None else x[:, :, self.queries]

    def of_keys(self, x: Any) -> Any:
        """Of (batch, heads, keys, …), what belongs to the part."""
        return x[:, :, self.keys]

    def query(self, x: Any) -> Any:
        """Rotated queries, or the gradient of the part's, faded."""
        return _times(x, self.query_factor)

    def key(self, x: Any) -> Any:
        """Likewise of keys."""
        return _times(x, self.key_factor)

    def options(self, options: Any) -> Any:
        """The options, for the part's queries and keys."""
        mask, positions = options.key_padding_mask, options.query_positions
        return options._replace(
            rotary=None,
            log_n=None,
            key_padding_mask=None if mask is None else mask[:, self.keys],
            query_positions=None if positions is None else positions[..., self.queries],
        )

    def bias(self, bias: Any) -> Any:
        """The bias, for the part's queries and keys."""
        if isinstance(bias, ALiBi):
            return self._linear(bias)
        if isinstance(bias, ForgetGates):
            return ForgetGates(bias.log_gates[..., self.keys])
        if isinstance(bias, BiasObject):  # of distances, which the last columns keep
            return bias
        if bias is not None and bias.ndim > 1 and bias.shape[-2] > 1:
            bias = bias[..., self.queries, :]
        if bias is not None and bias.ndim and bias.shape[-1] > 1:
            bias = bias[..., self.keys]
        return bias

    def _linear(self, bias: ALiBi) -> ALiBi:
        """Slopes of the part's queries, where each has its own."""
        sides = both_sides(bias.slopes)
        if all(getattr(side, "ndim", 0) < 3 for side in sides):
            return bias
        sides = tuple(x[:, :, self.queries] if x.ndim == 3 and x.shape[2] > 1 else x for x in sides)
        slopes = sides if bias.sides == "two_slopes" else sides[0]
        return ALiBi(bias.num_heads, slopes=slopes, sides=bias.sides, exempt=bias.exempt)


class Rotated:
    """One problem of attention, of which queries and keys are rotated and scaled.

    Options are checked, the bias has slopes that depend on no lengths.
    """

    def __init__(self, query: Any, key: Any, options: Any) -> None:
        self.shape = (*query.shape[:3], key.shape[2])
        if options.query_positions is None and options.key_positions is not None:
            last = options.key_positions[..., self.shape[3] - self.shape[2] :]
            options = options._replace(query_positions=last)
        self.options = options
        self.positions = masks.both_positions(
            options.query_positions, options.key_positions, query.shape[2], key.shape[2], query
        )
        self.log_n = None if options.log_n is None else self._log_n(query)

    def _log_n(self, query: Any) -> Any:
        options = self.options
        factors = log_n_factors(
            *self.positions,
            options.log_n,
            causal=options.causal,
            window=options.window,
            causal_block=options.causal_block,
            sink=options.sink,
            key_padding_mask=options.key_padding_mask,
        )
        return _arrays.cast_like(factors, _arrays.at_least_float32(query))[:, None, :, None]

    def query(self, query: Any, *, back: bool = False) -> Any:
        """Queries, or gradients of what this makes of them, rotated and scaled."""
        rotary = self.options.rotary
        query = _arrays.at_least_float32(query)
        if rotary is not None:
            query = rotary.turned(query, self.positions[0], back=back)
        return _times(query, self.log_n)

    def key(self, key: Any, *, back: bool = False) -> Any:
        """Keys, or gradients of what this makes of them, rotated."""
        rotary = self.options.rotary
        key = _arrays.at_least_float32(key)
        return key if rotary is None else rotary.turned(key, self.positions[1], back=back)

    def parts(self, example: Any, bias: Any) -> Iterator[QueryRun]:
        """Calls to make, in the order of the queries."""
        options, (queries, keys) = self.options, self.shape[2:]
        if not hasattr(options.rotary, "log_decays"):
            yield QueryRun(slice(0, queries), slice(0, keys))
            return
        for begin, end in self._runs():
            seen = slice(0, keys)
            if options.query_positions is None:
                seen = self._seen(begin, end, counted=_counts_positions(bias))
            yield QueryRun(
                slice(begin, end), seen, *self._factors(slice(begin, end), seen, example)
            )

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Queries that share a centre: their positions differ by little, in all rows."""
        options, queries = self.options, self.shape[2]
        spread = int(min(SPREAD / options.rotary.fastest_rate, 2**31))
        given = options.query_positions is not None
        rows = _arrays.to_numpy(self.positions[0]) if given else None
        begin = 0
        while begin < queries or begin == 0:
            end = min(begin + spread + 1, queries)
            if rows is not None:
                run = rows[:, begin:end]
                reach = np.maximum.accumulate(run, 1) - np.minimum.accumulate(run, 1)
                end = begin + int((reach <= spread).all(axis=0).sum())
            yield begin, end
            begin = max(end, 1)

    def _seen(self, begin: int, end: int, *, counted: bool) -> slice:
        """The columns that queries may see, such that the last ones are aligned as before.

        From the first one on where positions are counted from there, by sinks or a bias.
        """
        options, (queries, keys) = self.options, self.shape[2:]
        first, ends = keys - queries + begin, max(keys - queries + end, 0)
        begins = 0 if options.window is None else first - options.window + 1
        if options.causal_block is not None:
            block = options.causal_block
            begins = max(begins, (first // block - 1) * block) // block * block
        return slice(0 if options.sink or counted else min(max(begins, 0), ends), ends)

    def _factors(self, queries: slice, keys: slice, example: Any) -> tuple[Any, Any]:
        """XPOS's factors of a run of queries and of keys, (1 or batch, 1, length, head_dim)."""
        module = _arrays.namespace(example)
        q, k = self.positions[0][:, queries], self.positions[1][:, keys]
        if q.shape[1] == 0:
            return None, None
        first, last = module.amin(q, -1)[:, None], module.amax(q, -1)[:, None]
        centre = (first + last) // 2
        k = module.minimum(k, last)  # nobody sees what is ahead of all
        decays = self.options.rotary.log_decays(example)

        def factor(distance: Any) -> Any:
            logs = _arrays.widened(distance, None)[..., None] * decays
            powers = module.where(logs < FADED, 0.0, module.exp(module.clip(logs, FADED, None)))
            return _arrays.cast_like(powers, _arrays.at_least_float32(example))[:, None]

        return factor(q - centre), factor(centre - k)


def attend_rotated(
    attend: Attend, query: Any, key: Any, value: Any, bias: Any, options: Any
) -> list[list[Any]]:
    """What `attend` returns for each of the parts: outputs, logsumexps and more."""
    rotated = Rotated(query, key, options)
    turned = rotated.query(query), rotated.key(key)
    value = _arrays.at_least_float32(value)
    results = [
        attend(
            part.query(part.of_queries(turned[0])),
            part.key(part.of_keys(turned[1])),
            part.of_keys(value),
            part.bias(bias),
            part.options(rotated.options),
        )
        for part in rotated.parts(query, bias)
    ]
    return [list(column) for column in zip(*results, strict=True)]


def _counts_positions(bias: Any) -> bool:
    """Whether a bias tells the first tokens from others."""
    return isinstance(bias, BiALiBi) or bool(getattr(bias, "exempt", 0))


def needs_rotation(options: Any) -> bool:
    """Whether these options ask for what the kernels do not know."""
    return options.rotary is not None or options.log_n is not None


def _times(x: Any, factor: Any) -> Any:
    if factor is None:
        return x
    with _arrays.quiet(x):  # infinity in padding
        return x * factor
