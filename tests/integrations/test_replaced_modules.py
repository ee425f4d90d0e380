"""Patched models whose modules are replaced: quantised layers, fewer heads, other tables."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import ntk_alibi as na
from table_families import FAMILIES, model_of

QUICK = ("bloom", "mpt", "falcon", "t5", "mpnet", "jina")
DECODERS = ("bloom", "mpt", "falcon")
IDS = torch.randint(3, 60, (2, 11), generator=torch.Generator().manual_seed(2))
MASK = torch.arange(11) < torch.tensor([[11], [7]])


class Quantised(nn.Module):
    """A layer without `weight` and parameters, as of GPTQ, AWQ and HQQ: integers and scales."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scales = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("qweight", (linear.weight.detach() / scales).round().to(torch.int8))
        self.register_buffer("scales", scales)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.qweight.to(x.dtype) * self.scales.to(x.dtype)
        return nn.functional.linear(x, weight, self.bias)


def quantise(model: nn.Module) -> None:
    """Replace all linear layers but those whose `weight` transformers reads."""
    for module in list(model.modules()):
        for child, linear in list(module.named_children()):
            if isinstance(linear, nn.Linear) and child not in ("lm_head", "wo"):
                setattr(module, child, Quantised(linear))


def output(model: Any) -> torch.Tensor:
    given: dict[str, Any] = {"input_ids": IDS, "attention_mask": MASK.long()}
    if getattr(model.config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = IDS.flip(-1)
    with torch.no_grad():
        result = model(**given)
    hidden: torch.Tensor = result if isinstance(result, torch.Tensor) else result[0]
    return hidden if "decoder_input_ids" in given else hidden[MASK]


def forms() -> list[Any]:
    rows = [(family, form) for family in FAMILIES for form in ("fused", "eager")]
    rows += [(family, "traceable") for family in DECODERS]
    slow = pytest.mark.slow
    return [pytest.param(*row, marks=() if row[0] in QUICK else slow) for row in rows]


@pytest.mark.parametrize("before", [True, False], ids=["before the patch", "after the patch"])
@pytest.mark.parametrize(("family", "form"), forms())
def test_layers_without_weight_run(family: str, form: str, before: bool) -> None:
    model = model_of(family)
    stock = copy.deepcopy(model)
    quantise(stock)
    if before:
        quantise(model)
    with na.patch(model, attention=form, **FAMILIES[family].patch):
        if not before:
            quantise(model)
        found = output(model)
    torch.testing.assert_close(found, output(stock), atol=1e-5, rtol=1e-4)


def halved(heads: nn.Embedding) -> nn.Embedding:
    made = nn.Embedding(heads.num_embeddings, heads.embedding_dim // 2)
    made.weight.data = heads.weight.data[:, : heads.embedding_dim // 2].clone()
    return made


def test_fewer_heads_after_a_patch_ask_for_another() -> None:
    model = model_of("t5, encoder")
    na.patch(model)
    layer = model.encoder.block[0].layer[0].SelfAttention
    keep = layer.n_heads // 2 * layer.key_value_proj_dim
    for name in "qkv":
        getattr(layer, name).weight.data = getattr(layer, name).weight.data[:keep].clone()
    layer.o.weight.data = layer.o.weight.data[:, :keep].clone()
    layer.n_heads, layer.inner_dim = layer.n_heads // 2, keep
    layer.relative_attention_bias = halved(layer.relative_attention_bias)
    with pytest.raises(
        ValueError, match=r"^query must have the \d heads .* patch again after"
    ) as e:
        output(model)
    assert len(str(e.value)) < 120


@pytest.mark.parametrize("family", ["t5, encoder", "mpnet"])
def test_a_table_of_fewer_heads_is_refused_in_a_line(family: str) -> None:
    model = model_of(family)
    na.patch(model)
    owner: Any = next(x for x in model.modules() if hasattr(x, "relative_attention_bias"))
    owner.relative_attention_bias = halved(owner.relative_attention_bias)
    with pytest.raises(ValueError, match=r"^bias must have query's \d heads, got T5 with \d$"):
        output(model)


@pytest.mark.parametrize("family", ["t5, encoder", "mpnet"])
def test_a_replaced_table_is_read(family: str) -> None:
    model = model_of(family)
    stock = copy.deepcopy(model)
    na.patch(model)
    for x in (*model.modules(), *stock.modules()):
        if isinstance(getattr(x, "relative_attention_bias", None), nn.Embedding):
            made = nn.Embedding(*x.relative_attention_bias.weight.shape)
            torch.manual_seed(4)
            nn.init.normal_(made.weight)
            x.relative_attention_bias = made
    torch.testing.assert_close(output(model), output(stock), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "family",
    [
        *QUICK[:4],
        pytest.param(
            "mpnet", marks=pytest.mark.needs("transformers >= 5.12", "MPNet makes its mask itself")
        ),
    ],
)
def test_an_attention_that_replaces_a_patched_one_is_refused(family: str) -> None:
    model = model_of(family)
    stock = copy.deepcopy(model)
    na.patch(model)
    name = next(n for n, x in model.named_modules() if type(x).__name__.endswith("Attention"))
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, stock.get_submodule(name))
    with pytest.raises(RuntimeError, match="patch again after replacing layers"):
        output(model)
