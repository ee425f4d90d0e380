"""Bounds of the errors of right gradients; `bounds` has the bounds of the forward pass.

With do, dl the gradients of output and logsumexp, and z the factors of dropout, ds_ij = p_ij x_ij,
x_ij = z_ij do_i.v_j - do_i.o_i + dl_i.

*Weights* are computed again, p = exp(s - logsumexp): the score errs as before, the logsumexp by its
own interval, their difference and the score's and logsumexp's change of base by 4 u (|s| +
|logsumexp| + 1). Blocks of at most a share eps of a query's mass may be left out.

*x* errs by (D + 8) u of the magnitudes |do|.|v| and |do|.|o|, by |do| times the error of the
output, which is rounded to its dtype before, and by 4 u of all terms.

*Sums* of ds k over keys err as in `bounds`; sums of ds q and p do over the queries of a group
of heads, of tiles of at least 8 queries, by (40 + G Q / 8) u of the magnitudes. Rotating back errs
by 20 u of the greatest number that a turn can give; each run of XPOS adds its part. Factors of XPOS
that are left out are e^-68 of a product without fading.

In bfloat16, weights and ds may be rounded to bfloat16 before they meet rows of queries, keys or do:
2^-8 of each.

*Parameters* get sums of ds times derivatives, which the kernels add in float32 for slopes and in
float64 for tables, and torch's derivatives of the formulas: (80 + K / 16 + G Q / 8) u of the
magnitudes. The constant `first` of BiALiBi is computed from the outputs of both parts, each rounded
to its dtype: that dtype's error times p (|do|.|v| + |do|.|o|), over all pairs, since parts are
differences of wholes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fuzz.bounds import LEAST, ROUNDING, Bounds, Interval, grown
from fuzz.drawn.bias import Parameter

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GradientBounds:
    """The oracle's gradients of a call, with their errors.

    Attributes:
        bounds: the bounds of the forward pass.
        of_output: do, (batch, heads, Q, D).
        of_log: dl, (batch, heads, Q).
    """

    bounds: Bounds
    of_output: Floats
    of_log: Floats

    @cached_property
    def _seen_log(self) -> Floats:
        none = np.isneginf(self.bounds.softmax.logsumexp)
        return np.where(none, 0.0, self.of_log)

    @cached_property
    def of_scores(self) -> Floats:
        """Ds of all pairs."""
        value = self.bounds.call.exact[2]
        given = value, self.of_output, self._seen_log, self.bounds.call.dropped
        return self.bounds.softmax.scores_gradient(*given)

    @cached_property
    def weight_errors(self) -> Floats:
        """The errors of the weights that are computed again."""
        bounds, u = self.bounds, self.bounds.unit
        hidden = np.isneginf(bounds.bias)
        weights, log = bounds.softmax.weights, bounds.logsumexp
        scores = np.where(hidden, 0.0, bounds.call.products.values + bounds.bias)
        errors = bounds.score_errors + np.maximum(log.below, log.above)[..., None]
        errors = errors + 4 * u * (np.abs(scores) + np.abs(bounds.log) + 1)
        changed = grown(weights, np.where(hidden, 0.0, errors), bounds.log_weights)
        return changed + np.minimum(weights, bounds.share)

    @cached_property
    def errors(self) -> Floats:
        """The errors of ds."""
        bounds, do = self.bounds, np.abs(self.of_output)
        call, weights = bounds.call, bounds.softmax.weights
        products = call.dropped * (do @ np.abs(call.exact[2]).swapaxes(-1, -2))
        output = bounds.output
        size, name = np.abs(output.exact), call.form.name
        output_error = output.above + ROUNDING[name] * (size + output.above) + LEAST[name]
        mean = (do * size).sum(-1, keepdims=True)
        terms = products + mean + np.abs(self._seen_log)[..., None]
        error = bounds.unit * ((call.sizes.dim + 8) * (products + mean) + 4 * terms)
        error = error + (do * output_error).sum(-1, keepdims=True) + 2.0**-140 * (name != "float64")
        factor = np.abs(self._factor)
        errors: Floats = self.weight_errors * (factor + error) + weights * error
        return errors

    @cached_property
    def _factor(self) -> Floats:
        """X of all pairs."""
        value = self.bounds.call.exact[2]
        mean = (self.of_output * self.bounds.output.exact).sum(-1) - self._seen_log
        products = self.bounds.call.dropped * (self.of_output @ value.swapaxes(-1, -2))
        factor: Floats = products - mean[..., None]
        return factor

    @property
    def _over_queries(self) -> float:
        sizes = self.bounds.call.sizes
        length = self.bounds.call.group * sizes.queries
        if self.bounds.call.form.name == "float64":
            return self.bounds.unit * (length + 40)
        return self.bounds.unit * (40 + length / 8)

    def _in_products(self, size: Floats, errors: Floats) -> Floats:
        """Return the errors of what enters a product of bfloat16."""
        if self.bounds.call.form.name != "bfloat16":
            return errors
        return errors + ROUNDING["bfloat16"] * (size + errors)

    @property
    def _turning(self) -> float:
        sizes = self.bounds.call.sizes
        return self.bounds.unit * (20 + sizes.queries) if self.bounds.rotated else 0.0

    def _faded(self, others: Floats, *, of_keys: bool = False) -> Floats | float:
        """Return what factors of XPOS that are left out would add to a gradient."""
        call = self.bounds.call
        if not call.decays:
            return 0.0
        sizes = np.abs(call.factor) * np.abs(self.of_scores)
        sizes = sizes.swapaxes(-1, -2) if of_keys else sizes
        reach: Floats = np.exp(-68.0) * (sizes @ np.abs(others).sum(-1, keepdims=True))
        return reach

    @cached_property
    def query(self) -> Interval:
        """The queries' gradient."""
        products = self.bounds.call.products
        size = np.abs(self.of_scores)
        sums = self.bounds.sums + self._turning
        if self.bounds.joined:  # both parts are rounded before they are added
            sums += 2 * self.bounds.unit
        errors = self._in_products(size, self.errors)
        reach = products.query_reach(errors + sums * (size + errors))
        return self._interval(
            products.query_gradient(self.of_scores), reach + self._faded(self.bounds.call.exact[1])
        )

    @cached_property
    def key(self) -> Interval:
        """The keys' gradient, (batch, key heads, K, D)."""
        products = self.bounds.call.products
        sums = self._over_queries + self._turning
        size = np.abs(self.of_scores)
        errors = self._in_products(size, self.errors)
        reach = products.key_reach(errors + sums * (size + errors))
        reach = reach + self._faded(self.bounds.call.exact[0], of_keys=True)
        exact = products.key_gradient(self.of_scores)
        return self._interval(self._grouped(exact), self._grouped(reach))

    @cached_property
    def value(self) -> Interval:
        """The values' gradient, (batch, key heads, K, D)."""
        dropped = self.bounds.call.dropped
        weights = (dropped * self.bounds.softmax.weights).swapaxes(-1, -2)
        errors = self._in_products(self.bounds.softmax.weights, self.weight_errors)
        errors = (dropped * errors).swapaxes(-1, -2)
        sums = self._over_queries + self._turning
        reach = (errors + sums * (weights + errors)) @ np.abs(self.of_output)
        return self._interval(self._grouped(weights @ self.of_output), self._grouped(reach))

    def _grouped(self, x: Floats) -> Floats:
        batch, heads, *rest = x.shape
        kv_heads = self.bounds.call.sizes.kv_heads
        grouped: Floats = x.reshape(batch, kv_heads, heads // kv_heads, *rest).sum(axis=2)
        return grouped

    def _interval(self, exact: Floats, error: Floats) -> Interval:
        """Return an interval with what underflow adds.

        Where weights are not known at all, an infinite error times a number of 0 is NaN. A float32
        number that is 2^80 times smaller than the greatest one counts as 0: no sum of both sees it.
        """
        error = np.where(np.isnan(error), np.inf, error)
        name = self.bounds.call.form.name
        least = 2.0**-900 if name == "float64" else 2.0**-100
        if name != "float64":
            least += 2.0**-80 * np.where(np.isfinite(exact), np.abs(exact), 0.0).max(initial=0.0)
        error = error + least + LEAST[name]
        return Interval(exact, error, error)

    def parameter(self, parameter: Parameter) -> Interval:
        """Return the gradient of a parameter of the bias."""
        bounds = self.bounds
        sums = bounds.unit * (80 + bounds.call.sizes.keys / 16) + self._over_queries
        size = np.abs(self.of_scores)
        errors = self.errors + sums * (size + self.errors)
        if parameter.name in ("first", "left", "right") and bounds.call.bias_name == "BiALiBi":
            errors = errors + self._of_parts()
        exact = parameter.gather(self.of_scores, False)
        reach = parameter.gather(errors, True)
        if parameter.name == "first":
            reach = reach + errors.sum(axis=(0, 2, 3))
        reach = reach + 4 * 2.0**-24 * parameter.gather(size, True)  # float32 sums of both sides
        return self._interval(exact, reach)

    def _of_parts(self) -> Floats:
        bounds, do = self.bounds, np.abs(self.of_output)
        products = bounds.call.dropped * (do @ np.abs(bounds.call.exact[2]).swapaxes(-1, -2))
        mean = (do * np.abs(bounds.output.exact)).sum(-1, keepdims=True)
        parts: Floats = (
            2 * ROUNDING[bounds.call.form.name] * bounds.softmax.weights * (products + mean)
        )
        return parts
