"""T5: a learned bias for each bucket of distances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ntk_alibi import _checks
from ntk_alibi.biases.distance import DistanceBias
from ntk_alibi.biases.parameters import check_no_nan, checked_array


@dataclass(frozen=True, eq=False)
class T5(DistanceBias):
    """T5's bias: one learned value per bucket of distances, fine for near and coarse for far keys.

    Formula::

        bias = values[h, bucket(d)]
        bucket(d) = |d|  for |d| < n/2
        bucket(d) = min(n/2 + floor(n/2 log(|d| / (n/2)) / log(max_distance / (n/2))), n - 1)

    n is the number of buckets per side. If bidirectional, each side has half of all buckets, and
    the second half is for keys ahead; otherwise keys ahead are in bucket 0. T5 attends with scale=1
    and adds the same bias in all layers.

    Args:
        values: (heads, buckets) array or tensor, which may require grad. In a transformers model
            it is relative_attention_bias.weight.T.
        bidirectional: True for encoders; False for causal attention only.
        max_distance: distances from this one on are in the last bucket.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: values has the wrong shape, NaN or +infinity, or max_distance is too small.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> buckets = np.arange(32.0)[None]
        >>> na.T5(buckets).tensor(1, 400)[0, 0, 0, [0, 350, 390, 399]]
        array([15., 13.,  8.,  0.], dtype=float32)

    Source: Raffel et al. 2020 (arXiv 1910.10683), section 2.1; transformers' modeling_t5.py.
    """

    values: Any
    bidirectional: bool = True
    max_distance: int = 128

    def __post_init__(self) -> None:
        values = checked_array("values", self.values, ("heads", "buckets"), least=1)
        check_no_nan("values", values)
        both = _checks.boolean("bidirectional", self.bidirectional)
        count, least = int(values.shape[1]), 4 if both else 2
        if count < least:
            raise ValueError(f"values must have at least {least} buckets, got {count}")
        exact = count // least  # each distance below this has its own bucket
        most = _checks.integer("max_distance", self.max_distance, minimum=exact + 1)
        self.define(num_heads=int(values.shape[0]), values=values, bidirectional=both)
        self.define(sides="symmetric" if both else "causal", max_distance=most)

    def _formula(self, xp: Any, distance: Any, *parameters: Any) -> Any:
        (values,) = parameters
        return values[:, self._buckets(xp, distance, int(values.shape[1]))]

    def _buckets(self, xp: Any, distance: Any, count: int) -> Any:
        ahead = xp.where(distance < 0, 1, 0)
        side = count // 2 if self.bidirectional else count
        far = xp.abs(distance) if self.bidirectional else xp.where(distance < 0, 0.0, distance)
        exact = side // 2
        # float32 and this order of operations round the bounds of buckets as transformers does.
        ratio = xp.asarray(xp.clip(far, exact, None), dtype=xp.float32) / exact
        steps = xp.log(ratio) / math.log(self.max_distance / exact) * (side - exact)
        coarse = xp.clip(exact + xp.asarray(steps, dtype=xp.int64), None, side - 1)
        bucket = xp.where(far < exact, xp.asarray(far, dtype=xp.int64), coarse)
        return bucket + ahead * side if self.bidirectional else bucket
