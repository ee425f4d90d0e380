"""One forward pass of a patched model: a `Problem`, made once, and the bias of each layer.

The problem holds which tokens are real, their positions, and which keys each query sees. All biases
are asked for this whole problem; their kernel forms are shared by the layers that have the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch.nn import functional as F

from ntk_alibi import _checks
from ntk_alibi._torch_state import is_recorded, is_tracing
from ntk_alibi.biases.alibi import ModelALiBi, ModelSides
from ntk_alibi.biases.base import BiasObject, to_kernel_bias
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.integrations import own_bias
from ntk_alibi.integrations.passes.inputs import PassInputs
from ntk_alibi.integrations.passes.sinks import ranges_of
from ntk_alibi.masks import ALL, EVERYTHING, Cut, Problem

Made = TypeVar("Made")


class Part(NamedTuple):
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
        biases_shared: whether all layers whose tables are the same have the same bias.
        ahead: the sides of slopes where a query may see keys ahead of it.
    """

    ahead: ModelSides = "symmetric"

    def __init__(self, inputs: PassInputs, real: torch.Tensor, problem: Problem) -> None:
        self.real, self.problem = real, problem
        self.settings = inputs.settings
        self.rule, self._own = inputs.attend.patch.rule, inputs.own
        self.biases_shared: bool = not self._own or None in self._own
        #: What layers with the same table attend with in the core, where torch records nothing.
        self.prepared: dict[Any, Any] = {}
        self._kept: dict[Any, Any] = {}

    def bias_of(
        self, layer: int, table: Any = None, rows: torch.Tensor | None = None
    ) -> BiasObject:
        """Return the bias of a layer: the same object for equal biases.

        Args:
            layer: the number of the layer.
            table: a `LayerTable` of the model's own bias, or None for slopes.
            rows: the rows of the table, or None to read them.
        """
        own = self._own.get(None, self._own.get(layer)) if self._own else None
        if own is not None:
            if not hasattr(own, "kernel_bias"):
                own = self.memo(own, None, own_bias.returned, own)
            return cast(BiasObject, own)
        if table is not None:
            return cast(BiasObject, table.bias(self._kept, self.real.device, rows))
        if None not in self._kept:
            sides = "causal" if self.problem.mask.causal else self.ahead
            self._kept[None] = ModelALiBi.of_model(self.rule, self.settings.scaling, sides)
        return cast(BiasObject, self._kept[None])

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

    def parts(self, bias: BiasObject, like: Any) -> list[Part]:
        """Return the problem with a bias, in two parts if sinks are closer than their columns.

        Args:
            bias: a bias.
            like: None for NumPy arrays, or a tensor of the call, as for `kernel_bias`.
        """
        if like is not None:
            return self.memo(bias, _kind(like), Pass._parts, self, bias, like)
        place = "in core", id(bias)  # where torch records nothing of it
        if place not in self._kept:
            self._kept[place] = self._parts(bias, None), bias  # which keeps its id
        return cast("list[Part]", self._kept[place][0])

    def _parts(self, bias: BiasObject, like: Any) -> list[Part]:
        problem = self.problem
        kernel = (_on_device if like is not None else to_kernel_bias)(bias, problem, like)
        if kernel.exempt > problem.mask.sink > 0:
            raise ValueError(
                f"sink must be 0 or at least {kernel.exempt} with a bias whose first tokens have "
                f"no slope, got {problem.mask.sink} with {_checks.briefly(bias)}"
            )
        if like is None and kernel.kept is None:
            kernel = kernel.with_core()
        parts = []
        for keys, part in ranges_of(problem):
            of_part = kernel if keys == ALL else kernel.cut(Cut(keys=keys), problem.shape)
            parts.append(Part(keys, part, of_part))
        return parts

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
