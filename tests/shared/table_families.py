"""The families of the table of patches, with small random models of two layers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers

from model_oracle import Layout, attention_layers
from remote_models.baichuan import small_baichuan
from remote_models.jina_bert import small_jina_bert
from remote_models.mosaic_bert import small_mosaic_bert
from small_models import make_model, make_relative, toy_family, toy_model

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
PIX2STRUCT = replace(T5, inputs=("query", "key", "value"), output="output")


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
    "pop2piano": Family(lambda: make_relative("Pop2Piano"), T5, "both"),
    "pix2struct": Family(lambda: make_relative("Pix2Struct"), PIX2STRUCT, "both"),
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


def drop_weights(model: Any, layout: Layout, share: float) -> None:
    """Let attention layers drop this share of their weights in training."""
    for _, holder in attention_layers(model, layout):
        layer = holder.get_submodule(layout.inputs[0].rpartition(".")[0])
        for name in ("attn_dropout_p", "p_dropout", "attention_dropout", "dropout", "probability"):
            value = getattr(layer, name, None)
            if isinstance(value, torch.nn.Dropout):
                value.p = share
            elif isinstance(value, int | float):
                setattr(layer, name, share)


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
