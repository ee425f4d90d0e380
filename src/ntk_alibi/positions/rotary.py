"""Rotary positions: RoPE and XPOS, for NumPy arrays and tensors alike.

Kept apart from the kernels, which never see them: queries and keys are rotated before. Angles are
products of integers and frequencies in float64; only their cosines and sines are rounded, to
float32. A position never is.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

from ntk_alibi import _arrays, _checks, masks
from ntk_alibi._arrays import Array
from ntk_alibi.positions import checks
from ntk_alibi.scaling import NTK, Interpolation

Layout: TypeAlias = Literal["pairs", "halves"]


@dataclass(frozen=True)
class _Rotary:
    """The parameters that RoPE and XPOS share: the pairs of channels, and how fast they turn."""

    head_dim: int
    base: float = 10000.0
    _: KW_ONLY
    layout: Layout = "pairs"
    rotary_dim: int | None = None

    def __post_init__(self) -> None:
        head_dim = _checks.head_dim(self.head_dim)
        base = _checks.finite("base", self.base, minimum=1.0, inclusive=False)
        layout = _checks.choice("layout", self.layout, ("pairs", "halves"))
        channels = checks.rotary_dim(self.rotary_dim, head_dim)
        for name, value in zip(
            ("head_dim", "base", "layout", "rotary_dim"),
            (head_dim, base, layout, channels),
            strict=True,
        ):
            object.__setattr__(self, name, value)

    #: Whether scores fade with distance, which only causal attention can have.
    fades: ClassVar[bool] = False

    @property
    def _slower(self) -> float:
        """The divisor of all frequencies."""
        return 1.0

    @property
    def pairs(self) -> int:
        """Pairs of channels that turn."""
        return (self.rotary_dim or 0) // 2

    def rotated(self, x: Any, positions: Any, *, back: bool = False) -> Any:
        """Rotate vectors (batch, heads, length, head_dim) at positions (1 or batch, length).

        The result is float64 for float64, else float32. Channels beyond rotary_dim are unchanged.
        """
        module, x = _arrays.namespace(x), _arrays.promote_to_float32(x)
        pair = _arrays.float64_range(0, self.pairs - 1, x)
        frequencies = self.base ** (-pair / self.pairs) / self._slower
        angles = _arrays.to_float64(positions, None)[..., None] * (
            -frequencies if back else frequencies
        )
        cos, sin = (_arrays.to_dtype_of(f(angles), x)[:, None] for f in (module.cos, module.sin))
        split = 2 * self.pairs
        if self.layout == "pairs":
            first, second = x[..., 0:split:2], x[..., 1:split:2]
        else:
            first, second = x[..., : self.pairs], x[..., self.pairs : split]
        with _arrays.quiet(x):  # infinity in padding
            both = [first * cos - second * sin, second * cos + first * sin]
        return module.concatenate([self._joined(both, x), x[..., split:]], -1)

    def _joined(self, both: list[Any], example: Any) -> Any:
        """Return the first and the second channels of the pairs, each in its place."""
        module = _arrays.namespace(example)
        if self.layout == "halves":
            return module.concatenate(both, -1)
        return module.stack(both, -1).reshape((*both[0].shape[:-1], 2 * self.pairs))


@dataclass(frozen=True)
class RoPE(_Rotary):
    """Rotary position embedding: scores that depend on the distance through rotations.

    q_i -> R_i q_i,  k_j -> R_j k_j;  R_p turns pair m of channels, m = 0 .. R/2 - 1, by the angle
    (p / factor) base^(-2m/R)

    Give it to `attention` as rotary=. Positions are those of `attention`, exact integers, and
    angles float64 whatever the dtype of the inputs.

    Args:
        head_dim: D, of queries and keys.
        base: b > 1.
        layout: which channels make a pair: "pairs" 2m and 2m + 1, as in the papers; "halves" m and
            m + R/2, as in GPT-NeoX, Llama and other models of transformers, whose weights need it.
        rotary_dim: R, even; the first R channels turn, the others stay. All by default.
        factor: >= 1, of position interpolation.

    Raises:
        TypeError, ValueError: an argument is wrong, such as an odd number of channels.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> query, key, value = np.random.default_rng(0).random((3, 1, 2, 5, 8), np.float32)
        >>> na.attention(query, key, value, rotary=na.RoPE(8)).shape
        (1, 2, 5, 8)

    Source: Su et al. 2021 (arXiv 2104.09864), section 3.2.2.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        factor = _checks.finite("factor", self.factor, minimum=1.0)
        object.__setattr__(self, "factor", factor)

    @property
    def _slower(self) -> float:
        return self.factor

    def stretched(self, scaling: Interpolation | NTK) -> RoPE:
        """Return the embedding for texts longer than in training, stretched as ALiBi is.

        Interpolation: factor -> a factor.  NTK: base -> base a^(R / (R - 2)), by which the slowest
        pair turns slower by a and the fastest as before.

        Args:
            scaling: whose factor is a.

        Returns:
            The stretched one.

        Raises:
            TypeError: scaling is another one.
            ValueError: NTK with a single pair, which is fastest and slowest.

        Example:
            >>> import ntk_alibi as na
            >>> na.RoPE(16).stretched(na.Interpolation(4.0)).factor
            4.0
            >>> na.RoPE(4).stretched(na.NTK(2.0)).base
            40000.0

        Source: Chen et al. 2023 (arXiv 2306.15595) for the interpolation; bloc97 2023 for NTK, as
        of Peng et al. 2023 (arXiv 2309.00071), section 3.1.
        """
        checks.constant_stretch(scaling, self.pairs)
        if scaling.alibi_type == "linear":
            return replace(self, factor=self.factor * scaling.factor)
        base = self.base * scaling.factor ** (self.pairs / (self.pairs - 1))
        return replace(self, base=base)

    def rotate(self, x: Array, positions: Array | None = None) -> Array:
        """Rotate vectors, for keys that a cache holds and that are rotated only once.

        Args:
            x: (batch, heads, length, head_dim), float32, bfloat16, float16 or float64.
            positions: (length,) or (batch, length) integers, 0 .. length - 1 by default.

        Returns:
            As x: framework, shape and dtype, rounded once.

        Raises:
            TypeError, ValueError: an argument is wrong.

        Example:
            >>> import numpy as np, ntk_alibi as na
            >>> na.RoPE(2).rotate(np.ones((1, 1, 1, 2)), np.array([0]))
            array([[[[1., 1.]]]])
        """
        checks.rotary_input(x, self.head_dim)
        if not _arrays.is_tracing():
            masks.checked_positions("positions", positions, x.shape[0], x.shape[2])
        at = _arrays.rows_of_integers(positions, x.shape[2], x)
        result: Array = _arrays.to_dtype_of(self.rotated(x, at), x)
        return result


@dataclass(frozen=True)
class XPOS(_Rotary):
    """RoPE whose pairs of channels fade with distance, each at its own rate; causal only.

    (q_i.k_j) -> sum_m zeta_m^((i - j) / scale_base) (R_i q_i)_m.(R_j k_j)_m,
    zeta_m = (2m/R + gamma) / (1 + gamma)

    Give it to `attention` as rotary=; the paper adds causal_block= (block-wise causal attention).
    The factor is split between queries and keys around a centre of each run of queries, so that
    nothing overflows at any position; what is too far for float32 has the factor 0.

    Args:
        head_dim: D, of queries and keys.
        base: b > 1, of the angles, as of `RoPE`.
        scale_base: > 0, the distance in tokens over which a pair fades by its zeta.
        gamma: > 0; the fastest pair has zeta = gamma / (1 + gamma).
        layout: as of `RoPE`.
        rotary_dim: as of `RoPE`; the other channels neither turn nor fade.

    Raises:
        TypeError, ValueError: an argument is wrong, such as an odd number of channels.

    Example:
        >>> import numpy as np, ntk_alibi as na
        >>> query, key, value = np.random.default_rng(0).random((3, 1, 2, 5, 8), np.float32)
        >>> far = np.arange(5) + 1_000_000
        >>> near = na.attention(query, key, value, rotary=na.XPOS(8), causal_block=2)
        >>> bool(np.allclose(near, na.attention(
        ...     query, key, value, rotary=na.XPOS(8), causal_block=2, query_positions=far,
        ...     key_positions=far), atol=1e-6))
        True

    Source: Sun et al. 2022 (arXiv 2212.10554), section 2 and algorithm 1.
    """

    scale_base: float = 512.0
    gamma: float = 0.4
    fades: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("scale_base", "gamma"):
            value = _checks.finite(name, getattr(self, name), minimum=0.0, inclusive=False)
            object.__setattr__(self, name, value)

    @property
    def fastest_rate(self) -> float:
        """The fall of the logarithm of the fastest pair's factor per token, > 0."""
        from math import log1p

        return log1p(1.0 / self.gamma) / self.scale_base

    def log_decays(self, example: Any) -> Any:
        """Return the logarithm of each channel's factor per token, (head_dim,) float64, <= 0."""
        module = _arrays.namespace(example)
        pair = _arrays.float64_range(0, self.pairs - 1, example)
        zeta = (pair / self.pairs + self.gamma) / (1.0 + self.gamma)
        rates = module.log(zeta) / self.scale_base
        rest = _arrays.float64_range(0, self.head_dim - 2 * self.pairs - 1, example)
        return module.concatenate([self._joined([rates, rates], example), 0.0 * rest], -1)
