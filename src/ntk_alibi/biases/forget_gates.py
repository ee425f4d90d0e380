"""Forget gates: the data-dependent bias of the forgetting transformer (FoX)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays
from ntk_alibi._backends import backend_of
from ntk_alibi._torch_state import has_values
from ntk_alibi.biases.base import BiasObject
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.biases.parameters import checked_array, parameter
from ntk_alibi.masks import Problem

#: Prefix sums of log gates are float64; up to this size their differences are exact to 2e-7.
MAX_GATE_SUM = 1e9


@dataclass(frozen=True, eq=False)
class ForgetGates(BiasObject):
    """Forget gates: every token multiplies the weights of earlier keys by its gate.

    Formula::

        bias[b, h, i, j] = sum of log_gates[b, h, l] over j < l <= i

    The bias is for causal attention whose queries are the last keys. Gates of padding do not count.

    Args:
        log_gates: (1 or batch, heads, keys) array or tensor, <= 0: logarithms of gates, in FoX
            logsigmoid of a linear function of the hidden states. Tensors may require grad.

    Raises:
        TypeError: log_gates is not a floating array or tensor.
        ValueError: log_gates has the wrong shape or positive values; in `attention`, it is not
            finite at a real key, or the gates of a head sum to less than -1e9.

    Example:
        >>> import ntk_alibi as na
        >>> na.ForgetGates([[[-9.0, -1.0, -2.0]]]).tensor(2, 3)[0, 0]
        array([[ -1.,   0., -inf],
               [ -3.,  -2.,   0.]], dtype=float32)

    Source: Lin et al. 2025 (arXiv 2503.02130).
    """

    log_gates: Any

    def __post_init__(self) -> None:
        gates = checked_array("log_gates", self.log_gates, ("batch", "heads", "keys"))
        if gates.shape[1] == 0:
            raise ValueError(f"log_gates must have shape (batch, heads, keys), got {gates.shape}")
        if has_values(gates):
            values = _arrays.to_numpy(gates)
            if (values > 0.0).any():  # padding may have any other value
                raise ValueError(
                    "log_gates must be <= 0, logarithms of gates up to 1, got "
                    f"{values[values > 0.0][0]}"
                )
        self.define(log_gates=gates, num_heads=int(gates.shape[1]), sides="causal")

    @property
    def per_token(self) -> bool:
        """True: each token has a gate."""
        return True

    @property
    def rows(self) -> int:
        """The number of batch rows of the gates."""
        return int(self.log_gates.shape[0])

    def kernel_bias(self, problem: Problem, like: Any = None) -> KernelBias:
        """Return the prefix sums C of real tokens' log gates: bias_ij = C_i - C_j."""
        batch, heads, _, keys = problem.shape
        if not _arrays.has_shape(self.log_gates, (1, heads, keys), (batch, heads, keys)):
            raise ValueError(
                f"log_gates must have shape ({batch}, {heads}, {keys}), for query and key, got "
                f"{tuple(self.log_gates.shape)}"
            )
        backend = backend_of(like)
        xp = backend.xp
        gates = parameter(self.log_gates, like, widest=True)
        if problem.key_padding_mask is not None:
            real = backend.convert(problem.key_padding_mask, "bool")
            gates = xp.where(real[:, None, :], gates, 0.0)
        if has_values(gates):
            _check_sums(_arrays.to_numpy(gates))
        return KernelBias(sums=xp.cumsum(gates, -1))


def _check_sums(gates: NDArray[Any]) -> None:
    """Check that real keys have finite gates, whose sums are exact enough."""
    if not np.isfinite(gates).all():
        raise ValueError("log_gates must be finite where keys are real, got NaN or -infinity")
    with np.errstate(over="ignore"):
        least = gates.sum(axis=-1).min(initial=0.0)
    if least < -MAX_GATE_SUM:
        raise ValueError(
            f"log_gates must sum to at least {-MAX_GATE_SUM:g} for each head, so that float64 "
            f"holds their differences, got {least:g}"
        )
