"""Models whose attention is computed anew: in float64, densely, by the formulas of the papers.

An oracle is a copy of a model without a patch. Its embeddings, projections and feed-forward parts
are computed by the model's own code. The input of an attention layer's output projection is
replaced by attention over the results of its query, key and value projections. So an oracle needs
the names of these projections, but nothing of a family's forward, its masks and its caches.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers.models.t5.modeling_t5 import T5Attention

import ntk_alibi as na

Values = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Layout:
    """Where a family's attention layers have their projections, and what their scores are.

    Args:
        inputs: the projections that queries, keys and values come from, by their paths in the
            smallest module that holds all projections of a layer.
        heads: makes queries, keys and values (batch, heads, tokens, channels) of the number of
            heads and of what the projections return.
        output: the projection that takes the heads' results.
        columns: distances count columns, padding included, rather than real tokens.
        both_sides: tokens see those behind them. Stacks called "encoder" do so in any case.
        divided: the model's own bias is divided with the scores.
        buckets: the model learns a number for each bucket of distances, so many up to a greatest
            one: "config" has them, or here they are.
        scale: what products are multiplied by; the default is one by the root of the channels.
    """

    inputs: tuple[str, ...]
    heads: Callable[..., Any]
    output: str
    columns: bool = False
    both_sides: bool = False
    divided: bool = False
    buckets: Any = None
    scale: float | None = None


@dataclass(frozen=True)
class Meaning:
    """What the arguments of a patch mean.

    Args:
        slopes: makes slopes (heads,) or (heads, queries) of plain ones and of counts (queries,).
        compress: returns distances for distances and counts (queries, 1).
        bias: makes values (heads, queries, keys) of distances, in the place of the model's bias.
        whole: counts are of the row's tokens, not of the tokens up to each query.
        layers: the layers with these slopes, distances or values; the others are stock.
        limits: `window`, `sink` and `causal_block`.
        log_n: a training length, strengths, and whether the bias grows with the scores.
    """

    slopes: Values | None = None
    compress: Values | None = None
    bias: Callable[[np.ndarray], np.ndarray] | None = None
    whole: bool = False
    layers: Collection[int] | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    log_n: tuple[int, Any, bool] | None = None


def attention_layers(model: Any, layout: Layout) -> list[tuple[str, Any]]:
    """Return the modules that hold all projections of an attention layer, with their paths."""
    paths = {path for path, _ in model.named_modules()}
    return [
        (path, module)
        for path, module in model.named_modules()
        if all(f"{path}.{part}" in paths for part in (*layout.inputs, layout.output))
    ]


class Oracle:
    """A copy of a model that attends by a meaning.

    Attributes:
        model: the copy.
        dropout: the share of weights that are dropped, drawn from torch's generator.
        masks: padding by stack, "encoder" and "decoder"; to be set before the model runs.
        weights: of each layer that ran, with its path.
    """

    def __init__(self, model: Any, layout: Layout, meaning: Meaning) -> None:
        self.model = copy.deepcopy(model).double()
        self.layout, self.meaning, self.dropout = layout, meaning, 0.0
        self.masks: dict[str, torch.Tensor] = {}
        self.weights: list[tuple[str, torch.Tensor]] = []
        layers = attention_layers(self.model, layout)
        assert layers, "the model has no attention layer of this layout"
        for number, (path, layer) in enumerate(layers):
            made: dict[str, torch.Tensor] = {}
            for part in layout.inputs:
                layer.get_submodule(part).register_forward_hook(
                    lambda *x, made=made, part=part: made.__setitem__(part, x[-1])
                )
            layer.get_submodule(layout.output).register_forward_pre_hook(
                lambda *x, made=made, number=number, path=path: (
                    self._attend(number, path, [made[part] for part in layout.inputs], x[-1][0]),
                )
            )

    def _attend(self, number: int, path: str, made: list[Any], theirs: torch.Tensor) -> Any:
        cross = "EncDec" in path or "encoder_decoder" in path
        in_encoder = re.search(r"(^|\.)encoder\.", path) is not None
        heads, both_sides = self.model.config.num_attention_heads, self.layout.both_sides
        mask = self.masks["encoder" if cross or in_encoder else "decoder"]
        packed = made[0].ndim == 2  # real tokens only
        if packed:
            made = [_unpacked(x, mask) for x in made]
        query, key, value = self.layout.heads(heads, *made)
        rows, (queries, keys) = len(query), (query.shape[2], key.shape[2])
        key, value = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
        # generate() repeats rows for its beams, and adds tokens.
        mask = mask.repeat_interleave(rows // len(mask), dim=0)
        mask = torch.nn.functional.pad(mask, (0, keys - mask.shape[1]), value=1).bool()
        factors = torch.ones(rows, heads, queries, keys, dtype=query.dtype)
        if self.dropout:
            seed = int(torch.randint(2**63 - 1, (), dtype=torch.int64))
            dropped = na.reference.dropout_factors(tuple(factors.shape), self.dropout, seed)
            factors = torch.from_numpy(dropped)
        scale = query.shape[3] ** -0.5 if self.layout.scale is None else self.layout.scale
        weights = torch.zeros_like(factors)
        for row, kept in enumerate(mask):
            at = kept.nonzero().flatten()
            own = slice(None) if cross else at
            scores = scale * query[row][:, own] @ key[row][:, at].mT
            if not cross:
                bias, times = self._bias(number, path, at, not (both_sides or in_encoder))
                scores = scores * times + bias
            rows_of = torch.arange(queries) if cross else at
            weights[row][:, rows_of[:, None], at] = torch.softmax(scores, dim=-1)
        self.weights.append((path, weights))
        output = ((weights * factors) @ value).transpose(1, 2).flatten(2)
        return (output[mask] if packed else output).view_as(theirs)

    def _bias(self, number: int, path: str, columns: torch.Tensor, causal: bool) -> Any:
        """Return the bias of a row's real tokens, and what scaled scores are multiplied by."""
        layout, meaning, count = self.layout, self.meaning, len(columns)
        at = columns.numpy() if layout.columns else np.arange(count)
        distance = (at[:, None] - at).astype(np.float64)
        if causal and meaning.limits:
            distance = na.reference.streaming_distances(count, **meaning.limits)
        window = meaning.limits.get("window", np.inf)
        seen = (distance >= 0) & (distance < np.inf) if causal else abs(distance) < window
        if causal and not meaning.limits:
            seen = distance >= 0
        distance = np.where(seen, distance, 0)
        counts = np.full(count, count) if meaning.whole else np.arange(1, count + 1)
        applies = meaning.layers is None or number in meaning.layers
        heads = self.model.config.num_attention_heads
        if applies and meaning.bias:
            bias = torch.from_numpy(meaning.bias(distance))
        elif layout.buckets:
            bias = self._learned(path, torch.from_numpy(distance).long(), causal)
        else:
            slopes = na.reference.alibi_slopes(heads)
            length = abs(distance)
            if applies and meaning.slopes:
                slopes = meaning.slopes(slopes, counts)
            if applies and meaning.compress:
                length = meaning.compress(length, counts[:, None])
            bias = torch.from_numpy(-slopes.reshape(heads, -1, 1) * length)
        if layout.divided and not (applies and meaning.bias):
            bias = bias / (self.model.config.hidden_size // heads) ** 0.5
        times = torch.ones(heads, count, 1, dtype=bias.dtype)
        if meaning.log_n:
            length, strength, grows = meaning.log_n
            excess = np.log(seen.sum(axis=1)) / np.log(length) - 1
            more = np.broadcast_to(strength, heads)[:, None, None] * excess[:, None]
            times = torch.from_numpy(np.maximum(1 + more, 1))
            bias = bias * times if grows else bias
        return bias.masked_fill(~torch.from_numpy(seen), -torch.inf), times

    def _learned(self, path: str, distance: torch.Tensor, causal: bool) -> torch.Tensor:
        """Return the learned values of the layer, or of the first layer of its stack."""
        tables = [x for x in self.model.named_modules() if x[0].endswith("attention_bias")]
        stack = path.partition(".")[0] + "."
        own = [table for name, table in tables if name.startswith(path)]
        table = (own or [table for name, table in tables if name.startswith(stack)])[0]
        config, pair = self.model.config, self.layout.buckets
        if pair == "config":
            pair = config.relative_attention_num_buckets, config.relative_attention_max_distance
        buckets = T5Attention._relative_position_bucket(-distance, not causal, *pair)
        return table.weight[buckets].permute(2, 0, 1)


def _unpacked(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    padded = torch.zeros(*mask.shape, tokens.shape[1], dtype=tokens.dtype)
    padded[mask.bool()] = tokens
    return padded
