"""The graph of a patched model for other runtimes: tokens and a cache in, logits and a cache out.

Inputs and outputs have the names and the order of optimum and onnxruntime-genai. Keys and values
are (batch, heads, tokens, head_dim) in all families, as in optimum for BLOOM since transformers
4.44, and there is no input position_ids. One graph serves the prompt, with an empty cache,
and all later steps.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from ntk_alibi.engines.export import Format, Request, Written
from ntk_alibi.integrations import patch
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.integrations.overriding import in_evaluation

#: Axes of any length, by optimum's names.
BATCH, NEW, PAST = "batch_size", "sequence_length", "past_sequence_length"
ALL = f"{PAST} + {NEW}"

#: The axes of a tensor: each a length, or the name of an axis of any length.
Axes = tuple[int | str, ...]

#: The inputs with which a written graph is checked: two rows, one with padding on the left. The
#: first call gets 12 tokens, the second 3.
TOKENS = (7 * torch.arange(30) % 23).reshape(2, 15)
MASK = (torch.arange(15) >= torch.tensor([[5], [0]])).long()
FIRST = 12

#: A function that runs a written graph on new tokens, the mask of all tokens, and earlier keys and
#: values; it returns logits, and all keys and values.
Call = Callable[
    [torch.Tensor, torch.Tensor, list[torch.Tensor]], tuple[torch.Tensor, list[torch.Tensor]]
]


@dataclass(frozen=True)
class Graph:
    """An exported program, with its inputs and outputs in order.

    Attributes:
        program: takes input_ids, attention_mask and a list of pairs of keys and values; returns
            logits and such a list. Without a cache there are no lists.
        inputs: the axes of each input, by name.
        outputs: the axes of each output, by name.
        dtype: the dtype of logits, keys and values.
        expected: the patched model's logits for `TOKENS` and `MASK`, in the model's dtype.
    """

    program: torch.export.ExportedProgram
    inputs: dict[str, Axes]
    outputs: dict[str, Axes]
    dtype: torch.dtype
    expected: torch.Tensor

    @property
    def cache(self) -> dict[str, str]:
        """The inputs for keys and values, each with the output that continues it."""
        return dict(zip(list(self.inputs)[2:], list(self.outputs)[1:], strict=True))

    def compare(self, engine: str, call: Call, dtype: str) -> str:
        """Compare a written graph with the patched model, and describe the result in a sentence.

        Args:
            engine: the name and version of the runtime.
            call: a function that runs the written graph.
            dtype: the dtype of its parameters.

        Raises:
            RuntimeError: more than half of the digits of the logits differ.
        """
        sizes: dict[int | str, Any] = {BATCH: 2, PAST: 0}
        shapes = [[sizes.get(axis, axis) for axis in self.inputs[name]] for name in self.cache]
        empty = [torch.zeros(shape, dtype=self.dtype) for shape in shapes]
        if self.cache:
            first, present = call(TOKENS[:, :FIRST].contiguous(), MASK[:, :FIRST], empty)
            then, _ = call(TOKENS[:, FIRST:].contiguous(), MASK, present)
            logits = torch.cat([first, then], dim=1)
            tokens = f"{FIRST} + {TOKENS.shape[1] - FIRST} tokens"
        else:
            logits, _ = call(TOKENS, MASK, empty)
            tokens = f"{TOKENS.shape[1]} tokens"
        real = MASK.bool()
        difference = (logits.float() - self.expected.float())[real].abs().max().item()
        rounding = (torch.finfo(x).eps for x in (getattr(torch, dtype), self.expected.dtype))
        limit = max(rounding) ** 0.5 * self.expected[real].abs().max().item()
        if not difference <= limit:  # NaN, too
            raise RuntimeError(
                f"{engine} computes the exported graph otherwise than torch: logits of {tokens} "
                f"differ by {difference:.1e}, more than {limit:.1e}"
            )
        return f"logits of {tokens} within {difference:.1e} of the patched model's, by {engine}"


def graph_format(
    file: str,
    dtypes: tuple[str, ...],
    write: Callable[[Graph, Path], tuple[str, Call]],
    packages: tuple[str, ...] = (),
) -> Format:
    """Return the format of a folder with a graph, configuration and tokenizer.

    Args:
        file: the name of the graph's file.
        dtypes: as in `Format`.
        write: writes a graph to a path; returns the name and version of its engine, and a function
            that runs there what was written.
        packages: as in `Format`.
    """

    def write_folder(request: Request, folder: Path) -> Written:
        graph = make_graph(request)
        request.report(f"writing {file}")
        write_configuration(request, folder)
        engine, call = write(graph, folder / file)
        return Written(
            lines(graph.inputs, graph.dtype),
            lines(graph.outputs, graph.dtype),
            graph.compare(engine, call, request.dtype),
        )

    return Format(dtypes, True, check, write_folder, packages)


def lines(named: dict[str, Axes], dtype: torch.dtype) -> tuple[str, ...]:
    """Return a line for each input or output; all layers share one."""
    described: dict[str, None] = {}
    for name, axes in named.items():
        shown = re.sub(r"[.]\d+[.](key|value)$", ".N.key, .value", name)
        shown_dtype = torch.int64 if name in ("input_ids", "attention_mask") else dtype
        described[f"{shown} ({', '.join(map(str, axes))}) {str(shown_dtype)[6:]}"] = None
    return tuple(described)


class _PastLayer(DynamicLayer):
    """A layer's earlier keys and values. There may be none, which the graph does not ask."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values = keys, values
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    def get_seq_length(self) -> int:
        """Return the number of tokens before the new ones."""
        assert self.keys is not None
        return self.keys.shape[-2]


class _OnTensors(nn.Module):
    """A model that takes and returns keys and values as tensors, or neither."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        past_key_values: list[tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> Any:
        if past_key_values is None:
            return self.model(input_ids, attention_mask=attention_mask, use_cache=False).logits
        cache = Cache(layers=[_PastLayer(*pair) for pair in past_key_values])
        logits = self.model(
            input_ids, attention_mask=attention_mask, use_cache=True, **{CACHE: cache}
        ).logits
        return logits, layer_pairs(cache)


def layer_pairs(cache: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the keys and values of each layer."""
    return [(layer.keys, layer.values) for layer in cache.layers]


def check(request: Request) -> None:
    """Refuse a model without a head, or settings that `na.patch` refuses for graphs."""
    model: Any = request.model
    if getattr(model, "get_output_embeddings", lambda: None)() is None:
        raise ValueError(
            "model must have a language model head to be exported as a graph, got "
            f"{type(model).__name__}"
        )
    with _traceable(request, model):
        pass


def make_graph(request: Request) -> Graph:
    """Return the graph of a model with weights of the request's dtype; the model stays as it is.

    Raises:
        ValueError: the model has no finite logits.
    """
    model: Any = request.model
    with torch.no_grad(), in_evaluation(model), _traceable(request, model):
        expected = model(TOKENS, attention_mask=MASK, use_cache=False).logits
    if not expected[MASK.bool()].isfinite().all():
        raise ValueError("model must compute finite logits, got others: see its weights")
    if next(model.parameters()).dtype != (dtype := getattr(torch, request.dtype)):
        model = copy.deepcopy(model).to(dtype)
    with torch.no_grad(), in_evaluation(model), _traceable(request, model):
        held = DynamicCache()
        model(TOKENS, use_cache=True, **{CACHE: held})
        past = [tuple(x[..., :5, :].contiguous() for x in pair) for pair in layer_pairs(held)]
        layers, (_, heads, _, head_dim) = len(past), past[0][0].shape
        tokens = BATCH, NEW
        inputs: dict[str, Axes] = {"input_ids": tokens, "attention_mask": tokens}
        outputs: dict[str, Axes] = {"logits": (*tokens, expected.shape[-1])}
        example: tuple[Any, ...] = TOKENS, MASK
        shapes: tuple[Any, ...] = any_length(tokens), any_length(tokens)
        if request.cache:
            inputs["attention_mask"] = BATCH, ALL
            for layer in range(layers):
                for kind in ("key", "value"):
                    inputs[f"past_key_values.{layer}.{kind}"] = BATCH, heads, PAST, head_dim
                    outputs[f"present.{layer}.{kind}"] = BATCH, heads, ALL, head_dim
            example = TOKENS[:, 5:8].contiguous(), MASK[:, :8].contiguous(), past
            of_cache = any_length((BATCH, heads, PAST, head_dim))
            shapes = (*shapes, [(of_cache, of_cache)] * layers)
        request.report(f"tracing {layers} layers")
        program = torch.export.export(_OnTensors(model), example, dynamic_shapes=shapes)
    # From the example, torch derives that axes have 2 entries or more, and texts 4 tokens or more.
    for symbol, limits in program.range_constraints.items():
        program.range_constraints[symbol] = type(limits)(0, limits.upper)
    return Graph(program, inputs, outputs, past[0][0].dtype, expected)


def write_configuration(request: Request, folder: Path) -> None:
    """Write config.json, and generation_config.json and the tokenizer if there are any."""
    model: Any = request.model
    for part in (model.config, getattr(model, "generation_config", None), request.tokenizer):
        if part is not None:
            part.save_pretrained(folder)


def any_length(axes: Axes) -> dict[int, Any]:
    """Return the axes of any length, as torch.export takes them."""
    return {i: torch.export.Dim.DYNAMIC for i, axis in enumerate(axes) if isinstance(axis, str)}


@contextmanager
def _traceable(request: Request, model: nn.Module) -> Iterator[None]:
    """Patch the request's model, or a copy of it, with its settings and attention="traceable"."""
    settings = replace(request.settings, attention="traceable")
    with patch(model, **settings.arguments()):
        yield
