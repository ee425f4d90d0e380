"""Modules that learn the parameters of biases and keep them in their ranges.

Calling a module returns its bias. Every module accepts the hidden states of the keys; only forget
gates need them. Parameters stay float32 when a model is cast.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ntk_alibi import _arrays, _checks
from ntk_alibi.biases.alibi import ALiBi
from ntk_alibi.biases.bam import BAM
from ntk_alibi.biases.bialibi import BiALiBi
from ntk_alibi.biases.forget_gates import ForgetGates
from ntk_alibi.biases.kerple import KerpleLog, KerplePower
from ntk_alibi.biases.parameters import per_head
from ntk_alibi.biases.slopes import alibi_slopes
from ntk_alibi.biases.t5 import T5


class Float32Parameters(nn.Module):
    """A module whose parameters and buffers keep their dtype and values when a model is cast."""

    def _apply(self, fn: Any, recurse: bool = True) -> nn.Module:
        def move(x: torch.Tensor) -> torch.Tensor:
            moved: torch.Tensor = fn(x)
            return moved if moved.dtype == x.dtype else x.to(moved.device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self


class FixedSlopes(Float32Parameters):
    """Slopes that are not trained, (heads,)."""

    slopes: torch.Tensor

    def __init__(self, slopes: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("slopes", slopes.detach().clone().float())

    def forward(self) -> torch.Tensor:
        """Return the slopes."""
        return self.slopes


class LearnedSlopes(Float32Parameters):
    """Positive slopes exp(x) with learned x, (heads,)."""

    def __init__(self, initial: torch.Tensor) -> None:
        super().__init__()
        self.log_slopes = nn.Parameter(initial.detach().clone().float().log())

    def forward(self) -> torch.Tensor:
        """Return the slopes."""
        return self.log_slopes.exp()


class TwoSidedSlopes(Float32Parameters):
    """Learned slopes sigmoid(x) for the left and the right side; initially x ~ N(-2, 1)."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(num_heads, dtype=torch.float32) - 2.0)
        self.right = nn.Parameter(torch.randn(num_heads, dtype=torch.float32) - 2.0)

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the left and the right slopes."""
        return self.left.sigmoid(), self.right.sigmoid()


class LearnedALiBi(Float32Parameters):
    """ALiBi with learned slopes exp(x), initially the standard slopes.

    Args:
        num_heads: H >= 1.
        causal: True for causal attention; False uses the same slopes on both sides.

    Raises:
        TypeError, ValueError: an argument is wrong.
    """

    def __init__(self, num_heads: int, *, causal: bool = True) -> None:
        super().__init__()
        self.num_heads = _checks.num_heads(num_heads)
        self.causal = _checks.boolean("causal", causal)
        self.slopes = LearnedSlopes(torch.tensor(alibi_slopes(self.num_heads)))

    def forward(self, hidden: torch.Tensor | None = None) -> ALiBi:
        """Return the bias."""
        sides: Any = "causal" if self.causal else "symmetric"
        return ALiBi(self.num_heads, slopes=self.slopes(), sides=sides)


class LearnedKerplePower(Float32Parameters):
    """KERPLE's power bias with learned r1 = softplus(x) and r2 = 2 sigmoid(y).

    Initially r1 is drawn from (0, 1) and r2 from (0, 2), as in the authors' code. That code also
    keeps both above 0.01; here they only stay positive.

    Args:
        num_heads: H >= 1.
        generator: random generator for the initial values.
        r1: initial values > 0 in place of random ones: one for all heads, or one for each head.
        r2: likewise, above 0 and at most 1.98. With r2 = 1 the bias starts as ALiBi with slopes r1.

    Raises:
        TypeError, ValueError: an argument is wrong.

    Example:
        >>> import torch, ntk_alibi as na
        >>> from ntk_alibi.torch.learned_bias import LearnedKerplePower
        >>> position = LearnedKerplePower(num_heads=2)
        >>> query, key, value = torch.randn(3, 1, 2, 5, 8)
        >>> na.attention(query, key, value, position()).sum().backward()
        >>> position.r1.grad.shape
        torch.Size([2])

    Source: Chi et al. 2022 (arXiv 2205.09921).
    """

    def __init__(
        self,
        num_heads: int,
        *,
        generator: torch.Generator | None = None,
        r1: Any = None,
        r2: Any = None,
    ) -> None:
        super().__init__()
        heads = _checks.num_heads(num_heads)
        first = _initial("r1", r1, heads, generator)
        second = _initial("r2", r2, heads, generator, drawn_below=2.0, at_most=1.98)
        self.r1 = nn.Parameter(_inverse_softplus(first))
        self.r2 = nn.Parameter((second / 2.0).logit().float())

    def forward(self, hidden: torch.Tensor | None = None) -> KerplePower:
        """Return the bias."""
        return KerplePower(_softplus(self.r1), 2.0 * _above_zero(self.r2.sigmoid()))


class LearnedKerpleLog(Float32Parameters):
    """KERPLE's logarithmic bias with learned r1 = softplus(x) and r2 = softplus(y).

    Initially r1 is drawn from (0, 2) and r2 from (0, 1), as in the authors' code. That code also
    keeps both above 0.01; here they only stay positive.

    Args:
        num_heads: H >= 1.
        generator: random generator for the initial values.
        r1, r2: initial values > 0 in place of random ones: one for all heads, or one for each head.
            The slope at distance 0 is r1 r2.

    Raises:
        TypeError, ValueError: an argument is wrong.

    Source: Chi et al. 2022 (arXiv 2205.09921).
    """

    def __init__(
        self,
        num_heads: int,
        *,
        generator: torch.Generator | None = None,
        r1: Any = None,
        r2: Any = None,
    ) -> None:
        super().__init__()
        heads = _checks.num_heads(num_heads)
        first = _initial("r1", r1, heads, generator, drawn_below=2.0)
        second = _initial("r2", r2, heads, generator)
        self.r1 = nn.Parameter(_inverse_softplus(first))
        self.r2 = nn.Parameter(_inverse_softplus(second))

    def forward(self, hidden: torch.Tensor | None = None) -> KerpleLog:
        """Return the bias."""
        return KerpleLog(_softplus(self.r1), _softplus(self.r2))


class LearnedBAM(Float32Parameters):
    """BAM with learned alpha = exp(a), beta = b and, if learn_mu, mu = exp(c) - exp(-c).

    By default it starts as ALiBi, with mu = 0. As in the authors' code, beta has no bounds and may
    become negative.

    Args:
        num_heads: H >= 1.
        learn_mu: whether mu is trained; the authors keep it at 0.
        alpha: initial values > 0: one for all heads, or one for each head; the standard slopes by
            default.
        beta: initial values: one for all heads, or one for each head. alpha = 1 and beta = 0 is the
            flat prior with which the authors' code starts: the bias is -1 at every distance.

    Raises:
        TypeError, ValueError: an argument is wrong.

    Source: Bianchessi et al. 2025 (arXiv 2505.22842).
    """

    def __init__(
        self, num_heads: int, *, learn_mu: bool = False, alpha: Any = None, beta: Any = 1.0
    ) -> None:
        super().__init__()
        heads = _checks.num_heads(num_heads)
        learned = _checks.boolean("learn_mu", learn_mu)
        first = _checked("alpha", alibi_slopes(heads) if alpha is None else alpha, heads)
        self.log_alpha = nn.Parameter(first.log().float())
        self.beta = nn.Parameter(_checked("beta", beta, heads, above=-math.inf).float())
        self.mu = nn.Parameter(torch.zeros(heads, dtype=torch.float32), requires_grad=learned)

    def forward(self, hidden: torch.Tensor | None = None) -> BAM:
        """Return the bias."""
        beta = self.beta.clone()  # FSDP frees the parameter, and not its copy
        return BAM(_above_zero(self.log_alpha.exp()), beta, 2.0 * self.mu.sinh())


class LearnedT5(Float32Parameters):
    """T5's bias with one learned value per head and bucket of distances, initially 0.

    Args:
        num_heads: H >= 1.
        num_buckets: number of buckets, of both sides together.
        bidirectional: as `T5` takes it.
        max_distance: as `T5` takes it.

    Raises:
        TypeError, ValueError: an argument is wrong.

    Source: Raffel et al. 2020 (arXiv 1910.10683).
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        *,
        bidirectional: bool = False,
        max_distance: int = 128,
    ) -> None:
        super().__init__()
        heads = _checks.num_heads(num_heads)
        buckets = _checks.integer("num_buckets", num_buckets, minimum=2)
        self.values = nn.Parameter(torch.zeros(heads, buckets, dtype=torch.float32))
        self.bidirectional, self.max_distance = bidirectional, max_distance
        self()

    def forward(self, hidden: torch.Tensor | None = None) -> T5:
        """Return the bias."""
        values = self.values.clone()  # FSDP frees the parameter, and not its copy
        return T5(values, self.bidirectional, self.max_distance)


class LearnedBiALiBi(Float32Parameters):
    """LittleBird's bias with a learned constant and learned slopes, all sigmoid(x).

    Initially x ~ N(-2, 1), as in `TwoSidedSlopes`.

    Args:
        num_heads: H >= 1.
        generator: random generator for the initial values.

    Raises:
        TypeError, ValueError: num_heads is wrong.

    Source: Lee et al. 2022 (arXiv 2210.11870).
    """

    def __init__(self, num_heads: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        heads = _checks.num_heads(num_heads)
        draw = torch.randn((3, heads), generator=generator, dtype=torch.float32) - 2.0
        self.first, self.left, self.right = (nn.Parameter(x.clone()) for x in draw)

    def forward(self, hidden: torch.Tensor | None = None) -> BiALiBi:
        """Return the bias."""
        return BiALiBi(self.first.sigmoid(), self.left.sigmoid(), self.right.sigmoid())


class LearnedForgetGates(nn.Module):
    """Forget gates sigmoid(w_h x + b_h), computed from the hidden states x of the keys.

    Args:
        embed_dim: channels of the hidden states.
        num_heads: H >= 1.
        bias: initial values of b: one for all heads, or one for each head. 0 starts with gates near
            1/2, as in the authors' code; larger values forget less. -log(exp(m_h) - 1) starts near
            ALiBi with slopes m_h.

    Raises:
        TypeError, ValueError: an argument is wrong.

    Example:
        >>> import torch, ntk_alibi as na
        >>> from ntk_alibi.torch.learned_bias import LearnedForgetGates
        >>> hidden = torch.randn(2, 5, 16)
        >>> LearnedForgetGates(16, num_heads=4)(hidden).log_gates.shape
        torch.Size([2, 4, 5])

    Source: Lin et al. 2025 (arXiv 2503.02130).
    """

    def __init__(self, embed_dim: int, num_heads: int, *, bias: Any = 0.0) -> None:
        super().__init__()
        size = _checks.integer("embed_dim", embed_dim, minimum=1)
        heads = _checks.num_heads(num_heads)
        first = _arrays.to_numpy(per_head("bias", bias, heads))
        self.linear = nn.Linear(size, heads)
        with torch.no_grad():
            self.linear.bias.copy_(torch.tensor(first))

    def forward(self, hidden: torch.Tensor) -> ForgetGates:
        """Return the bias for hidden states (batch, keys, embed_dim)."""
        logits = self.linear(hidden).float()
        return ForgetGates(functional.logsigmoid(logits).transpose(1, 2))


def _initial(
    name: str,
    given: Any,
    heads: int,
    generator: torch.Generator | None,
    *,
    drawn_below: float = 1.0,
    at_most: float = math.inf,
) -> torch.Tensor:
    """Return initial values (heads,): `given`, or uniform ones in 0.01 to 0.99 of drawn_below."""
    if given is not None:
        return _checked(name, given, heads, at_most)
    draw = torch.rand(heads, generator=generator, dtype=torch.float32)
    return drawn_below * draw.clamp(0.01, 0.99)


def _checked(
    name: str, value: Any, heads: int, at_most: float = math.inf, *, above: float = 0.0
) -> torch.Tensor:
    values = per_head(name, value, heads, above=above, at_most=at_most)
    return torch.tensor(_arrays.to_numpy(values), dtype=torch.float64)


def _inverse_softplus(x: torch.Tensor) -> torch.Tensor:
    """Return log(exp(x) - 1) as float32, in a form that does not overflow."""
    return (x + (-(-x).expm1()).log()).float()


def _softplus(x: torch.Tensor) -> torch.Tensor:
    return _above_zero(functional.softplus(x))


def _above_zero(x: torch.Tensor) -> torch.Tensor:
    """Replace entries that have underflowed to 0 by the least positive normal float."""
    return x.clamp(min=torch.finfo(x.dtype).tiny)
