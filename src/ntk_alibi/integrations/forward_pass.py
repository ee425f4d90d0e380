"""One forward pass of a patched model: a `Problem`, made once, and the bias of each layer.

The problem holds which tokens are real, their positions, and which keys each query sees. All biases
are asked for this whole problem; their kernel forms are shared by the layers that have the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import torch
from torch.nn import functional as F

from ntk_alibi import _arrays, _checks
from ntk_alibi._backends import backend_of
from ntk_alibi._torch_state import is_recorded, is_tracing
from ntk_alibi.biases.alibi import ModelALiBi, ModelSides
from ntk_alibi.biases.base import BiasObject, to_kernel_bias
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.integrations.biases import NoBias, returned
from ntk_alibi.masks import ALL, EVERYTHING, Cut, Problem

#: The batch, the number of new tokens, and the number of keys besides a cache's.
Sizes: TypeAlias = tuple[int, int, int]

Made = TypeVar("Made")


class LayerCall(NamedTuple):
    """The tensors and options of a call of `Attend`, in all forms of attention.

    Attributes:
        query: (batch, heads, queries, head_dim), the last query at the last key.
        key: the new keys, (batch, heads or a divisor of them, keys, head_dim).
        value: as key.
        mask: `Tokens`, a mask, or None.
        cache: the cache that holds the keys before these, or None.
        scale: the factor of the products.
        dropout: the probability of dropping a weight.
        weights: whether the caller wants the weights.
        seed: the seed of dropout in a graph, or None to draw one.
        rows: the rows of the layer's table in a graph, or None to read them.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: Any
    cache: Any
    scale: float
    dropout: float = 0.0
    weights: bool = False
    seed: int | None = None
    rows: torch.Tensor | None = None

    @property
    def sizes(self) -> Sizes:
        """The sizes of the call."""
        return self.query.shape[0], self.query.shape[2], self.key.shape[2]


class KeyRange(NamedTuple):
    """Some columns of the keys, with the problem and the bias of all queries with them.

    Attributes:
        keys: the columns.
        problem: the problem.
        bias: the bias.
        core: what `core_problems` makes of them, which layers may share, or None.
    """

    keys: slice
    problem: Problem
    bias: KernelBias
    core: Any = None

    @property
    def keeps_norms(self) -> bool:
        """Whether norms of a cache are of use: for all keys, real and at their columns."""
        problem, bias = self.problem, self.bias
        columns = self.keys == ALL and problem.key_padding_mask is problem.key_positions is None
        return columns and not bias.exempt and bias.dense is None


class Pass:
    """The problem of one forward pass, which all layers share.

    Attributes:
        real: (batch, keys), True for real keys; of a static cache with all its places.
        problem: the tokens of the pass. Sinks of its mask are StreamingLLM's: evicted positions
            between them and the window do not count.
        settings: the choices of the patch.
        rule: the rule of the model's slopes.
        biases_shared: whether all layers whose tables are the same have the same bias.
        prepared: what layers with the same table attend with in the core, where torch records
            nothing.
    """

    def __init__(
        self, inputs: Any, real: torch.Tensor, problem: Problem, ahead: ModelSides = "symmetric"
    ) -> None:
        """Begin a pass.

        Args:
            inputs: the `PassInputs`.
            real: the attribute.
            problem: the attribute.
            ahead: the sides of slopes where a query may see keys ahead of it.
        """
        self.real, self.problem = real, problem
        self.settings, self.rule = inputs.settings, inputs.rule
        self._own, self._crosses, self._ahead = inputs.own, inputs.attend.crosses, ahead
        self.biases_shared: bool = not self._own or None in self._own
        self.prepared: dict[Any, list[KeyRange]] = {}
        self._kept: dict[Any, Any] = {}

    def bias_of(self, attend: Any, rows: torch.Tensor | None = None) -> BiasObject:
        """Return the bias of a layer: the same object for equal biases.

        Args:
            attend: the `Attend` of the layer.
            rows: the rows of its table, or None to read them.
        """
        own = self._own.get(None, self._own.get(attend.number)) if self._own else None
        if own is not None:
            if not hasattr(own, "kernel_bias"):
                own = self.memo(own, None, returned, own)
            return cast(BiasObject, own)
        if attend.table is not None:
            return self._of_table(attend, rows)
        if None not in self._kept:
            if self._crosses:
                self._kept[None] = NoBias(self.problem.shape[1])
            else:
                sides = "causal" if self.problem.mask.causal else self._ahead
                self._kept[None] = ModelALiBi.of_model(self.rule, self.settings.scaling, sides)
        return cast(BiasObject, self._kept[None])

    def _of_table(self, attend: Any, rows: torch.Tensor | None) -> BiasObject:
        """Return the bias of a layer's table, which the first layer with the table makes.

        The others take that, since FSDP may have freed the table meanwhile. Where the first layer
        ran without gradients and this one runs again with them, in the backward pass of reentrant
        checkpointing, it makes a bias of its own.
        """
        recorded = torch.is_grad_enabled()
        of_first = self._kept.get(attend.table)
        if not attend.reads and of_first is not None and (of_first[1] or not recorded):
            return cast(BiasObject, of_first[0])
        bias: BiasObject = attend.table.bias_now(self.real.device, rows)
        if attend.reads or of_first is None:
            self._kept[attend.table] = bias, recorded
        return bias

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
        listed = isinstance(parameters, tuple)  # a module's parameters are a method
        if is_recorded(*parameters) if listed else torch.is_grad_enabled():
            return make(*arguments)
        place = make, id(bias), key
        if place not in self._kept:
            self._kept[place] = make(*arguments), bias  # which keeps its id
        return cast(Made, self._kept[place][0])

    def factors(self, like: Any) -> Any:
        """Return factors of the scores as `LogN.factors` does, or None."""
        log_n = self.settings.log_n
        if log_n is None:
            return None
        return self.memo(None, _kind(like), log_n.factors, self.problem, like)

    def ranges(self, bias: BiasObject, like: Any) -> list[KeyRange]:
        """Return the problem with a bias, in two ranges if sinks are closer than their columns.

        Args:
            bias: a bias.
            like: None for NumPy arrays, or a tensor of the call, as for `kernel_bias`.
        """
        if like is not None:
            return self.memo(bias, _kind(like), Pass._ranges, self, bias, like)
        place = "in core", id(bias)  # where torch records nothing of it
        if place not in self._kept:
            self._kept[place] = self._ranges(bias, None), bias  # which keeps its id
        return cast("list[KeyRange]", self._kept[place][0])

    def _ranges(self, bias: BiasObject, like: Any) -> list[KeyRange]:
        problem = self.problem
        kernel = (_on_device if like is not None else to_kernel_bias)(bias, problem, like)
        if kernel.exempt > problem.mask.sink > 0:
            raise ValueError(
                f"sink must be 0 or at least {kernel.exempt} with a bias whose first tokens have "
                f"no slope, got {problem.mask.sink} with {_checks.briefly(bias)}"
            )
        if like is None and kernel.kept is None:
            kernel = kernel.with_core()
        return [
            KeyRange(
                keys, part, kernel if keys == ALL else kernel.cut(Cut(keys=keys), problem.shape)
            )
            for keys, part in ranges_of(problem)
        ]

    def pairs(self, bias: BiasObject, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the bias of all pairs, float32, and a mask of the keys that queries see.

        Both broadcast to (batch, heads, queries, keys); the bias of other keys is 0.
        """
        values, seen = [], []
        queries, columns = self.problem.shape[2:]
        for part in self.ranges(bias, like):
            own, shown = part.bias.pairs(part.problem, like)
            begin = part.keys.start or 0
            around = begin, columns - begin - part.problem.shape[3]
            own = torch.where(shown, own.float(), 0.0)
            values.append(own if around == (0, 0) else F.pad(own, around))
            seen.append(shown if around == (0, 0) else F.pad(shown, around))
        if len(seen) == 2:  # no key is in both ranges
            values, seen = [values[0] + values[1]], [seen[0] | seen[1]]
        problem = self.problem
        if problem.visible is not None or not problem.mask.causal:
            return values[0], seen[0]
        at = torch.arange(columns, device=like.device)  # padded queries see nothing ahead, too
        return values[0], seen[0] & EVERYTHING.visible(at[columns - queries :], at)


def _kind(like: Any) -> Any:
    return None if like is None else (like.dtype is torch.float64, like.device)


def _on_device(bias: BiasObject, problem: Problem, like: Any) -> KernelBias:
    """Return a bias in kernel form; one that depends on no text is copied to a device once."""
    if not like.is_cpu and not is_tracing() and getattr(bias, "fixed", False):
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
    batch, _, _, columns = problem.shape
    of_sink = EVERYTHING if mask.causal else mask  # whose window limits the sinks ahead
    like = problem.key_positions if _arrays.is_tensor(problem.key_positions) else None
    queries, keys = problem.positions(like)
    start = mask.interval(queries)[0].clip(min=0)
    nearer = queries - (start - sink).clip(min=0)
    nearer = nearer.int() if like is not None else nearer.astype("int32")
    if problem.plain:
        first, beyond = slice(0, sink), slice(sink, columns)
        to_first = problem.cut(Cut(keys=first))
        to_first = to_first._replace(mask=of_sink, query_positions=nearer)
        if int(start[0, 0]) >= sink:
            return [(ALL, problem._replace(mask=limits)), (first, to_first)]
        to_window = problem._replace(mask=limits).cut(Cut(keys=beyond))
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
