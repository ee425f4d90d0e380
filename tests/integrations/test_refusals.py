"""What patched models refuse: an error in a line, whose first word names what was given.

Each row is wrong in one way. That errors are advice, too, is in test_advice.py.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import ntk_alibi as na
from ntk_alibi.integrations import Family, register
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.torch import learned_bias
from small_models import make_model, toy_family, toy_model
from table_families import model_of

DECODERS = ("bloom", "mpt", "falcon")
ENCODERS = ("jina", "mosaic", "toy")
BUCKETS = ("t5", "mpnet")
ALL = (*DECODERS, *ENCODERS, *BUCKETS)
IDS = torch.arange(24).reshape(2, 12) % 17 + 3
MASK = torch.ones_like(IDS)
BAM = na.BAM(*[np.ones(8)] * 3)

#: Families, arguments of `patch` beside the model, the error and its first word.
PATCHES: list[tuple[tuple[str, ...], dict[str, Any], Any, str]] = [
    (ALL, {"method": 4.0}, TypeError, "method"),
    (ALL, {"method": "nkt:4"}, ValueError, "method"),
    (ALL, {"method": lambda: None}, ValueError, "method"),
    (ALL, {"method": nn.Linear(2, 2)}, ValueError, "method"),
    (ALL, {"method": nn.Identity()}, ValueError, "method"),
    (ALL, {"method": na.ALiBi(3, sides="symmetric")}, ValueError, "method"),
    (ALL, {"method": learned_bias.LearnedALiBi(5)}, ValueError, "method"),
    (ALL, {"method": na.ForgetGates(-np.ones((1, 8, 12)))}, ValueError, "method"),
    (ALL, {"method": learned_bias.LearnedForgetGates(32, 8)}, ValueError, "method"),
    (ALL, {"method": {7: BAM}}, ValueError, "method"),
    (ALL, {"method": {0: "ntk:4"}}, ValueError, "method"),
    (("jina", "t5", "mpnet"), {"method": na.ALiBi(6)}, ValueError, "method"),  # of one side
    (BUCKETS, {"method": "ntk:4"}, ValueError, "method"),
    (BUCKETS, {"method": na.FlatHeads(8.0)}, ValueError, "method"),
    (ALL, {"attention": "flash"}, ValueError, "attention"),
    ((*ENCODERS, *BUCKETS), {"attention": "traceable"}, ValueError, "attention"),
    (DECODERS, {"method": BAM, "attention": "traceable"}, ValueError, "attention"),
    (DECODERS, {"method": na.DynamicNTK(2.0, 16), "attention": "traceable"}, ValueError, "method"),
    (DECODERS, {"window": 8, "attention": "traceable"}, ValueError, "window"),
    (DECODERS, {"causal_block": 8, "attention": "traceable"}, ValueError, "window"),
    (ALL, {"window": 0}, ValueError, "window"),
    (ALL, {"window": 2.5}, TypeError, "window"),
    (ALL, {"window": 4, "sink": -1}, ValueError, "sink"),
    (ALL, {"sink": 4}, ValueError, "sink"),
    (ALL, {"causal_block": 0}, ValueError, "causal_block"),
    (ENCODERS, {"window": 8}, ValueError, "window"),
    (ENCODERS, {"causal_block": 8}, ValueError, "window"),
    (("t5",), {"window": 4, "sink": 2}, ValueError, "sink"),
    (BUCKETS, {"causal_block": 4}, ValueError, "causal_block"),
    (ALL, {"log_n": 8.5}, TypeError, "log_n"),
    (ALL, {"log_n": 1}, ValueError, "log_n"),
    (BUCKETS, {"log_n": 512}, ValueError, "log_n"),
    (DECODERS, {"log_n": na.LogN(8, (1.0, 2.0))}, ValueError, "strength"),
    (DECODERS, {"method": "ntk:4:logn=1", "log_n": 64}, ValueError, "a factor in method"),
    (ENCODERS, {"method": na.DynamicNTK(1.0)}, ValueError, "train_length"),
    (ENCODERS, {"method": "dynamic-ntk:1"}, ValueError, "train_length"),
    (ENCODERS, {"method": "flat:8:logn=0.5"}, ValueError, "logn"),
    (ALL, {"family": {}}, TypeError, "family"),
    (DECODERS, {"family": toy_family()}, ValueError, "model"),
]


def checked(caught: Any, word: str) -> str:
    message = str(caught.value)
    assert re.match(rf"{word}\b", message), message
    assert "got" in message, message
    assert "\n" not in message, message
    return message


@pytest.mark.parametrize(
    ("family", "options", "error", "word"),
    [
        pytest.param(family, *row[1:], id=f"{family}, {row[3]}, {number}")
        for number, row in enumerate(PATCHES)
        for family in row[0]
    ],
)
def test_arguments_of_patch(family: str, options: Any, error: Any, word: str) -> None:
    if family == "toy":
        model, options = toy_model(), {"family": toy_family(), **options}
    else:
        model = model_of(family)
    before = sorted(vars(model)), copy.deepcopy(vars(model.config))
    with pytest.raises(error) as caught:
        na.patch(model, **options)
    checked(caught, word)
    assert na.patched(model) == []
    assert (sorted(vars(model)), vars(model.config)) == before
    assert not any("ntk_alibi" in part for part, _ in model.named_modules())


class FoundryMPT(nn.Module):
    """An MPT of llm-foundry, by what a patch can see of it."""

    config = SimpleNamespace(model_type="mpt", attn_config={"clip_qkv": 6})


def bert(**config: Any) -> nn.Module:
    size = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    made = transformers.BertConfig(**size, num_attention_heads=2, alibi_scaling=None, **config)
    return nn.Sequential(transformers.BertModel(made))


def llama() -> nn.Module:
    size = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    return transformers.LlamaModel(transformers.LlamaConfig(**size, num_attention_heads=2))


#: What is no model that can be patched, and what the error advises.
MODELS: list[tuple[Callable[[], Any], Any, str]] = [
    (lambda: "bigscience/bloom-560m", TypeError, "from_pretrained"),
    (lambda: transformers.BloomForCausalLM, TypeError, "an instance of it"),
    (lambda: make_model("bloom").config, TypeError, "BloomConfig"),
    (lambda: na.patch(make_model("bloom")), TypeError, "undo()"),
    (lambda: SimpleNamespace(model=make_model("bloom")), TypeError, "pass its .model"),
    (lambda: nn.Linear(2, 2), ValueError, "got Linear"),
    (llama, ValueError, "got LlamaModel"),
    (FoundryMPT, ValueError, "as a float: 6.0, not 6"),
    (bert, ValueError, "got Sequential"),
    (lambda: bert(position_embedding_type="alibi"), ValueError, "trust_remote_code=True"),
    (lambda: bert(alibi_starting_size=512), ValueError, "trust_remote_code=True"),
]


@pytest.mark.parametrize(("make", "error", "says"), MODELS)
def test_what_is_no_model_to_patch(make: Callable[[], Any], error: Any, says: str) -> None:
    wrong = make()
    with pytest.raises(error) as caught:
        na.patch(wrong)
    assert says in checked(caught, "model")
    for function in (na.patched, na.unpatch):
        if error is TypeError:
            with pytest.raises(TypeError) as caught:
                function(wrong)
            checked(caught, "model")
        else:
            assert not function(wrong)


def test_fields_of_a_family() -> None:
    model = toy_model()
    for fields in ({"slopes": lambda _: 0}, {"layers": lambda _: []}):
        with pytest.raises(ValueError, match="of the family Toy must be"):
            na.patch(model, family=toy_family(**fields))
    with pytest.raises(TypeError, match=r"missing .* required keyword-only argument"):
        Family(name="Toy", matches=bool, forward=print)  # type: ignore[call-arg]
    for wrong, error in (
        ("Toy", TypeError),
        ({}, TypeError),
        (toy_family(name="bloom"), ValueError),
    ):
        with pytest.raises(error, match=r"^(name of a )?family must be .*got"):
            register(wrong)  # type: ignore[arg-type]


# ---- arguments of a patched model's forward ----------------------------------------------------

PACKED: dict[str, Any] = {
    "cu_seq_lens_q": torch.tensor([0, 5, 12]),
    "cu_seq_lens_k": torch.tensor([0, 5, 12]),
    "max_length_q": 7,
    "max_length_k": 7,
    "seq_idx": (torch.arange(12) >= 5)[None],
    "read_index": [torch.arange(12)],
    "write_index": [torch.arange(12)],
    "block_table": torch.zeros(1, 1),
}
TEXTS = torch.cat([torch.arange(5), torch.arange(7)])[None].repeat(2, 1)


class Paged:
    """A cache of several texts, as continuous batching has it."""


#: Arguments of inner models, the patch, and the first word of the error.
CALLS: list[tuple[tuple[str, ...], dict[str, Any], dict[str, Any], str]] = [
    *((DECODERS, {name: value}, {}, name) for name, value in PACKED.items()),
    (DECODERS, {"cache": Paged()}, {}, "cache"),
    (DECODERS, {"position_ids": TEXTS}, {}, "position_ids"),
    (DECODERS, {"position_ids": TEXTS, "attention_mask": MASK}, {}, "position_ids"),
    (DECODERS, {"position_ids": torch.zeros(2, 12)}, {}, "position_ids"),
    (("bloom", "falcon"), {"attention_mask": MASK[:, None, None] > 0}, {}, "attention_mask"),
    (ALL[:3], {"attention_mask": MASK[0]}, {}, "attention_mask"),
    (("mpt", "t5", "mpnet"), {"attention_mask": MASK[:, None, None] * 5.0}, {}, "attention_mask"),
    (DECODERS, {"cache": na.WindowCache(9, 3)}, {}, "cache"),
    (DECODERS, {"cache": na.WindowCache(9, 3)}, {"window": 9}, "cache"),
    (DECODERS, {"cache": na.WindowCache(9, 3)}, {"causal_block": 6, "sink": 3}, "cache"),
    (DECODERS, {"cache": na.WindowCache(9)}, {"attention": "traceable"}, "cache"),
]


@torch.no_grad()
@pytest.mark.parametrize("door", ["call", "forward"])
@pytest.mark.parametrize(
    ("family", "given", "options", "word"),
    [
        pytest.param(family, *row[1:], id=f"{family}, {row[3]}, {number}")
        for number, row in enumerate(CALLS)
        for family in row[0]
    ],
)
def test_arguments_of_a_call(
    family: str, given: dict[str, Any], options: dict[str, Any], word: str, door: str
) -> None:
    """BLOOM, MPT and Falcon themselves drop what describes several texts in a row, or fail."""
    model = model_of(family).base_model
    if family == "t5":
        model = model.encoder
    given = {CACHE if name == "cache" and word == "cache" else name: x for name, x in given.items()}
    given = copy.deepcopy(given)
    plain = model(IDS)[0]
    with na.patch(model, **options):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            (model if door == "call" else model.forward)(input_ids=IDS, **given)
        checked(caught, CACHE if word == "cache" else word)
        model(IDS)
    assert torch.equal(model(IDS)[0], plain)


@pytest.mark.parametrize("family", DECODERS)
def test_a_decoder_that_should_see_ahead(family: str) -> None:
    model = model_of(family).base_model
    model.config.is_causal = False
    with na.patch(model), pytest.raises(ValueError, match=r"^config\.is_causal must be True"):
        model(IDS)


@pytest.mark.parametrize("family", ["bloom", "mpt", "falcon", "mpnet"])
def test_replicas(family: str) -> None:
    """torch.nn.DataParallel copies what binds a layer's forward to the original."""
    model = model_of(family)
    with na.patch(model), pytest.raises(ValueError, match=r"^model must not be patched in torch"):
        model.base_model._replicate_for_data_parallel()
    assert model.base_model._replicate_for_data_parallel() is not model.base_model


def test_sinks_and_exempt_tokens_that_contradict() -> None:
    model, bias = make_model("bloom"), na.ALiBi(8, exempt=3)
    with na.patch(model, bias, window=5, sink=1), pytest.raises(ValueError, match=r"^sink must be"):
        model(IDS)


def test_slow_but_exact_models_keep_the_eager_form() -> None:
    model = make_model("bloom", pretraining_tp=2, slow_but_exact=True)
    with pytest.raises(ValueError, match=r"^attention must be 'eager'"):
        na.patch(model)
    stock = model(IDS).logits
    with na.patch(model, attention="eager"):
        assert torch.equal(model(IDS).logits, stock)


@pytest.mark.needs("transformers >= 5.24", "others make other masks for static caches")
def test_static_caches_of_a_falcon() -> None:
    """Generation makes masks of pairs for them, which stock Falcon does not take either."""
    model = make_model("falcon")
    given = {"cache_implementation": "static", "max_new_tokens": 3, "attention_mask": MASK}
    with na.patch(model), pytest.raises(ValueError, match=r"^attention_mask must .* another cache"):
        model.generate(IDS, **given, pad_token_id=0)
    with pytest.raises(RuntimeError):
        model.generate(IDS, **given, pad_token_id=0)
