"""The families of the table of patches: small random models, and an oracle that computes them.

An oracle is a copy of a model without a patch, whose attention is computed anew: in float64,
densely, by the formulas of the papers. Its embeddings, projections and feed-forward parts are
computed by the model's own code. The input of an attention layer's output projection is replaced by
attention over the results of its query, key and value projections. So an oracle needs the names of
these projections, but nothing of a family's forward, its masks and its caches.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.t5.modeling_t5 import T5Attention

import ntk_alibi as na
from remote_models.baichuan import small_baichuan
from remote_models.jina_bert import small_jina_bert
from remote_models.mosaic_bert import small_mosaic_bert
from small_models import make_model, make_relative, toy_family, toy_model

Values = Callable[[np.ndarray, np.ndarray], np.ndarray]

#: What tests need of transformers, and why: of static caches of a BLOOM without padding, and of the
#: stock UMT5's decoder.
STATIC_NEEDS = (
    "transformers != 5.20.*",
    "BLOOM fails on masks of four dimensions, which generate() makes for static caches",
)
UMT5_NEEDS = (
    "transformers >= 5.18",
    "from 5.15 on UMT5's decoder sees the keys ahead by sdpa where no token is padding",
)


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
        bias: makes values (heads, queries, keys) of distances, in the place of the model's bias.
        whole: counts are of the row's tokens, not of the tokens up to each query.
        layers: the layers with these slopes, distances or values; the others are stock.
        limits: `window`, `sink` and `causal_block`.
        log_n: a training length and strengths.
    """

    slopes: Values | None = None
    bias: Callable[[np.ndarray], np.ndarray] | None = None
    whole: bool = False
    layers: Collection[int] | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    log_n: tuple[int, Any] | None = None


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
            if applies and meaning.slopes:
                slopes = meaning.slopes(slopes, counts)
            bias = torch.from_numpy(-slopes.reshape(heads, -1, 1) * abs(distance))
        if layout.divided and not (applies and meaning.bias):
            bias = bias / (self.model.config.hidden_size // heads) ** 0.5
        times = torch.ones(heads, count, 1, dtype=bias.dtype)
        if meaning.log_n:
            length, strength = meaning.log_n
            excess = np.log(seen.sum(axis=1)) / np.log(length) - 1
            more = np.broadcast_to(strength, heads)[:, None, None] * excess[:, None]
            times = torch.from_numpy(np.maximum(1 + more, 1))
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


# ---- families --------------------------------------------------------------------------------

HEADS = 4


def fused(heads: int, made: torch.Tensor) -> torch.Tensor:
    """Split channels that are (heads, 3, channels), as BLOOM has them."""
    return made.unflatten(-1, (heads, 3, -1)).permute(3, 0, 2, 1, 4)


def packed(heads: int, made: torch.Tensor) -> torch.Tensor:
    """Split channels that are (3, heads, channels)."""
    return made.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)


def grouped(groups: int, heads: int, made: torch.Tensor) -> list[torch.Tensor]:
    """Split channels that are groups of queries, a key and a value."""
    parts = made.unflatten(-1, (groups, heads // groups + 2, -1)).permute(0, 2, 3, 1, 4)
    return [parts[:, :, :-2].flatten(1, 2), parts[:, :, -2], parts[:, :, -1]]


def separate(heads: int, *made: torch.Tensor) -> list[torch.Tensor]:
    return [x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in made]


BLOOM = Layout(("query_key_value",), fused, "dense")
MPT = Layout(("Wqkv",), packed, "out_proj", columns=True)
FALCON = Layout(("query_key_value",), functools.partial(grouped, 1), "dense", divided=True)
BAICHUAN = Layout(("W_pack",), packed, "o_proj", columns=True)
JINA = Layout(
    ("self.query", "self.key", "self.value"),
    separate,
    "output.dense",
    columns=True,
    both_sides=True,
)
NORMED = replace(JINA, inputs=("self.layer_norm_q", "self.layer_norm_k", "self.value"))
TOY = Layout(("project",), packed, "output", columns=True)
MOSAIC = Layout(("self.Wqkv",), packed, "output.dense", columns=True, both_sides=True)
T5 = Layout(("q", "k", "v"), separate, "o", columns=True, buckets="config", scale=1.0)
MPNET = replace(T5, buckets=(32, 128), scale=None, both_sides=True)


@dataclass(frozen=True)
class Family:
    """A family: how to make a small model, its projections, its kind, and a head for tokens.

    Args:
        make: makes a random model of two layers.
        layout: its projections.
        kind: "decoder" of transformers, "remote decoder", "encoder" with slopes, "buckets" of an
            encoder, or of "both" stacks.
        head: the class of transformers with a head that labels tokens.
        patch: what a patch needs beside.
    """

    make: Callable[[], Any]
    layout: Layout
    kind: str
    head: str | None = None
    patch: Mapping[str, Any] = field(default_factory=dict)


def of_decoder(name: str) -> Callable[[], Any]:
    return lambda: make_model(name, HEADS, 2)


def t5_encoder() -> Any:
    whole = make_relative("T5")
    return transformers.T5EncoderModel(whole.config).eval()


FAMILIES = {
    "bloom": Family(of_decoder("bloom"), BLOOM, "decoder", "BloomForTokenClassification"),
    "mpt": Family(of_decoder("mpt"), MPT, "decoder", "MptForTokenClassification"),
    "falcon": Family(of_decoder("falcon"), FALCON, "decoder", "FalconForTokenClassification"),
    "falcon, heads of keys": Family(
        of_decoder("falcon, heads of keys"), replace(BLOOM, divided=True), "decoder"
    ),
    "falcon, new decoder": Family(
        of_decoder("falcon, new decoder"), replace(FALCON, heads=functools.partial(grouped, 2)),
        "decoder",
    ),
    "baichuan": Family(lambda: small_baichuan(num_hidden_layers=2), BAICHUAN, "remote decoder"),
    "jina": Family(lambda: small_jina_bert(num_hidden_layers=2), JINA, "encoder"),
    "jina, buffer": Family(
        lambda: small_jina_bert(num_hidden_layers=2, alibi_buffer=True), JINA, "encoder"
    ),
    "jina, norms": Family(
        lambda: small_jina_bert(num_hidden_layers=2, qk_norm=True), NORMED, "encoder"
    ),
    "toy": Family(
        toy_model, replace(TOY, both_sides=True), "encoder", patch={"family": toy_family()}
    ),
    "toy, causal": Family(
        lambda: toy_model(True), TOY, "remote decoder", patch={"family": toy_family(True)}
    ),
    "mosaic": Family(lambda: small_mosaic_bert(num_hidden_layers=2), MOSAIC, "encoder"),
    "t5": Family(lambda: make_relative("T5"), T5, "both"),
    "t5, encoder": Family(t5_encoder, T5, "buckets", "T5ForTokenClassification"),
    "mt5": Family(lambda: make_relative("mT5"), T5, "both"),
    "umt5": Family(lambda: make_relative("UMT5"), T5, "both"),
    "switch": Family(lambda: make_relative("SwitchTransformers"), T5, "both"),
    "mpnet": Family(
        lambda: make_relative("MPNet"), MPNET, "buckets", "MPNetForTokenClassification"
    ),
}  # fmt: skip


def of_kind(*kinds: str) -> list[str]:
    return [name for name, family in FAMILIES.items() if family.kind in kinds]


def model_of(family: str) -> Any:
    """Return a new random model in eval mode, without any dropout."""
    torch.manual_seed(0)
    return drop_nothing(FAMILIES[family].make().eval())


def drop_nothing(model: Any) -> Any:
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        for name in ("dropout", "probability"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return model


def dropping_layers(model: Any, layout: Layout) -> list[Any]:
    """Return the modules of attention layers that drop weights."""
    within = layout.inputs[0].rpartition(".")[0]
    return [holder.get_submodule(within) for _, holder in attention_layers(model, layout)]


shared_model = functools.cache(model_of)


@functools.cache
def head_of(family: str) -> Any:
    """Return a model of the family that labels tokens."""
    torch.manual_seed(1)
    head = getattr(transformers, FAMILIES[family].head or "")(shared_model(family).config)
    head.load_state_dict(shared_model(family).state_dict(), strict=False)
    return drop_nothing(head.eval())


def heads_of(model: Any) -> int:
    heads: int = model.config.num_attention_heads
    return heads
