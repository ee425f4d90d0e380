"""The bias of forget gates, which depends on the data: differences of running sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays, _checks
from ntk_alibi.biases import checks
from ntk_alibi.biases.base import BiasObject, KernelBias
from ntk_alibi.masks import Problem


@dataclass(frozen=True, eq=False)
class ForgetGates(BiasObject):
    """Forget gates: every token between key and query lets a share of the key's weight through.

    bias[b, h, i, j] = sum of log_gates[b, h, l] over j < l <= i

    for causal attention whose queries are the last keys. What stands at padding does not count.

    Args:
        log_gates: (batch or 1, heads, keys) numbers <= 0, logarithms of gates up to 1, array or
            tensor, which may require grad: logsigmoid of a linear function of the hidden states.

    Raises:
        TypeError, ValueError: log_gates are wrong, or above 0.

    Example:
        >>> import ntk_alibi as na
        >>> na.ForgetGates([[[-9.0, -1.0, -2.0]]]).tensor(2, 3)[0, 0]
        array([[ -1.,   0., -inf],
               [ -3.,  -2.,   0.]], dtype=float32)

    Source: Lin et al. 2025 (arXiv 2503.02130).
    """

    log_gates: Any

    def __post_init__(self) -> None:
        gates = checks.log_gates(self.log_gates)
        self._set(log_gates=gates, num_heads=int(gates.shape[1]), sides="causal")

    def running_sums(self, problem: Problem, like: Any = None) -> Any:
        """C[b, h, k] = sum of the log gates of real tokens up to k, so that bias_ij = C_i - C_j.

        float64 (batch or 1, heads, keys), as a tensor if `like` is one: then differentiable.
        """
        checks.gated_problem(
            tuple(self.log_gates.shape),
            problem.shape,
            placed=problem.placed or problem.align == "start",
        )
        xp = _arrays.namespace(like)
        gates = self.log_gates
        if not _arrays.is_tensor(like):
            gates = _checks.constant("log_gates", gates)
        gates = _arrays.float64(gates, like)
        if problem.mask is not None:
            real = _arrays.boolean(problem.mask, like)
            gates = xp.where(real[:, None, :], gates, 0.0)
        checks.finite_gates(gates)
        return xp.cumsum(gates, -1)

    def kernel_bias(self, problem: Problem) -> KernelBias:
        """Its running sums for a problem."""
        return KernelBias(sums=self.running_sums(problem))

    def _repr_html_(self) -> None:
        """No picture over distance, on which it does not depend."""

    def _all_pairs(self, query_length: int, key_length: int) -> NDArray[np.float32]:
        first = key_length - query_length
        sums = self.running_sums(Problem((*self.log_gates.shape[:2], query_length, key_length)))
        ahead = np.arange(first, key_length)[:, None] < np.arange(key_length)
        values = sums[..., first:, None] - sums[..., None, :]
        return np.where(ahead, -np.inf, values).astype(np.float32)
