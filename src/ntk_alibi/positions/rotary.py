"""Rotary positions, RoPE and XPOS, for NumPy arrays and tensors.

Queries and keys are rotated before the kernels read them. Angles are float64 products of integer
positions and frequencies; only their cosines and sines are rounded, to float32.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

from ntk_alibi import _arrays, _checks, masks
from ntk_alibi._arrays import Array, ArrayT
from ntk_alibi._backends import backend_of, promote_to_float32, rows_of_integers
from ntk_alibi._torch_state import is_tracing
from ntk_alibi.methods import as_scaling
from ntk_alibi.scaling import AnyScaling

Layout: TypeAlias = Literal["pairs", "halves"]


@dataclass(frozen=True)
class _Rotary:
    """The base class of RoPE and XPOS: pairs of channels and their frequencies."""

    head_dim: int
    base: float = 10000.0
    _: KW_ONLY
    layout: Layout = "pairs"
    rotary_dim: int | None = None

    def __post_init__(self) -> None:
        head_dim = _checks.head_dim(self.head_dim)
        base = _checks.finite("base", self.base, minimum=1.0, inclusive=False)
        layout = _checks.choice("layout", self.layout, ("pairs", "halves"))
        name, channels = "rotary_dim", self.rotary_dim
        if channels is None:
            name, channels = "head_dim", head_dim
        channels = _checks.integer(name, channels, minimum=1, maximum=head_dim)
        if channels % 2:
            raise ValueError(f"{name} must be even for rotary positions, got {channels}")
        for name, value in zip(
            ("head_dim", "base", "layout", "rotary_dim"),
            (head_dim, base, layout, channels),
            strict=True,
        ):
            object.__setattr__(self, name, value)

    #: Whether scores decay with distance, which requires causal attention.
    decays: ClassVar[bool] = False

    @property
    def _frequency_divisor(self) -> float:
        return 1.0

    @property
    def pairs(self) -> int:
        """The number of rotated channel pairs."""
        return (self.rotary_dim or 0) // 2

    def rotated(self, x: Any, positions: Any, *, back: bool = False) -> Any:
        """Rotate vectors (batch, heads, length, head_dim) by positions (1 or batch, length).

        back=True rotates in the opposite direction. The result is float64 for float64 vectors, else
        float32. Channels beyond rotary_dim are unchanged.
        """
        x = promote_to_float32(x)
        backend = backend_of(x)
        module, pair = backend.xp, backend.cast(backend.arange(self.pairs), "float64")
        frequencies = self.base ** (-pair / self.pairs) / self._frequency_divisor
        angles = backend.cast(positions, "float64")[..., None] * (
            -frequencies if back else frequencies
        )
        cos, sin = (backend.cast(f(angles), x.dtype)[:, None] for f in (module.cos, module.sin))
        split = 2 * self.pairs
        if self.layout == "pairs":
            first, second = x[..., 0:split:2], x[..., 1:split:2]
        else:
            first, second = x[..., : self.pairs], x[..., self.pairs : split]
        with backend.without_warnings():  # infinity in padding
            both = [first * cos - second * sin, second * cos + first * sin]
        return module.concatenate([self._join_pairs(both), x[..., split:]], -1)

    def _join_pairs(self, both: list[Any]) -> Any:
        """Return the first and the second channels of all pairs in the order of the layout."""
        module = backend_of(both[0]).xp
        if self.layout == "halves":
            return module.concatenate(both, -1)
        return module.stack(both, -1).reshape((*both[0].shape[:-1], 2 * self.pairs))


@dataclass(frozen=True)
class RoPE(_Rotary):
    """Rotary position embedding: rotations that make scores depend on the distance.

    Formula::

        q_i -> R_i q_i,  k_j -> R_j k_j;  R_p rotates pair m of channels, m = 0 .. R/2 - 1,
        by the angle (p / factor) base^(-2m/R)

    Pass it to `attention` as rotary=. Positions are the exact integers of `attention`; angles are
    float64 for inputs of any dtype.

    Args:
        head_dim: D, the number of channels of a head of queries and keys.
        base: the base of the frequencies, > 1.
        layout: which channels form pair m: "pairs" for 2m and 2m + 1, as in the papers; "halves"
            for m and m + R/2, as in Llama, GPT-NeoX and most models of transformers.
        rotary_dim: R, even; the first R channels are rotated, the others are unchanged. All
            channels by default.
        factor: the factor of position interpolation, >= 1.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, such as an odd number of channels.

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
    def _frequency_divisor(self) -> float:
        return self.factor

    def stretched(self, scaling: AnyScaling) -> RoPE:
        """Return the embedding stretched for longer texts, by the same scalings as ALiBi.

        Formula, for a scaling with factor a::

            Interpolation: factor -> a factor
            NTK: base -> base a^(R / (R - 2))

        NTK slows the slowest pair down by a and leaves the fastest pair unchanged.

        Args:
            scaling: an `Interpolation` or an `NTK` with factor a, its dict, or its name such as
                "ntk:4".

        Returns:
            The stretched embedding.

        Raises:
            TypeError: scaling is of another type.
            ValueError: scaling is NTK and there is one pair, both the fastest and the slowest.

        Example:
            >>> import ntk_alibi as na
            >>> na.RoPE(16).stretched(na.Interpolation(4.0)).factor
            4.0
            >>> na.RoPE(4).stretched(na.NTK(2.0)).base
            40000.0

        Source: Chen et al. 2023 (arXiv 2306.15595) for the interpolation; bloc97 2023 for NTK,
        described by Peng et al. 2023 (arXiv 2309.00071), section 3.1.
        """
        chosen = as_scaling(scaling)
        if not hasattr(chosen, "stretch_rotary"):
            raise TypeError(
                f"scaling must be an Interpolation or an NTK, got {_checks.briefly(scaling)}"
            )
        base, factor = chosen.stretch_rotary(self.base, self.factor, self.pairs)
        return replace(self, base=base, factor=factor)

    def rotate(self, x: ArrayT, positions: Array | None = None) -> ArrayT:
        """Rotate vectors by their positions, such as keys before they are cached.

        Args:
            x: (batch, heads, length, head_dim), float32, bfloat16, float16 or float64.
            positions: (length,) or (batch, length) integers, 0 .. length - 1 by default.

        Returns:
            The rotated vectors in x's framework, shape and dtype, rounded once.

        Raises:
            TypeError: x or positions has the wrong type or dtype.
            ValueError: x or positions has the wrong shape.

        Example:
            >>> import numpy as np, ntk_alibi as na
            >>> na.RoPE(2).rotate(np.ones((1, 1, 1, 2)), np.array([0]))
            array([[[[1., 1.]]]])
        """
        _checks.attention_input("x", x)
        _checks.floating_dtype(x.dtype, (*_arrays.CORE_DTYPES, "float64"), "x")
        if x.shape[3] != self.head_dim:
            raise ValueError(f"x must have head_dim {self.head_dim}, got {tuple(x.shape)}")
        batch, _, length, _ = x.shape
        masks.checked_positions("positions", positions, batch, length, read=not is_tracing())
        backend = backend_of(x)
        at = rows_of_integers(backend, positions, x.shape[2])
        result: ArrayT = backend.cast(self.rotated(x, at), x.dtype)
        return result


@dataclass(frozen=True)
class XPOS(_Rotary):
    """RoPE whose channel pairs decay with distance, each at its own rate; causal only.

    Formula::

        q_i.k_j -> sum_m zeta_m^((i - j) / scale_base) (R_i q_i)_m.(R_j k_j)_m
        zeta_m = (2m/R + gamma) / (1 + gamma)

    Pass it to `attention` as rotary=; the paper adds causal_block= (block-wise causal attention).
    The decay is split between queries and keys around the centre of a run of queries, so that
    nothing overflows at any position; factors too small to matter in float32 are 0.

    Args:
        head_dim: D, the number of channels of a head of queries and keys.
        base: the base of the frequencies, > 1.
        scale_base: the distance in tokens, > 0, over which pair m decays by zeta_m.
        gamma: a number > 0; the fastest pair has zeta = gamma / (1 + gamma).
        layout: which channels form a pair, as in `RoPE`.
        rotary_dim: R, as in `RoPE`; the other channels neither rotate nor decay.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, such as an odd number of channels.

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
    decays: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("scale_base", "gamma"):
            value = _checks.finite(name, getattr(self, name), minimum=0.0, inclusive=False)
            object.__setattr__(self, name, value)

    @property
    def fastest_rate(self) -> float:
        """How much the logarithm of the fastest pair's factor falls per token, > 0."""
        return math.log1p(1.0 / self.gamma) / self.scale_base

    def log_decays(self, example: Any) -> Any:
        """Return the logarithm of each channel's factor per token, (head_dim,) float64, <= 0."""
        backend = backend_of(example)
        module, pair = backend.xp, backend.cast(backend.arange(self.pairs), "float64")
        zeta = (pair / self.pairs + self.gamma) / (1.0 + self.gamma)
        rates = module.log(zeta) / self.scale_base
        others = 0.0 * backend.arange(self.head_dim - 2 * self.pairs)
        return module.concatenate([self._join_pairs([rates, rates]), others], -1)
