"""Log-n scaling: scores grow with the logarithm of the number of keys that a query sees.

The kernels take the factor of each query beside the scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi._arrays import Array
from ntk_alibi._backends import backend_of
from ntk_alibi._names import FormerArguments
from ntk_alibi.masks import Mask, Problem

#: The largest strength: factors for 2^31 keys then stay within float32's range.
MOST_STRENGTH = 1e36


@dataclass(frozen=True)
class LogN(FormerArguments):
    """Log-n scaling multiplies scores by a factor that grows with the number of visible keys.

    Pass it to `attention` or `patch` as `log_n=`.

    Formula::

        f_i = max(1, 1 + strength_h log(n_i / L) / log L),  n_i the number of keys that query i sees
        score_ij = f_i scale q_i.k_j + bias_ij

    Strength 1 gives max(1, log n_i / log L). Factors are 1 up to the training length L, so models
    that were trained without log-n scaling can use it.

    Args:
        train_length: L, the training length in tokens, at least 2.
        strength: a finite number >= 0, or a sequence with one number per head.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> query, key, value = np.ones((3, 1, 8, 5, 16), np.float32)
        >>> half = na.LogN(train_length=2, strength=0.5)
        >>> na.attention(query, key, value, na.ALiBi(8), log_n=half).shape
        (1, 8, 5, 16)

    Source: Su 2021 (spaces.ac.cn/archives/8823) for strength 1; this package for other strengths
    (docs/formulas.md).
    """

    train_length: int
    strength: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        # at least 2, because its logarithm is a divisor
        length = _checks.integer("train_length", self.train_length, minimum=2)
        object.__setattr__(self, "train_length", length)
        strength: Any = self.strength
        if isinstance(strength, Sequence | np.ndarray) and not isinstance(strength, str | bytes):
            strengths = np.asarray(strength)
            if strengths.ndim != 1 or not len(strengths):
                raise ValueError(
                    "strength must be a number, or one for each head, "
                    f"got {_checks.briefly(strength)}"
                )
            strength = tuple(map(_one_strength, strengths.tolist()))
        else:
            strength = _one_strength(strength)
        object.__setattr__(self, "strength", strength)

    @property
    def per_head(self) -> NDArray[np.float64] | None:
        """The strength of each head, (heads, 1), or None if all heads share one."""
        if not isinstance(self.strength, tuple):
            return None
        return np.asarray(self.strength, np.float64)[:, None]

    def check_heads(self, heads: int) -> None:
        """Check that there is one strength, or one for each head."""
        if isinstance(self.strength, tuple) and len(self.strength) != heads:
            raise ValueError(
                f"strength of log_n must be one number, or one for each of {heads} heads, got "
                f"{len(self.strength)}"
            )

    def factors(self, problem: Problem, like: Any = None) -> Any:
        """Return the factors for the kernels, (1 or batch, 1 or heads, queries).

        The result is a float32 NumPy array if like is None, else a tensor on like's device, float64
        if like is float64.
        """
        self.check_heads(problem.shape[1])
        seen = problem.visible_count(like)
        backend = backend_of(seen)
        counts = backend.cast(backend.xp.clip(seen, 1, None), "float64")
        factors = self.factors_for_counts(counts)
        if like is None:
            return backend.cast(factors, "float32")
        return backend_of(like).convert(factors, _arrays.wide_dtype(like))

    def factors_for_counts(self, counts: Any, strengths: Any = None) -> Any:
        """Return the factors for counts of keys >= 1, (1 or batch, [heads,] queries) float64.

        `strengths` is `per_head` in the framework of counts, if the caller has it.
        """
        backend = backend_of(counts)
        xp = backend.xp
        excess = xp.log(counts / self.train_length) / math.log(self.train_length)
        strength: Any = self.strength
        if strengths is not None:
            strength = strengths
        elif self.per_head is not None:
            strength = backend.convert(self.per_head, "float64")
        excess = excess if excess.ndim == 3 else excess[:, None]
        return xp.clip(1.0 + strength * excess, 1.0, None)

    def to_config(self) -> dict[str, Any]:
        """Return the arguments as a dict."""
        strength = list(self.strength) if isinstance(self.strength, tuple) else self.strength
        return {"train_length": self.train_length, "strength": strength}


def _one_strength(value: Any) -> float:
    number = _checks.finite("strength", value, minimum=0.0)
    if number > MOST_STRENGTH:
        raise ValueError(
            f"strength must be at most {MOST_STRENGTH:g}, got {_checks.briefly(value)}"
        )
    return number


def as_log_n(value: Any) -> Any:
    """Convert the argument `log_n` to a `LogN`, or None.

    It may be None, a training length, a mapping with the arguments of `LogN`, or a `LogN`.
    """
    if value is None or isinstance(value, LogN):
        return value
    if isinstance(value, Mapping):
        _checks.keys("log_n", value, required=["train_length"], optional=["strength"])
        return LogN(**value)
    if not isinstance(value, int | float | np.number):
        raise TypeError(
            f"log_n must be None, a training length or a LogN, got {_checks.briefly(value)}"
        )
    return LogN(_checks.integer("log_n", value, minimum=2))


def log_n_scale(
    query_length: int,
    key_length: int,
    train_length: int,
    *,
    key_padding_mask: Array | None = None,
    query_positions: Array | None = None,
    key_positions: Array | None = None,
    **mask: Any,
) -> Array:
    """Return the factor of each query that keeps attention's entropy as queries see more keys.

    Formula::

        max(1, log n_i / log train_length),  n_i the number of keys that query i sees

    Factors are 1 up to the training length, so models that were trained without them can use them.
    `attention` applies them with log_n=train_length. Keys that a bias hides by -inf are counted.

    Args:
        query_length: Q; the last query is at the last key unless there are positions.
        key_length: K.
        train_length: the training length in tokens, at least 2.
        key_padding_mask: (batch, K), as for `attention`.
        query_positions: (Q,) or (batch, Q), as for `attention`.
        key_positions: (K,) or (batch, K), as for `attention`.
        mask: the options causal, window, causal_block and sink of `attention`.

    Returns:
        float32 (1 or batch, Q), each >= 1; a tensor if the mask or positions are tensors.

    Raises:
        TypeError, ValueError: an argument is wrong.

    Example:
        >>> import ntk_alibi as na
        >>> na.log_n_scale(3, 64, 8)
        array([[1.9847322, 1.9924266, 2.       ]], dtype=float32)

    Source: Su 2021 (spaces.ac.cn/archives/8823) for the entropy and the max; Chiang and Cholak 2022
    (arXiv 2202.12172) for log n.
    """
    queries = _checks.integer("query_length", query_length, minimum=0)
    keys = _checks.integer("key_length", key_length, minimum=0)
    lists = key_padding_mask, query_positions, key_positions
    arrays = [x if x is None or _arrays.is_array(x) else np.asarray(x) for x in lists]
    rows = max((len(x) for x in arrays if x is not None and x.ndim == 2), default=1)
    rule, shape = Mask.checked(**mask), (rows, 1, queries, keys)
    problem = Problem.checked(shape, rule, arrays[0], arrays[1], arrays[2])
    problem.check_columns()
    example = _arrays.first_tensor(*arrays)
    factors = LogN(train_length).factors(problem, example)[:, 0]
    result: Array = backend_of(factors).cast(factors, "float32")
    return result
