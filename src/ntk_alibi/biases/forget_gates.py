"""FoX: the data-dependent bias of forget gates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ntk_alibi import _arrays
from ntk_alibi.biases import checks
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.biases.kernel_bias import KernelBias, parameter
from ntk_alibi.masks import Problem


@dataclass(frozen=True, eq=False)
class ForgetGates(BiasObject):
    """Forget gates: each token after a key multiplies the key's weight by its gate.

    Formula::

        bias[b, h, i, j] = sum of log_gates[b, h, l] over j < l <= i

    The bias is for causal attention whose queries are the last keys. Gates of padding do not count.

    Args:
        log_gates: (batch or 1, heads, keys) numbers <= 0, logarithms of gates up to 1: in FoX
            logsigmoid of a linear function of the hidden states. An array or a tensor, which may
            require grad.

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
        self.define(log_gates=gates, num_heads=int(gates.shape[1]), sides="causal")

    @property
    def of_tokens(self) -> bool:
        """True: each token has its gates."""
        return True

    @property
    def rows(self) -> int:
        """The number of batch rows of the gates."""
        return int(self.log_gates.shape[0])

    def kernel_bias(self, problem: Problem, like: Any = None) -> KernelBias:
        """Return the prefix sums C of the log gates of real tokens: bias_ij = C_i - C_j."""
        checks.gate_shape(tuple(self.log_gates.shape), problem.shape)
        xp = _arrays.namespace(like)
        gates = parameter(self.log_gates, like, widest=True)
        if problem.key_padding_mask is not None:
            real = _arrays.boolean(problem.key_padding_mask, like)
            gates = xp.where(real[:, None, :], gates, 0.0)
        checks.finite_gates(gates)
        return KernelBias(sums=xp.cumsum(gates, -1))

    def _repr_html_(self) -> None:
        """Show no picture: the bias is not a function of distance."""
