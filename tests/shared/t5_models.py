"""Small random models of T5's relatives, with tables that matter, and their input."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers

from padded_batches import BATCH, LENGTH, VOCABULARY, batch

#: Float32 sums of a few hundred terms through two layers, at numbers of about 5.
CLOSE = {"atol": 2e-5, "rtol": 0.0}
HEADS, CHANNELS, BUCKETS = 4, 32, 16

#: Right padding of the decoder's rows would cut a text that generate() goes on with.
DECODER_MASK = torch.ones((BATCH, 23), dtype=torch.long)
DECODER_MASK[1, :4] = 0


def _t5(prefix: str, **config: Any) -> Any:
    sizes = {"vocab_size": VOCABULARY, "d_model": CHANNELS, "d_kv": 16, "d_ff": 32}
    layers = {"num_layers": 2, "num_decoder_layers": 2, "num_heads": HEADS}
    buckets = {"relative_attention_num_buckets": BUCKETS, "relative_attention_max_distance": 24}
    special = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": VOCABULARY + 1}
    made = getattr(transformers, f"{prefix}Config")(
        **{**sizes, **layers, **buckets, **special, **config}
    )
    return getattr(transformers, f"{prefix}ForConditionalGeneration")(made)


def _switch() -> Any:
    sizes = {"expert_capacity": 1000, "num_experts": 2, "num_sparse_encoder_layers": 1}
    return _t5("SwitchTransformers", num_sparse_decoder_layers=1, router_jitter_noise=0.0, **sizes)


def _mpnet() -> Any:
    """Have more buckets in the table than transformers reads."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 64}
    layers = {"num_hidden_layers": 2, "num_attention_heads": HEADS}
    more = {"relative_attention_num_buckets": 40, "max_position_embeddings": 300}
    return transformers.MPNetForMaskedLM(transformers.MPNetConfig(**sizes, **layers, **more))


def _pix2struct() -> Any:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "d_kv": 16, "d_ff": 32, "num_layers": 2}
    config = transformers.Pix2StructTextConfig(num_heads=HEADS, **sizes)
    config.initializer_range = 0.1  # transformers asks for it, and has none
    return transformers.Pix2StructTextModel(config)


MAKERS = {
    "T5": lambda: _t5("T5"),
    "MPNet": _mpnet,
    "mT5": lambda: _t5("MT5", feed_forward_proj="gated-gelu"),
    "UMT5": lambda: _t5("UMT5"),
    "SwitchTransformers": _switch,
    "Pop2Piano": lambda: _t5("Pop2Piano"),
    "Pix2Struct": _pix2struct,
}

#: The two smallest in the quick tests, the others in the slow ones.
QUICK = ("T5", "MPNet")
relatives = pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MAKERS]
)


def make_relative(name: str) -> Any:
    """Return a model in transformers' eager form, whose tables are as large as its scores."""
    torch.manual_seed(0)
    model = MAKERS[name]()
    for part, parameter in model.named_parameters():
        if "relative_attention_bias" in part:
            torch.nn.init.normal_(parameter, std=2.0)
    if name != "MPNet":
        model.set_attn_implementation("eager")
    return model.eval()


def output(model: Any, mask: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    """Return the numbers of real tokens: an encoder's states, and logits of a decoder."""
    ids = batch()
    own = {"attention_mask": mask, **options}
    kept = torch.ones_like(ids) if mask is None else mask
    name = type(model).__name__
    if name.startswith("MPNet"):
        return model(ids, **own).logits[kept != 0]
    states = torch.randn((BATCH, LENGTH, 64), generator=torch.Generator().manual_seed(2))
    if name.startswith("Pix2Struct"):
        given = {"encoder_hidden_states": states, "encoder_attention_mask": mask, **options}
        logits = model(ids[:, :23], attention_mask=DECODER_MASK, **given).logits
        return logits[DECODER_MASK != 0]
    if name.startswith("Pop2Piano"):  # its forward takes numbers of sounds
        own["inputs_embeds"] = states[..., :CHANNELS]
    else:
        own["input_ids"] = ids
    made = model(**own, decoder_input_ids=ids[:, :23].flip(1), decoder_attention_mask=DECODER_MASK)
    encoded = made.encoder_last_hidden_state[kept != 0]
    return torch.cat([encoded.flatten(), made.logits[DECODER_MASK != 0].flatten()])


def without_grad(model: Any, mask: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    """Return `output` of a pass that autograd does not follow."""
    with torch.no_grad():
        return output(model, mask, **options)


def gradients(model: Any, mask: torch.Tensor | None, *, training: bool = False) -> list[Any]:
    """Return the gradients of all parameters."""
    model.train(training)
    model.zero_grad()
    numbers = output(
        model, mask, **({} if "MPNet" in type(model).__name__ else {"use_cache": False})
    )
    (numbers * torch.linspace(-1, 1, numbers.numel()).view_as(numbers)).sum().backward()
    return [copy.deepcopy(x.grad) for x in model.parameters()]
