"""One forward pass of a patched model: its padding, positions and slopes, for all layers."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ntk_alibi import _checks
from ntk_alibi.biases.slopes import scaling_per
from ntk_alibi.integrations import checks
from ntk_alibi.integrations.family import transformers_version
from ntk_alibi.integrations.passed_through import PassedThrough
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.integrations.slope_rule import SlopeRule
from ntk_alibi.masks import EVERYTHING, Mask
from ntk_alibi.scaling import Bend, Scaling, without_knee
from ntk_alibi.torch.streaming_mask import StreamingMask

Made = TypeVar("Made")
Function = TypeVar("Function", bound=Callable[..., Any])


def untraced(function: Function) -> Function:
    """Exclude a function from torch.compile, since it depends on the numbers of the mask."""
    return cast(Function, torch.compiler.disable(function, reason=checks.WAY_TO_TRACE))


class ForwardPass(PassedThrough):
    """Padding, positions and slopes of one forward pass; layers get it as their attention_mask.

    Attributes:
        mask: (batch, keys or more), True for real keys; static caches have keys beyond the last
            query.
        past: number of keys before the first query; of two runs, those that are no queries.
        queries: number of queries.
        at: the columns of the queries, a slice or int64.
        streaming: the mask of the queries if it hides any key behind them, or None.
        skipped: (batch,), real tokens that are neither among the keys nor queries, or None: a
            `WindowCache` evicted them between the sinks and the window.
        heads: the heads that this rank computes, a slice, or None for all.
        shared: how several ranks share the tokens, an object of shared_pass.py, or None.
        unpadded: whether all keys are known to be real, since the model got no padding mask.
        settings: the choices of the patch.
    """

    mask: torch.Tensor
    misuse = (
        "the patch must stay until the backward pass of a gradient-checkpointed forward is done, "
        "which runs that forward again; it was undone before"
    )

    def __init__(
        self,
        rule: SlopeRule,
        settings: Settings,
        mask: torch.Tensor,
        past: int,
        queries: int,
        streaming: StreamingMask | None = None,
        skipped: torch.Tensor | None = None,
        shared: Any = None,
        unpadded: bool = False,
    ) -> None:
        super().__init__(mask)
        self.past = past
        self.queries = queries
        self.at: Any = slice(past, past + queries) if shared is None else shared.at
        self.streaming = streaming
        self.skipped = skipped
        self.shared = shared
        self.unpadded = unpadded
        self.heads: slice | None = None
        self.settings = settings
        self.rule = rule
        self._memo: dict[Any, Any] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a mask of four dimensions, which transformers leaves unchanged."""
        return (len(self.mask), 1, self.queries, self.mask.shape[1])

    @property
    def scaling(self) -> Scaling | None:
        """The patch's scaling."""
        return self.settings.scaling

    def at_layer(self, layer: int) -> ForwardPass:
        """Return the pass of one layer, whose scaling may be that of some layers only."""
        at_layer = getattr(self.scaling, "at_layer", None)
        scaling = self.scaling if at_layer is None else at_layer(layer)
        return self if scaling is self.scaling else self.memo(_with_scaling, scaling)

    def of_rank(self, rank: int, size: int) -> ForwardPass:
        """Return the pass of the heads that a rank of tensor parallelism computes."""
        checks.divided_heads(self.rule.heads, size, eager=self.eager)
        own = self.rule.heads // size
        return self.memo(_with_heads, rank * own, (rank + 1) * own)

    def changed(self, **attributes: Any) -> ForwardPass:
        """Return a copy with some other attributes, which has computed nothing yet."""
        other = copy(self)
        vars(other).update(attributes, _memo={})
        return other

    @property
    def bends(self) -> bool:
        """Whether the patch's scaling acts on distances."""
        return without_knee(self.scaling)[1] is not None

    @property
    def eager(self) -> bool:
        """True if the layers attend as transformers does, with all weights."""
        return self.settings.attention == "eager"

    @property
    def real(self) -> torch.Tensor:
        """The mask up to the last query."""
        return self.mask[:, : self.past + self.queries]

    def all_real(self, real: torch.Tensor) -> bool:
        """Return whether all keys of a mask are known to be real.

        On other devices than the CPU masks are not read: the host would have to wait for them.
        """
        return self.unpadded or (real.is_cpu and bool(real.all()))

    def slopes(
        self, real: torch.Tensor, queries: int, skipped: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the slopes of the last queries of a mask, (1 or batch, heads, 1 or queries)."""
        lengths = self._lengths(real, queries, skipped)
        slopes = self.rule.slopes_on(self.mask.device, self.scaling, lengths)
        return slopes if self.heads is None else slopes[:, self.heads]

    def bend(
        self, real: torch.Tensor, queries: int, skipped: torch.Tensor | None = None
    ) -> Bend | None:
        """Return the knee of the last queries of a mask, or None."""
        knee = without_knee(self.scaling)[1]
        return None if knee is None else knee.bend(self._lengths(real, queries, skipped))

    @property
    def factors(self) -> torch.Tensor | None:
        """Factors of the queries' scores, float32 (1 or batch, 1 or heads, queries), or None."""
        factors: torch.Tensor | None = self.memo(_factors)
        if factors is None or factors.shape[1] == 1 or self.heads is None:
            return factors
        return factors[:, self.heads]

    def biased(self, slopes: torch.Tensor, factors: torch.Tensor | None) -> torch.Tensor:
        """Return slopes times the factors of their queries if the bias is multiplied, too."""
        log_n = self.settings.log_n
        return slopes if factors is None or log_n is None or not log_n.biased else slopes * factors

    def _lengths(
        self, real: torch.Tensor, queries: int, skipped: torch.Tensor | None = None
    ) -> NDArray[np.int64] | None:
        """Return the numbers of tokens for a dynamic scaling, (batch,) or (batch, queries)."""
        per = scaling_per(self.scaling)
        if per is None:
            return None
        if self.unpadded and self.skipped is None and skipped is None:
            real = torch.ones(real.shape, dtype=torch.bool)  # whose numbers the host knows
        every, at = real, slice(real.shape[1] - queries, None)
        if self.shared is not None:
            every, at = self.mask, self.at
        seen = every.cumsum(dim=1)[:, at].clamp(min=1)
        seen = seen if per == "query" else every.sum(dim=1)[:, None]
        skipped = self.skipped if skipped is None else skipped
        seen = seen if skipped is None else seen + skipped.to(seen.device)[:, None]
        return _checks.constant("attention_mask", seen if per == "query" else seen[:, 0])

    def positions(self, real: torch.Tensor) -> torch.Tensor:
        """Return positions of a mask's keys, (1 or batch, keys), 0 up to the first real one."""
        columns = torch.arange(real.shape[1], device=real.device)
        if self.rule.counts_holes:
            positions = columns - real.int().argmax(dim=1, keepdim=True)
        else:
            positions = real.cumsum(dim=1) - 1
        if self.streaming is not None and self.skipped is not None:
            skipped = self.skipped.to(real.device)[:, None]
            positions = positions + torch.where(columns < self.streaming.mask.sink, 0, skipped)
        return positions.clamp(min=0)

    def relative_bias(self, real: torch.Tensor) -> torch.Tensor:
        """Return -m_h (i - j) for the keys of a mask, (batch, heads, queries, keys), float32.

        With a knee, i - j is bent. Factors of biased scores are those of the bias, too.
        """
        slopes = self.biased(self.slopes(self.real, self.queries), self.factors).to(real.device)
        distance, _ = self._distances(real)
        bend = self.bend(self.real, self.queries)
        distance = distance if bend is None else bend.bent(distance)
        return -slopes[..., None] * distance[:, None]

    def rounded_bias(self, real: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the bias of the keys with transformers' rounding, see `SlopeRule.rounded_bias`."""
        lengths = self._lengths(real, self.queries)
        bias = self.rule.rounded_bias(self.scaling, lengths, self.positions(real), dtype)
        return bias if self.heads is None else bias[:, self.heads]

    def hidden(self, real: torch.Tensor) -> torch.Tensor:
        """Return a mask of the keys that each query does not see, (batch, 1, queries, keys)."""
        seen = visible(real, self.past, self.queries)
        return ~seen if self.streaming is None else ~(seen & self._distances(real)[1][:, None])

    def _distances(self, real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return distances of the queries to a mask's keys, and a mask of the visible keys."""
        keys = self.positions(real)
        queries = keys[:, self.past : self.past + self.queries]
        return (self.streaming or StreamingMask()).distances(queries, keys)

    @untraced
    def memo(self, make: Callable[..., Made], *arguments: Any) -> Made:
        """Return make(self, *arguments), computed once a pass for hashable arguments."""
        key = (make, arguments)
        if key not in self._memo:
            self._memo[key] = make(self, *arguments)
        return cast(Made, self._memo[key])


def _with_scaling(forward_pass: ForwardPass, scaling: Scaling | None) -> ForwardPass:
    """Return the same pass with another scaling."""
    return forward_pass.changed(settings=replace(forward_pass.settings, scaling=scaling))


def _with_heads(forward_pass: ForwardPass, begin: int, end: int) -> ForwardPass:
    """Return the same pass of some heads."""
    return forward_pass.changed(heads=slice(begin, end))


def _factors(forward_pass: ForwardPass) -> torch.Tensor | None:
    log_n, real = forward_pass.settings.log_n, forward_pass.real
    if log_n is None:
        return None
    keys = forward_pass.positions(real)
    mask = EVERYTHING if forward_pass.streaming is None else forward_pass.streaming.mask
    counts = mask.visible_count(keys[:, forward_pass.at], keys, real).clamp(min=1)
    log_n.check_heads(forward_pass.rule.heads)
    return cast(torch.Tensor, log_n.factors_of(counts.double()).float())


def visible(real: torch.Tensor, past: int, queries: int) -> torch.Tensor:
    """Return a mask of the keys that each query sees by column, (batch, 1, queries, keys)."""
    columns = torch.arange(real.shape[1], device=real.device)
    causal: torch.Tensor = Mask().visible(columns[past : past + queries], columns)
    return real[:, None, None, :] & causal


def require_pass(
    passed: Any, layer: nn.Module, heads: int, hidden_states: torch.Tensor, output: nn.Module
) -> ForwardPass:
    """Return the `ForwardPass` that a layer got in place of a mask, if it can use it.

    Args:
        passed: what the layer got.
        layer: the layer.
        heads: the number of heads that the layer computes.
        hidden_states: the input of the layer, (batch, queries, channels of all heads).
        output: the layer's product with the outputs of its heads, whose weight is divided among the
            ranks of tensor parallelism.
    """
    if not isinstance(passed, ForwardPass):
        raise RuntimeError(
            f"transformers built the mask of {type(layer).__name__} without asking the patched "
            f"model: the patch would have no effect with transformers {transformers_version()}"
        )
    _checks.plain("hidden_states", hidden_states)
    every = hidden_states.shape[-1] // cast(int, layer.head_dim)
    checks.all_heads(type(layer).__name__, every, heads, passed.rule.heads)
    passed = passed.at_layer(cast(int, layer.layer_idx))
    mesh: Any = getattr(getattr(output, "weight", None), "device_mesh", None)
    if mesh is not None:
        passed = passed.of_rank(mesh.get_local_rank(), mesh.size())
    return cast(ForwardPass, passed)
