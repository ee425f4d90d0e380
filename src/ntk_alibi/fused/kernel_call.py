"""One call of the compiled core: checked arguments, and the keys and biases passed to it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks, _core
from ntk_alibi._arrays import Array, readable
from ntk_alibi.biases import checks as bias_checks
from ntk_alibi.biases.base import BiasObject, KernelBias
from ntk_alibi.fused import checks
from ntk_alibi.fused.options import Options, checked_options, checked_problem
from ntk_alibi.masks import Problem

#: The share of a float32 sum that rounding to nearest may swallow: half an ulp.
ROUNDING = 2.0**-24


class ForwardResults(NamedTuple):
    """What the gradients come from: results of the forward pass, and gradients of them."""

    output: Any
    logsumexp: NDArray[np.float32]
    output_gradient: Any
    logsumexp_gradient: NDArray[np.float32] | None


class KeySubset(NamedTuple):
    """Some of the keys and their bias; shift is added to their logsumexp, or None."""

    bias: _core.AttentionBias
    mask: NDArray[np.uint8] | None
    shift: NDArray[np.float32] | None = None
    exempt: bool = False


class KernelCall(NamedTuple):
    """A call of the core, checked: its arguments but for the bias and the mask of keys."""

    query: Any
    key: Any
    value: Any
    dtype: str
    bias: KernelBias
    problem: Problem
    options: Options

    @staticmethod
    def checked(
        query: Any, key: Any, value: Any, bias: Any, options: Options, dtype: str
    ) -> KernelCall:
        """From arguments of `attention`, of which shapes are checked."""
        batch, heads, queries, head_dim = query.shape
        shape = (batch, heads, queries, key.shape[2])
        options = checked_options(options, head_dim, known=True)
        if not isinstance(bias, KernelBias):
            checks.attention_bias(bias, shape, causal=options.causal)
        problem = checked_problem(options, shape)
        return KernelCall(query, key, value, dtype, _kernel_bias(bias, problem), problem, options)

    def _arguments(self, part: KeySubset) -> tuple[Any, ...]:
        """What the core's functions take first, from inputs to the tolerance."""
        rule, tolerance = self.options, self.options.skip_tolerance
        return (
            readable(self.query),
            readable(self.key),
            readable(self.value),
            part.bias,
            _arrays.CORE_DTYPES[self.dtype],
            rule.scale,
            self.problem.query_positions,
            self.problem.key_positions,
            part.mask,
            rule.causal,
            _checks.MAX_LENGTH if rule.window is None else rule.window,
            rule.causal_block or 0,
            rule.sink,
            ROUNDING if tolerance == 0.0 else tolerance or 0.0,
        )

    def attend(
        self,
        part: KeySubset,
        *,
        counts: NDArray[np.int64] | None = None,
        norms: NDArray[np.float32] | None = None,
        log: bool = True,
    ) -> tuple[Array, NDArray[np.float32] | None]:
        """Output and shifted logsumexp of a part, the latter if wanted."""
        output = _arrays.empty_like(self.query)
        logsumexp = np.empty(self.query.shape[:3], np.float32) if log else None
        _core.attention(
            *(*self._arguments(part), _arrays.storage(output), logsumexp, counts, norms)
        )
        if part.shift is not None and logsumexp is not None:
            logsumexp += part.shift
        return output, logsumexp

    def parts(self) -> list[KeySubset]:
        """One, or two where tokens are exempt: the keys that are, and those that are not.

        Their scores have no slope, but a constant for each query that the logsumexp takes; and so
        have all scores of queries that are exempt.
        """
        bias, mask = self.bias, self.problem.mask
        if not bias.exempt:
            return [KeySubset(_core_bias(bias, self.problem), mask)]
        batch, heads, _, keys = self.problem.shape
        columns = self.problem.key_positions
        columns = np.arange(keys)[None] if columns is None else columns
        exempt = columns < bias.exempt
        real = np.ones((batch, keys), np.bool_) if mask is None else mask.astype(np.bool_)
        rows = self._exempt_queries()
        slopes = _sides(bias)
        none = (np.where(np.isinf(side), side, np.float32(0)) for side in slopes)
        some = (np.where(rows & ~np.isinf(side), np.float32(0), side) for side in slopes)
        shifts: list[Any] = [None, None]
        if bias.first is not None:
            first = np.broadcast_to(bias.first[None, :, None], (batch, heads, 1))
            zero = np.float32(0)
            shifts = [np.where(rows, zero, -first), np.where(rows, -first, zero)]
        return [
            KeySubset(_core.linear_bias(*none), (real & exempt).view(np.uint8), shifts[0], True),
            KeySubset(_core.linear_bias(*some), (real & ~exempt).view(np.uint8), shifts[1]),
        ]

    def _exempt_queries(self) -> NDArray[np.bool_]:
        """(1 or batch, 1, queries)."""
        queries, keys = self.problem.shape[2:]
        positions = self.problem.query_positions
        rows = np.arange(keys - queries, keys)[None] if positions is None else positions
        exempt: NDArray[np.bool_] = (rows < self.bias.exempt)[:, None]
        return exempt

    def bias_gradients(self) -> dict[str, NDArray[Any]]:
        """Zeros for the gradients of the bias."""
        bias, shape = self.bias, self.problem.shape
        gradients: dict[str, NDArray[Any]] = {}
        if bias.left is not None:
            gradients |= {name: np.zeros(shape[:3], np.float32) for name in ("left", "right")}
        if bias.dense is not None:
            gradients["dense"] = np.zeros(shape, np.float32)
        if bias.table is not None:
            gradients["table"] = np.zeros(bias.table.shape, np.float64)
        if bias.sums is not None:
            gradients["sums"] = np.zeros((*shape[:2], shape[3]), np.float64)
        return gradients

    def query_gradient(
        self,
        part: KeySubset,
        outside: ForwardResults,
        shared: tuple[NDArray[Any], ...],
        gradients: dict[str, NDArray[Any]],
    ) -> Array:
        """The query's gradient by one part, which writes those of its keys and of the bias."""
        log = outside.logsumexp if part.shift is None else outside.logsumexp - part.shift
        incoming = (
            readable(outside.output),
            log,
            readable(outside.output_gradient),
            outside.logsumexp_gradient,
        )
        gradient = _arrays.empty_like(self.query)
        names = ("left", "right", "table", "sums", "dense")
        own = (None if part.exempt else gradients.get(name) for name in names)
        _core.attention_gradients(
            *(*self._arguments(part), *incoming, _arrays.storage(gradient), *shared, *own)
        )
        return gradient

    def finish_exempt(
        self, part: KeySubset, outside: ForwardResults, gradients: dict[str, NDArray[Any]]
    ) -> None:
        """Sets gradients of slopes to 0 where they do not act, and makes that of the constant.

        The constant is subtracted from all scores of one part, whose sum of ds_ij is that of its
        weights times do_i.o_i(part) - do_i.o_i + dl_i; over all keys it is dl_i.
        """
        rows = self._exempt_queries()
        for name in ("left", "right"):
            gradients[name][np.broadcast_to(rows, gradients[name].shape)] = 0
        if self.bias.first is None:
            return
        output, own_log = self.attend(part)
        do, whole, own = (
            np.asarray(_arrays.to_numpy(x), np.float64)
            for x in (outside.output_gradient, outside.output, output)
        )
        log = outside.logsumexp.astype(np.float64)
        seen = ~np.isneginf(log)
        dl = 0.0 if outside.logsumexp_gradient is None else outside.logsumexp_gradient
        share = np.exp(own_log - np.where(seen, log, 0.0))
        of_part = share * ((do * (own - whole)).sum(axis=-1) + dl)
        of_rest = np.where(seen, dl, 0.0) - of_part
        gradients["first"] = -np.where(rows, of_rest, of_part).astype(np.float32)


def _sides(bias: KernelBias) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return np.asarray(bias.left, np.float32), np.asarray(bias.right, np.float32)


def _kernel_bias(bias: Any, problem: Problem) -> KernelBias:
    """A checked bias of any kind as the kernels take it, of NumPy numbers that fit the problem."""
    if bias is None:
        return KernelBias()
    if isinstance(bias, BiasObject):
        own = bias.kernel_bias(problem)
    elif isinstance(bias, KernelBias):
        own = bias
    else:
        own = KernelBias(dense=_arrays.to_numpy(bias))
    if own.left is not None and (own.left.shape[0] != 1 or own.right.shape[0] != 1):
        bias_checks.slope_batch(max(own.left.shape[0], own.right.shape[0]), problem.shape[0])
    if own.table is not None:
        bias_checks.covered(own.table_begin, own.table.shape[1], problem.distances())
    return own


def _core_bias(bias: KernelBias, problem: Problem) -> _core.AttentionBias:
    if bias.left is not None:
        return _core.linear_bias(*_sides(bias))
    if bias.table is not None:
        table = readable(np.asarray(bias.table, np.float32))
        return _core.table_bias(table, bias.table_begin)
    if bias.sums is not None:
        sums = readable(np.asarray(bias.sums, np.float64))
        return _core.sums_bias(np.broadcast_to(sums, (problem.shape[0], *sums.shape[1:])))
    if bias.dense is not None:
        dense = np.require(bias.dense, np.float32, ["ALIGNED"])
        return _core.dense_bias(np.broadcast_to(dense, problem.shape))
    return _core.no_bias()
