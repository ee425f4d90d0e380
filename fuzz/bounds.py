"""Bounds of the difference between a right answer and the oracle's, from counted rounding errors.

u is the rounding error of one operation: 2^-24 in float32, in which the kernels compute for all of
float32, bfloat16 and float16; 2^-53 for float64 tensors.

*A score* s = f q.k + b. With A the sum of the magnitudes |f q_d k_d|:

- the dot product: D products and sums, the factor's own rounding, its product with log2 e and the
  product with the sum or with q: (D + 4) u A; the sum with the bias: u (A + |b|). We count (D + 8)
  u A;
- the bias: the parameter rounded to float32, log2 e and the product with it, the distance, the
  product of both, the sum: 6 u |b|;
- rotated values: cosine, sine, two products and a sum err by 3 sqrt(2) u of the pair's magnitude,
  for query and key 9 u A; the factors of XPOS 2 u each, 4 u A: 13 u A. XPOS's exponents,
  up to 70, err by 70 u in float64. An angle errs by 2^-53 of the position it stems from, and again
  as a product: 2^-52 (p_i + p_j) A. XPOS leaves out factors below e^-70, with queries' factors at
  most e^2: e^-68 of the magnitudes without fading;
- a factor of log-n: its own rounding, its product with the scale, and the product's rounding: 3 u
  A;
- underflow: a product below the least normal number is rounded to a multiple of 2^-149, or to 0 by
  hardware products of bfloat16, which also read subnormal values as 0: t = 2^-149 or 2^-126 in
  each of D products.

*A weight* 2^(s - max): the difference errs by u times itself, once more for every block that raises
the maximum (these differences sum up to the whole one): 4 u (log of the sum - s) in all, and 2^x by
4 u. Calls that join parts (exempt tokens) round each part's logsumexp: 4 u (|s| + log K) more. So
with e the error of a score and its weight, a weight is p exp(+-e), and r = p (exp(e) - 1) bounds
its change.

*Sums* over K keys: 64 at a time, then one a block, and one product when the maximum rises: (72 + K
/ 16) u of the magnitudes; K u for float64, whose sums are torch's.

*The output* of the kernels is sum p'_j v_j / sum p'_j, so it changes by at most sum_j r_j (|v_j| +
|o|) / (1 - sum r), and always stays within the range of v. Torch's float64 weights err by r each,
with the logsumexp's error in e: sum r |v|. bfloat16 weights are rounded before they meet the
values: 2^-8 sum p |v|. Parts of a call are rounded to the output's dtype before they are joined:
that dtype's error times sum p |v|. Weights below 2^-126 of the greatest one may be 0: K 2^-126 max
|v|. Keys left out by certificate weigh at most a share eps, the greater of skip_tolerance and 2^-24
(docs/exactness.md): eps (max v - min v).

*Dropout* multiplies p and r by its factors. An output is then no mean of values: keys left out
change it by eps (|o| + the factor times max |v|), and the range of v does not bound it.

*The logsumexp* changes by log(1 + sum r), by at most the greatest e, and by 4 u (|itself| + log K)
for the change of the logarithm's base; by -log(1 + eps) for keys left out.

At last results are rounded to their dtype: a result is right if it lies between the rounded ends of
the interval, which covers overflow and subnormal values, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fuzz.drawn.arrays import NUMPY
from fuzz.drawn.calls import Call
from fuzz.oracle.softmax import Softmax

Floats = NDArray[np.float64]

#: Relative rounding error of each dtype, and the distance of its least values.
ROUNDING = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11, "float64": 2.0**-53}
LEAST = {"float32": 2.0**-149, "bfloat16": 2.0**-133, "float16": 2.0**-24, "float64": 2.0**-1074}
#: The greatest score in units of log 2 is the greatest float32; beyond it, a logsumexp may be this
#: number, infinity or anything between.
GREATEST_SCORE = float(np.finfo(np.float32).max) * math.log(2.0)

#: Biases whose differences between keys are formed before any rounding of the bias itself.
UNROUNDED = {
    *("none", "ALiBi", "ALiBi(slopes)", "ALiBi(two_slopes)", "BiALiBi"),
    "ForgetGates",
}


@dataclass(frozen=True)
class Interval:
    """Values between which a right result lies."""

    exact: Floats
    below: Floats
    above: Floats

    def rounded(self, dtype: str) -> tuple[Floats, Floats]:
        """Return both ends, rounded to a dtype from float64 or float32, whichever is wider."""
        low, high = self.exact - self.below, self.exact + self.above
        with np.errstate(over="ignore", invalid="ignore"):
            ends = [x.astype(NUMPY[dtype]).astype(np.float64) for x in (low, high)]
            if dtype in ("bfloat16", "float16"):
                low, high = (x.astype(np.float32).astype(NUMPY[dtype]) for x in (low, high))
                ends = [np.minimum(ends[0], low), np.maximum(ends[1], high)]
        return ends[0], ends[1]

    def outside(self, result: Floats, dtype: str) -> NDArray[np.bool_]:
        """Return which values of a result are wrong; NaN is wrong."""
        low, high = self.rounded(dtype)
        wrong: NDArray[np.bool_] = ~((result >= low) & (result <= high))
        return wrong


@dataclass(frozen=True)
class Bounds:
    """The oracle's results of a call, with their errors.

    Attributes:
        call: the call.
        relative: whether errors of the bias are relative to its difference from the bias of the
            nearest key, from which kernels count distances where all keys are far away; the
            logsumexp gets the rest. Tables and dense values are rounded before, and again in units
            of log 2.
    """

    call: Call
    relative: bool = False

    @cached_property
    def bias(self) -> Floats:
        """The bias of all pairs that are seen, -inf for the others."""
        seen = self.call.places.pairs.seen
        bias = np.broadcast_to(self.call.bias.values, self.call.sizes.pairs)
        return np.where(seen, bias, -np.inf)

    @cached_property
    def softmax(self) -> Softmax:
        """Weights and logsumexp."""
        return Softmax.of(self.call.products.values + self.bias)

    @cached_property
    def log(self) -> Floats:
        """The logsumexp, 0 where there is none, (batch, heads, Q, 1)."""
        log = self.softmax.logsumexp[..., None]
        return np.where(np.isneginf(log), 0.0, log)

    @property
    def unit(self) -> float:
        """U."""
        return self.call.form.unit

    @property
    def rotated(self) -> bool:
        """Whether inputs are rotated first, and computed in float32."""
        return self.call.rotation is not None

    @property
    def joined(self) -> bool:
        """Whether the call joins parts."""
        return self.call.exempt

    @property
    def sums(self) -> float:
        """The relative error of sums over keys."""
        keys = self.call.sizes.keys
        return self.unit * (keys + 16 if self.call.form.name == "float64" else 72 + keys / 16)

    @cached_property
    def score_errors(self) -> Floats:
        """The error of each score, inf for hidden keys."""
        call, u = self.call, self.unit
        sizes = call.products.sizes
        size = np.where(np.isneginf(self.bias), 0.0, np.abs(self.bias - self._level))
        # Standard slopes are float32 for float64 tensors, too.
        own = 2.0**-24 if call.bias_name == "ALiBi" else 0.0
        errors = u * (call.sizes.dim + 8) * sizes + (6 * u + own) * size
        if self.relative and call.bias_name not in UNROUNDED:
            errors += 3 * u * np.abs(self._level)
        errors += call.bias.error + self._underflow()
        if "log_n" in call.options:
            errors += 3 * u * sizes
        if self.rotated:
            errors += self._rotation_errors()
        return errors

    @cached_property
    def _level(self) -> Floats:
        """The bias of the row's nearest key if errors are relative to it, else 0."""
        if not (self.relative and self.call.sizes.keys):
            return np.zeros((1, 1, 1, 1))
        pairs = self.call.places.pairs
        distances = np.abs(pairs.queries[:, None, :, None] - pairs.keys[:, None, None, :])
        distances = np.where(np.isneginf(self.bias), np.inf, distances)
        nearest = distances.argmin(axis=-1, keepdims=True)
        level = np.take_along_axis(self.bias, nearest, axis=-1)
        return np.where(np.isneginf(level), 0.0, level)

    def _rotation_errors(self) -> Floats:
        call, pairs = self.call, self.call.places.pairs
        at = (np.abs(pairs.queries)[:, :, None] + pairs.keys[:, None, :])[:, None]
        relative = self.unit * (13 + 70 * call.decays) + 2.0**-52 * at
        errors: Floats = relative * call.products.sizes
        if call.decays:
            query, key, _ = call.exact
            plain = np.abs(query).sum(-1)[..., None] * np.abs(key).sum(-1)[:, :, None, :]
            errors = errors + np.exp(-68.0) * np.abs(call.factor) * plain
        return errors

    def _underflow(self) -> float:
        query, key, _ = self.call.exact
        name = self.call.form.name
        least = (
            2.0**-126
            if name == "bfloat16"
            else LEAST["float64" if name == "float64" else "float32"]
        )
        factor = float(np.max(np.abs(self.call.factor), initial=1.0))
        reach = 1.0 + np.abs(query).max(initial=0.0) + np.abs(key).max(initial=0.0)
        return float(least * factor * (self.call.sizes.dim + 2) * reach)

    @cached_property
    def log_weights(self) -> Floats:
        """The logarithm of each weight, -inf for hidden keys."""
        logs: Floats = self.call.products.values + self.bias - self.log
        return logs

    @cached_property
    def log_weight_errors(self) -> Floats:
        """The error e of the logarithm of each weight, 0 for hidden keys."""
        u, hidden = self.unit, np.isneginf(self.bias)
        gap = np.where(hidden, 0.0, -self.log_weights)
        errors = self.score_errors + u * (4 * gap + 4)
        if self.joined:
            errors = errors + u * 4 * (np.abs(self.log - gap) + 40)
        if self.call.form.name == "float64":  # exp(s - logsumexp) is not normalised again
            most = np.where(hidden, 0.0, errors).max(axis=-1, initial=0.0, keepdims=True)
            errors = errors + 4 * u * np.abs(self.log) + most + self.sums
        return np.where(hidden, 0.0, errors)

    @cached_property
    def weight_errors(self) -> Floats:
        """The error r of each weight."""
        return grown(self.softmax.weights, self.log_weight_errors, self.log_weights)

    @property
    def share(self) -> float:
        """The share of a query's mass that may be left out."""
        tolerance = self.call.tolerance
        return 0.0 if tolerance is None else max(tolerance, 2.0**-24)

    @cached_property
    def values_range(self) -> tuple[Floats, Floats]:
        """The least and the greatest value of each channel that a query sees."""
        value = self.call.exact[2]
        seen = np.any(~np.isneginf(self.bias), axis=2, keepdims=True).swapaxes(-1, -2)
        least = np.where(seen, value, np.inf).min(axis=2, initial=np.inf)[:, :, None]
        most = np.where(seen, value, -np.inf).max(axis=2, initial=-np.inf)[:, :, None]
        return least, most

    @cached_property
    def output(self) -> Interval:
        """The output and its errors."""
        value, name = self.call.exact[2], self.call.form.name
        dropped = self.call.dropped
        weights, r = self.softmax.weights * dropped, self.weight_errors * dropped
        size = np.abs(value)
        exact, mean = weights @ value, weights @ size
        total = self.weight_errors.sum(axis=-1, keepdims=True)
        least, most = self.values_range
        spread = np.maximum(most - least, 0.0)
        if "dropout" in self.call.options:
            reach = np.max(dropped, initial=1.0) * np.maximum(np.abs(most), np.abs(least))
            spread = np.where(spread > 0.0, reach, 0.0) + np.abs(exact)
        with np.errstate(over="ignore", invalid="ignore"):
            error = (r @ size + total * np.abs(exact)) / np.maximum(1.0 - total, 1e-300)
        if name == "float64":
            error = r @ size
        else:
            error = np.where(total < 1.0, np.minimum(error, spread), spread)
        error = error + 2 * self.sums * mean
        if name == "bfloat16" and not self.rotated:
            error = error + 2.0**-8 * mean
        if self.joined:
            error = error + ROUNDING[name] * mean + LEAST[name]
        error = error + self.share * spread + self._lost(size)
        none = np.isneginf(self.softmax.logsumexp)[..., None]
        error = np.where(none, 0.0, error)
        return Interval(exact, error, error)

    def _lost(self, size: Floats) -> float:
        """Return what weights that underflow may change."""
        if self.call.form.name == "float64":
            return 0.0
        return float(2.0**-126 * (self.call.sizes.keys + 1) * (size.max(initial=0.0) + 1.0))

    @cached_property
    def logsumexp(self) -> Interval:
        """The logsumexp and its errors."""
        exact = self.softmax.logsumexp
        total = self.weight_errors.sum(axis=-1)
        with np.errstate(divide="ignore"):
            change = np.where(total < 1.0, -np.log1p(-np.minimum(total, 1.0)), np.inf)
        most = self.log_weight_errors.max(axis=-1, initial=0.0)
        size = np.abs(self.log[..., 0]) + np.log(self.call.sizes.keys + 1.0)
        error = np.minimum(change, most) + self.sums + 4 * self.unit * size
        error = error + 6 * self.unit * np.abs(self._level[..., 0])
        if self.call.form.name == "float64":
            return Interval(exact, error + np.log1p(self.share), error)
        kept = np.where(np.isneginf(exact), exact, np.clip(exact, -GREATEST_SCORE, GREATEST_SCORE))
        beyond = np.where(kept == exact, 0.0, np.inf)
        return Interval(kept, error + np.log1p(self.share) + beyond, error + beyond)


def grown(weights: Floats, errors: Floats, logs: Floats) -> Floats:
    """Return weights (exp(errors) - 1) without overflow, from logarithms of weights."""
    small = weights * np.expm1(np.minimum(errors, 1.0))
    if errors.max(initial=0.0) < 1.0:
        return small
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(errors < 1.0, small, np.exp(np.minimum(logs + errors, 700.0)) - weights)
