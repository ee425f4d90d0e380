"""One forward pass of a patched model: a `Problem`, made once, and the bias of each layer.

The problem holds which tokens are real, their positions, and which keys each query sees. All biases
are asked for this whole problem; their kernel forms are shared by the layers that have the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch.nn import functional as F

from ntk_alibi import _arrays, _checks
from ntk_alibi._backends import backend_of
from ntk_alibi._torch_state import has_values, is_recorded, is_tracing
from ntk_alibi.biases.alibi import ModelALiBi, ModelSides
from ntk_alibi.biases.base import BiasObject, to_kernel_bias
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.biases.slopes import ModelSlopes
from ntk_alibi.integrations import own_bias
from ntk_alibi.integrations.packed_segments import PackedSegments
from ntk_alibi.integrations.settings import Settings
from ntk_alibi.masks import EVERYTHING, Mask, Problem

Made = TypeVar("Made")
Function = TypeVar("Function", bound=Callable[..., Any])

ALL = slice(None)

#: Message of torch where it cannot trace a patched model in one graph.
WAY_TO_TRACE = (
    "ntk_alibi: attention must be 'traceable' for torch.export, and for torch.compile with "
    "fullgraph=True under gradients or with a cache, since the other forms read the mask: use "
    "patch(model, scaling, attention='traceable'); fullgraph must be False for a model of a family "
    "without such a form"
)


def untraced(function: Function) -> Function:
    """Exclude a function from torch.compile, since it depends on the entries of the mask."""
    return cast(Function, torch.compiler.disable(function, reason=WAY_TO_TRACE))


@dataclass(frozen=True)
class Part:
    """Some columns of the keys, with the problem and the bias of all queries with them."""

    keys: slice
    problem: Problem
    bias: KernelBias

    @property
    def keeps_norms(self) -> bool:
        """Whether norms of a cache are of use: for all keys, real and at their columns."""
        problem, bias = self.problem, self.bias
        columns = self.keys == ALL and problem.key_padding_mask is problem.key_positions is None
        return columns and not bias.exempt and bias.dense is None


@dataclass(eq=False)
class ForwardPass:
    """The problem of one forward pass, which all layers share.

    Attributes:
        mask: (batch, keys or more), True for real keys; static caches have keys beyond the last
            query.
        problem: the tokens of the pass. Sinks of its mask are StreamingLLM's: evicted positions
            between them and the window do not count.
        rule: the rule by which the model computes its slopes.
        settings: the choices of the patch.
        own: biases in place of slopes, by layers, or by None for all layers; bias objects, and
            modules and functions that return them.
        cache: a cache of packed segments, in place of the layers' own, or None.
        heads: the heads that this rank of tensor parallelism computes, or None for all.
        falls: whether the slopes are a decoder's, whose bias falls by the same slope ahead of the
            query, too, where a mask of pairs shows these keys.
        ready: for layers that share a bias, the function that attends in the core without
            gradients, by what their biases depend on and the scale.
    """

    mask: torch.Tensor
    problem: Problem
    rule: ModelSlopes
    settings: Settings
    own: Mapping[Any, Any] = field(default_factory=dict)
    cache: Any = None
    heads: slice | None = None
    falls: bool = False
    ready: dict[Any, Any] = field(init=False, default_factory=dict)
    _made: dict[Any, Any] = field(init=False, default_factory=dict)
    _same: BiasObject | None = field(init=False, default=None)
    _in_core: list[Part] | None = field(init=False, default=None)

    def bias_of(self, layer: int, table: Any = None) -> BiasObject:
        """Return the bias of a layer: the same object for equal biases.

        Args:
            layer: the number of the layer.
            table: a `LayerTable` of the model's own bias, or None for slopes.
        """
        if self._same is not None:  # of all layers
            return self._same
        own = self.own.get(None, self.own.get(layer)) if self.own else None
        if own is not None:
            if not hasattr(own, "kernel_bias"):
                own = self.memo(own, None, own_bias.returned, own)
            return cast(BiasObject, own)
        if table is not None:
            return cast(BiasObject, table.bias(self._made, self.mask.device))
        scaling = self.settings.scaling
        sides: ModelSides = "falling" if self.falls else "symmetric"
        sides = "causal" if self.problem.mask.causal else sides
        bias = ModelALiBi.for_layer(self.rule, scaling, layer, sides)
        if self.alike:
            self._same = bias
        return bias

    @property
    def alike(self) -> bool:
        """Whether all layers whose tables are the same have the same bias."""
        scaled = getattr(self.settings.scaling, "layers", None)
        return None in self.own if self.own else scaled is None

    def memo(self, bias: Any, key: Any, make: Callable[..., Made], *arguments: Any) -> Made:
        """Return make(*arguments), computed once a pass for each function, bias and key.

        What autograd follows is made each time: a checkpointed layer runs again, and needs
        tensors of its own. So is what it may follow, where a bias does not list its parameters.

        Args:
            bias: the bias on which the result depends, or what returns it, or None.
            key: what else it depends on.
            make: the function.
            arguments: its arguments.
        """
        parameters: Any = () if bias is None else getattr(bias, "parameters", None)
        known = isinstance(parameters, tuple)  # a module's parameters are a method
        if is_recorded(*parameters) if known else torch.is_grad_enabled():
            return make(*arguments)
        place = make, id(bias), key
        if place not in self._made:
            self._made[place] = make(*arguments), bias  # which keeps its id
        return cast(Made, self._made[place][0])

    def factors(self, like: Any) -> Any:
        """Return factors of the scores of this rank's heads as `LogN.factors` does, or None."""
        log_n = self.settings.log_n
        if log_n is None:
            return None
        factors: Any = self.memo(None, _kind(like), log_n.factors, self.problem, like)
        whole = factors is None or self.heads is None or factors.shape[1] == 1
        return factors if whole else factors[:, self.heads]

    def parts(self, bias: BiasObject, like: Any) -> list[Part]:
        """Return the problem with a bias, in two parts if sinks are closer than their columns.

        Args:
            bias: the bias of all heads of the model.
            like: None for NumPy arrays, or a tensor of the call, as for `kernel_bias`.
        """
        if like is None and bias is self._same:  # without parameters, in the core
            if self._in_core is None:
                self._in_core = self._parts(bias, None)
            return self._in_core
        if like is None and not torch.is_grad_enabled():  # once a pass for layers that share it
            return self._parts(bias, None)
        return self.memo(bias, _kind(like), self._parts, bias, like)

    def _parts(self, bias: BiasObject, like: Any) -> list[Part]:
        problem, log_n, heads = self.problem, self.settings.log_n, self.heads
        kernel = _kernel_on_device(bias, problem, like)
        if kernel.exempt > problem.mask.sink > 0:
            raise ValueError(
                f"sink must be 0 or at least {kernel.exempt} with a bias whose first tokens have "
                f"no slope, got {problem.mask.sink} with {_checks.briefly(bias)}"
            )
        if heads is not None:
            kernel = kernel.for_heads(heads)
            problem = problem.for_heads(heads)
        if log_n is not None and log_n.biased:
            kernel = kernel.times(self.factors(like))
        if like is None and kernel.core is None:
            kernel = kernel._replace(core=kernel.in_core(problem.shape))
        every = slice(0, problem.shape[2])
        return [
            Part(keys, part, kernel if keys == ALL else kernel.part(every, keys, problem))
            for keys, part in ranges_of(problem)
        ]

    def pairs(self, bias: BiasObject, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the bias of all pairs, float32, and a mask of the keys that queries see.

        Both broadcast to (batch, heads, queries, keys); the bias of other keys is 0.
        """
        values, seen = [], []
        queries, columns = self.problem.shape[2:]
        for part in self.parts(bias, like):
            own, shown = part.bias.pairs(part.problem, like)
            begin = part.keys.start or 0
            around = begin, columns - begin - part.problem.shape[3]
            own = torch.where(shown, own.float(), 0.0)
            values.append(own if around == (0, 0) else F.pad(own, around))
            seen.append(shown if around == (0, 0) else F.pad(shown, around))
        if len(seen) == 2:  # no key is in both parts
            values, seen = [values[0] + values[1]], [seen[0] | seen[1]]
        problem = self.problem
        said = problem.segment_ids is not None or problem.visible is not None
        if said or not problem.mask.causal:
            return values[0], seen[0]
        at = torch.arange(columns, device=like.device)  # padded queries see nothing ahead, too
        return values[0], seen[0] & EVERYTHING.visible(at[columns - queries :], at)


def _kind(like: Any) -> Any:
    return None if like is None else (like.dtype is torch.float64, like.device)


def _kernel_on_device(bias: BiasObject, problem: Problem, like: Any) -> KernelBias:
    """Return a bias in kernel form; one that depends on no text is copied to a device once."""
    device = like is not None and not like.is_cpu and not is_tracing()
    if device and getattr(bias, "fixed", False):
        try:
            return _kept(cast(Any, bias), like.device, like.dtype is torch.float64)
        except TypeError:  # the scaling has no hash
            pass
    return to_kernel_bias(bias, problem, like)


@functools.lru_cache(maxsize=256)
def _kept(bias: Hashable, device: torch.device, wide: bool) -> KernelBias:
    with torch.inference_mode(False):  # autograd could not save tensors of that mode later
        like = torch.empty(0, device=device, dtype=torch.float64 if wide else torch.float32)
        fixed: Any = bias
        return cast(KernelBias, fixed.kernel_bias(Problem((1, fixed.num_heads, 1, 1))).on(like))


def problem_of(
    real: torch.Tensor,
    at: Any,
    rule: ModelSlopes,
    mask: Mask,
    skipped: torch.Tensor | None = None,
    *,
    unpadded: bool = False,
    segments: PackedSegments | None = None,
) -> Problem:
    """Return the problem of a pass.

    Args:
        real: (batch, keys), True for real keys.
        at: the columns of the queries, a slice up to the last key or int64.
        rule: the rule of the model's slopes.
        mask: the rule by which queries see positions.
        skipped: (batch,), real tokens that are neither among the keys nor queries, or None: a
            `WindowCache` evicted them between the sinks and the window.
        unpadded: whether all keys are known to be real. On other devices than the CPU masks are not
            read: the host would have to wait for them. What torch traces has no values to count.
        segments: the packed segments of rows without padding, or None.
    """
    batch, keys = real.shape
    last = isinstance(at, slice)
    shape = batch, rule.heads, at.stop - at.start if last else len(at), keys
    if segments is not None:
        ids = {"segment_ids": segments.keys, "query_segment_ids": segments.queries}
        return Problem.checked(shape, mask, None, None, None, **ids)
    plain = last and not is_tracing()
    plain = plain and (unpadded or (real.is_cpu and has_values(real) and bool(real.all())))
    if plain and skipped is None:
        return Problem(shape, mask)
    if not mask.causal:  # distances between columns; queries see all keys of their segment
        return Problem.checked(shape, mask, real, None, None, like=real)
    counts, seen = None, real.cumsum(dim=1)
    if skipped is not None:
        evicted = skipped.to(real.device)[:, None]
        counts = (seen[:, -1:] + evicted)[:, 0], (seen[:, at] + evicted).clamp(min=1)
        if plain and mask == EVERYTHING:
            return Problem(shape, mask, counts=counts)
    columns = torch.arange(keys, device=real.device)
    first = real.int().argmax(dim=1, keepdim=True)
    positions = columns - first if rule.counts_holes else seen - 1
    if skipped is not None and mask != EVERYTHING:
        positions = positions + torch.where(columns < mask.sink, 0, evicted)
    positions = positions.clamp(min=0)
    padding = None if plain else real
    problem = Problem.checked(shape, mask, padding, positions[:, at], positions, like=positions)
    return problem._replace(counts=counts)


def limits_up_to(last: int, mask: Mask) -> Mask:
    """Return a mask, or one without limits where these hide nothing up to the last position."""
    return mask if mask.interval(last)[0] > mask.sink else EVERYTHING


def ranges_of(problem: Problem) -> list[tuple[slice, Problem]]:
    """Return the ranges of keys to attend to, and the problem of each.

    Sinks are the first tokens of a text. Tokens that have left the window are evicted, and
    distances count the remaining tokens only, so sinks stay directly before the window, as in a
    cache of sinks and window (Xiao et al. 2023, arXiv 2309.17453, 3.2). Distances jump between
    window and sinks by one number for each query; shifted positions of the queries express it.
    """
    mask = problem.mask
    if mask.sink == 0:
        return [(ALL, problem)]
    sink, limits = mask.sink, mask._replace(sink=0)
    batch, _, count, columns = problem.shape
    of_sink = EVERYTHING if mask.causal else mask  # whose window limits the sinks ahead
    like = problem.key_positions if _arrays.is_tensor(problem.key_positions) else None
    queries, keys = problem.positions(like)
    start = mask.interval(queries)[0].clip(min=0)
    nearer = queries - (start - sink).clip(min=0)
    nearer = nearer.int() if like is not None else nearer.astype("int32")
    if problem.plain:
        first, beyond = slice(0, sink), slice(sink, columns)
        to_first = problem.part(slice(0, count), first)
        to_first = to_first._replace(mask=of_sink, query_positions=nearer)
        if int(start[0, 0]) >= sink:
            return [(ALL, problem._replace(mask=limits)), (first, to_first)]
        to_window = problem._replace(mask=limits).part(slice(0, count), beyond)
        return [(beyond, to_window), (first, to_first)]
    real = problem.key_padding_mask
    if real is None:
        real = backend_of(keys).xp.broadcast_to(keys >= 0, (batch, columns))
    else:
        real = backend_of(like).convert(real, "bool")
    of_window, of_sinks = real & (keys >= sink), real & (keys < sink)
    if like is None:
        of_window, of_sinks = of_window.view("uint8"), of_sinks.view("uint8")
    return [
        (ALL, problem._replace(mask=limits, key_padding_mask=of_window)),
        (
            ALL,
            problem._replace(mask=of_sink, query_positions=nearer, key_padding_mask=of_sinks),
        ),
    ]
