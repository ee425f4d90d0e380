"""Multi-head attention with ALiBi as a torch module."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ntk_alibi import _arrays, _checks, masks
from ntk_alibi._arrays import Array
from ntk_alibi._torch_state import is_tracing, refuse_script
from ntk_alibi.biases.alibi import ALiBi
from ntk_alibi.biases.base import check_dense, check_fits
from ntk_alibi.biases.parameters import per_head
from ntk_alibi.biases.slopes import alibi_slopes, checked_slopes
from ntk_alibi.fused.attention import attention
from ntk_alibi.fused.dropout import NO_DROPOUT, checked_share
from ntk_alibi.methods import as_scaling
from ntk_alibi.scaling import AnyScaling
from ntk_alibi.torch.learned_bias import FixedSlopes, LearnedSlopes, TwoSidedSlopes

Slopes: TypeAlias = (
    float
    | Sequence[float]
    | NDArray[Any]
    | torch.Tensor
    | Literal["random", "learned", "two_sided"]
    | None
)

#: The range of random slopes, which is the range of eight standard slopes.
RANDOM_RANGE = (2.0**-8, 2.0**-1)


class AlibiAttention(nn.Module):
    """Multi-head attention with linear biases, on the fused kernel.

    Formula::

        output = W_o concat_h softmax(q_h k_h^T / sqrt(D) - m_h |i - j|) v_h,  q = W_q x, ...

    Two things differ from nn.MultiheadAttention(embed_dim, num_heads). num_heads comes before
    embed_dim; positional arguments in the other order raise an error. And keys ahead of a query are
    hidden unless causal=False, as in `ntk_alibi.attention`.

    Attributes:
        q_linear, k_linear, v_linear, out_linear: the linear projections.
        slopes: a module that returns the slopes; None for standard slopes and with a bias.

    Args:
        num_heads: H.
        embed_dim: channels of the inputs and the output, a multiple of H.
        slopes: None for the standard slopes; one slope for all heads; one for each head, as a list,
            a tuple, an array or a tensor (heads,), which is trained if it is an `nn.Parameter`;
            "random" for slopes between 2^-8 and 2^-1, whose logarithms are drawn uniformly by
            `generator`; "learned" for exp(x), trained, with the standard slopes as initial values;
            "two_sided" for sigmoid(x), trained, with separate slopes to the left and to the right
            (for encoders, with causal=False).
        bias: in place of slopes, a bias object or an array, as `ntk_alibi.attention` takes them, or
            a module that returns a bias for the input k (batch, keys, embed_dim), such as the
            modules of `ntk_alibi.torch.learned_bias`.
        causal: whether keys ahead of a query are hidden. False for encoders.
        scaling: as of `ALiBi`; a dynamic one counts each row's real tokens.
        num_kv_heads: number of heads of keys and values, a divisor of H (GQA, MQA); H by default.
        window: how many positions back (and ahead) a query sees, its own included.
        align: where queries are in cross-attention: "end" puts the last query at the last key,
            "start" the first query at the first key. For cross-attention without bias: slopes=0 and
            causal=False.
        dropout: the share of weights that is set to 0 in training, as in `ntk_alibi.attention`.
        generator: random generator for slopes="random".

    Raises:
        TypeError, ValueError: an argument is wrong, or two of them contradict each other.

    Example:
        >>> import torch, ntk_alibi as na
        >>> attention = na.AlibiAttention(num_heads=8, embed_dim=64)
        >>> x = torch.randn(2, 10, 64)
        >>> attention(x, x, x, key_padding_mask=torch.ones(2, 10)).shape
        torch.Size([2, 10, 64])

        It can replace `nn.MultiheadAttention(64, 8, batch_first=True)`, whose key_padding_mask is
        the other way round, True for padding:

        >>> padding = torch.zeros(2, 10, dtype=torch.bool)
        >>> attention = na.AlibiAttention(8, 64, causal=False)
        >>> output = attention(x, x, x, key_padding_mask=~padding)

    Source: Press et al. 2022 (arXiv 2108.12409).
    """

    def __init__(
        self,
        num_heads: int,
        embed_dim: int,
        slopes: Slopes = None,
        *,
        bias: Any = None,
        causal: bool = True,
        scaling: AnyScaling | None = None,
        num_kv_heads: int | None = None,
        window: int | None = None,
        align: Literal["end", "start"] = "end",
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        heads = _checks.num_heads(num_heads)
        size = _checks.integer("embed_dim", embed_dim, minimum=1)
        if size < heads:
            raise ValueError(
                f"embed_dim must be between {heads} and {_checks.MAX_LENGTH}, got {size} for "
                f"{heads} heads: the order is AlibiAttention(num_heads, embed_dim), other than in "
                "nn.MultiheadAttention"
            )
        groups = heads
        if num_kv_heads is not None:
            groups = _checks.integer("num_kv_heads", num_kv_heads, minimum=1)
        _checks.multiple("embed_dim", size, "num_heads", heads)
        _checks.multiple("num_heads", heads, "num_kv_heads", groups)
        most = _checks.MAX_HEAD_DIM * heads  # what fits into the kernels' scratch memory
        if size > most:
            raise ValueError(f"embed_dim must be at most {most} for {heads} heads, got {size}")
        checked_share(dropout)
        scaling = as_scaling(scaling)
        _checks.at_most_one(slopes=slopes, bias=bias, scaling=scaling)
        self.num_heads, self.embed_dim, self.head_dim = heads, size, size // heads
        self.causal = _checks.boolean("causal", causal)
        if self.causal and isinstance(slopes, str) and slopes == "two_sided":
            raise ValueError(
                "slopes must be for one side with causal=True, got 'two_sided': pass causal=False"
            )
        # The shape of an array, and the bias of a module, are checked in forward.
        if hasattr(bias, "kernel_bias") and not isinstance(bias, type):
            check_fits(bias, heads, causal=self.causal)
        elif bias is not None and not isinstance(bias, nn.Module):
            check_dense(bias)
        self.bias, self.scaling, self.dropout = bias, scaling, dropout
        self.window = None if window is None else _checks.integer("window", window, minimum=1)
        self.align: Literal["end", "start"] = align
        masks.checked_alignment(align)
        self.q_linear = nn.Linear(size, size)
        self.k_linear = nn.Linear(size, groups * self.head_dim)
        self.v_linear = nn.Linear(size, groups * self.head_dim)
        self.out_linear = nn.Linear(size, size)
        self.slopes = _slope_module(heads, slopes, generator)

    __prepare_scriptable__ = refuse_script

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: Array | masks.BlockMask | None = None,
        key_padding_mask: Array | None = None,
    ) -> torch.Tensor:
        """Attend from q to k and v.

        Args:
            q: (batch, queries, embed_dim).
            k: (batch, keys, embed_dim); `align` tells where the queries are among these keys.
            v: (batch, keys, embed_dim).
            mask: (batch or 1, heads or 1, queries, keys) booleans, True where a query may see a
                key, or a `BlockMask` of them, as in `ntk_alibi.attention`.
            key_padding_mask: (batch, keys), 1 or True for real keys, 0 or False for padding.

        Returns:
            (batch, queries, embed_dim).

        Raises:
            TypeError, ValueError: an argument is wrong.
        """
        for name, x in (("q", q), ("k", k), ("v", v)):
            _checks.check_plain(name, x)
            if not _arrays.is_tensor(x):
                raise TypeError(f"{name} must be a torch tensor, got {_checks.briefly(x)}")
            if x.ndim != 3 or x.shape[2] != self.embed_dim:
                shape = f"(batch, length, {self.embed_dim})"
                raise ValueError(f"{name} must have shape {shape}, got {tuple(x.shape)}")
        if k.shape[0] != q.shape[0]:
            raise ValueError(f"k must have q's batch {q.shape[0]}, got {k.shape[0]}")
        if v.shape != k.shape:
            raise ValueError(f"v must have k's shape {tuple(k.shape)}, got {tuple(v.shape)}")
        self._check_lengths(q.shape[1], k.shape[1])
        output = attention(
            self._split(self.q_linear(q)),
            self._split(self.k_linear(k)),
            self._split(self.v_linear(v)),
            self._bias(k),
            causal=self.causal,
            window=self.window,
            align=self.align,
            mask=mask,
            key_padding_mask=key_padding_mask,
            dropout=self.dropout if self.training else NO_DROPOUT,
        )
        merged = output.transpose(1, 2).flatten(2)
        return cast(torch.Tensor, self.out_linear(merged))

    def _check_lengths(self, queries: int, keys: int) -> None:
        """Refuse what `attention` refuses, which would name positions that this module lacks."""
        mask = masks.Mask(self.causal, self.window)
        if self.align == "end" and not is_tracing() and mask.hides_all(queries, keys):
            raise ValueError(
                "align must be 'start' for more queries than keys, got 'end' with "
                f"{queries} queries and {keys} keys"
            )

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        split: torch.Tensor = x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        return split

    def _bias(self, hidden: torch.Tensor) -> Any:
        if isinstance(self.bias, nn.Module):
            return self.bias(hidden)
        if self.bias is not None:
            return self.bias
        if self.slopes is None:
            return ALiBi(self.num_heads, self.scaling, sides="symmetric")
        slopes = self.slopes()
        sides: Any = "two_slopes" if isinstance(slopes, tuple) else "symmetric"
        return ALiBi(self.num_heads, slopes=slopes, sides=sides)

    def extra_repr(self) -> str:
        """Return the arguments for the module's repr."""
        return (
            f"num_heads={self.num_heads}, embed_dim={self.embed_dim}, causal={self.causal}, "
            f"scaling={self.scaling!r}, window={self.window}, dropout={self.dropout}"
        )


def _slope_module(heads: int, slopes: Any, generator: torch.Generator | None) -> nn.Module | None:
    if slopes is None:
        return None
    if isinstance(slopes, str):
        kind = _checks.choice("slopes", slopes, ("random", "learned", "two_sided"))
        if kind == "two_sided":
            return TwoSidedSlopes(heads)
        if kind == "learned":
            return LearnedSlopes(torch.tensor(alibi_slopes(heads)))
        low, high = map(math.log2, RANDOM_RANGE)
        draw = torch.rand(heads, generator=generator, dtype=torch.float32)
        return FixedSlopes(torch.exp2(low + (high - low) * draw))
    if isinstance(slopes, torch.Tensor):
        checked_slopes("slopes", slopes, heads)
        if slopes.ndim != 1:
            raise ValueError(f"slopes must have shape ({heads},), got {tuple(slopes.shape)}")
        module = FixedSlopes(slopes)
        if isinstance(slopes, nn.Parameter):
            del module.slopes
            module.register_parameter("slopes", slopes)
        return module
    if isinstance(slopes, list | tuple | np.ndarray):
        array = _checks.as_float32("slopes", per_head("slopes", slopes, heads))
        return FixedSlopes(torch.tensor(array))
    slope = _checks.as_float32("slopes", _checks.finite("slopes", slopes, minimum=0.0))
    return FixedSlopes(torch.full((heads,), float(slope), dtype=torch.float32))
