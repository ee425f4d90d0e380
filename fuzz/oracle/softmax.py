"""Softmax attention over all pairs, and its gradient."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Softmax(NamedTuple):
    """Weights p_ij and the logarithm of their sum; 0 and -inf for a query without keys."""

    weights: Floats
    logsumexp: Floats

    @staticmethod
    def of(scores: Floats) -> Softmax:
        """Return the softmax of scores (..., Q, K), -inf for hidden keys."""
        top = scores.max(axis=-1, initial=-np.inf, keepdims=True)
        none = np.isneginf(top)
        powers = np.exp(scores - np.where(none, 0.0, top))
        total = powers.sum(axis=-1, keepdims=True)
        log = np.where(none, -np.inf, np.where(none, 0.0, top) + np.log(np.where(none, 1, total)))
        return Softmax(powers / np.where(none, 1.0, total), log[..., 0])

    def scores_gradient(
        self, value: Floats, output_gradient: Floats, log_gradient: Floats, dropped: Floats | float
    ) -> Floats:
        """Return ds_ij = p_ij (z_ij do_i.v_j - do_i.o_i + dl_i), z_ij the factors of dropout."""
        mean = (output_gradient * ((self.weights * dropped) @ value)).sum(-1)
        products = dropped * (output_gradient @ value.swapaxes(-1, -2))
        gradient: Floats = self.weights * (products - (mean - log_gradient)[..., None])
        return gradient
