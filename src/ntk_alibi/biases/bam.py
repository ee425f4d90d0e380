"""BAM: a generalised Gaussian over distance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ntk_alibi import _checks
from ntk_alibi.biases.distance import DistanceBias
from ntk_alibi.biases.parameters import per_head


@dataclass(frozen=True, eq=False)
class BAM(DistanceBias):
    """A generalised Gaussian over distance: the bias of the Bayesian attention mechanism.

    Formula::

        bias = -(alpha |d - mu| + epsilon)^beta,  alpha > 0

    beta = 1 is ALiBi with slope alpha, beta = 2 a Gaussian. With 0 < beta < 1 far keys weigh more
    than with beta = 1; with beta < 0 near keys weigh least. mu > 0 moves the centre mu tokens back.
    At d = mu, `|d - mu|^beta` itself is infinite for beta < 0, and its derivative by mu for
    beta < 1; epsilon, 1e-5 as in the authors' code, prevents both.

    Args:
        alpha: (heads,) array or tensor, > 0; tensors may require grad.
        beta: (heads,), or a number for all heads; > 0 if epsilon is 0.
        mu: (heads,), or a number for all heads.
        epsilon: a number >= 0.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, or has another number of heads.

    Example:
        >>> import ntk_alibi as na
        >>> na.BAM(alpha=[0.5], beta=[2.0], mu=[1.0], epsilon=0.0).tensor(1, 4)[0, 0]
        array([[-1.  , -0.25, -0.  , -0.25]], dtype=float32)

    Source: Bianchessi et al. 2025 (arXiv 2505.22842).
    """

    alpha: Any
    beta: Any
    mu: Any = 0.0
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        alpha = per_head("alpha", self.alpha, above=0.0)
        heads = int(alpha.shape[0])
        epsilon = _checks.finite("epsilon", self.epsilon, minimum=0.0)
        least = -math.inf if epsilon else 0.0
        beta = per_head("beta", self.beta, heads, above=least)
        mu = per_head("mu", self.mu, heads)
        self.define(
            num_heads=heads, sides="symmetric", alpha=alpha, beta=beta, mu=mu, epsilon=epsilon
        )

    def _formula(self, xp: Any, distance: Any, *parameters: Any) -> Any:
        alpha, beta, mu = parameters
        return -((alpha * xp.abs(distance - mu) + self.epsilon) ** beta)
