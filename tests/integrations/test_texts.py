"""Rows of several texts, which a patched model does not read as one in silence."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
import transformers
from transformers import ContinuousBatchingConfig, DataCollatorWithFlattening, GenerationConfig

import ntk_alibi as na
import ntk_alibi.integrations  # registers the name
from family_models import families, make_model
from padded_batches import MASKS, run

TEXTS = [torch.arange(2, 2 + length).tolist() for length in (5, 17, 9)]
ARGUMENTS = (
    "position_ids",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
    "seq_idx",
)


def packed(*texts: list[int]) -> dict[str, Any]:
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    batch: dict[str, Any] = collate([{"input_ids": text} for text in texts])
    return batch


def refused(argument: str, model: Any, **kwargs: Any) -> None:
    with pytest.raises(ValueError, match=f"{argument} must .* for a patched .* got"):
        model(**kwargs)


@families
def test_packed_rows_are_refused_by_every_argument(models: dict, name: str) -> None:
    batch, model = packed(*TEXTS), models[name]
    configured = make_model(name, attn_implementation="ntk_alibi")
    with na.patch(model):
        for given in ARGUMENTS:
            for head in (model, model.base_model, configured, configured.base_model):
                refused(given, head, input_ids=batch["input_ids"], **{given: batch[given]})
        with pytest.raises(ValueError, match="position_ids must rise by one"):
            model(**batch)  # with labels, that is a pass of training
        positional = (batch["input_ids"], None, None, batch["position_ids"])
        if name == "falcon":
            with pytest.raises(ValueError, match="position_ids must rise by one"):
                model(*positional)
    with torch.no_grad():
        model(**batch)


@families
def test_a_row_of_one_text_may_say_so(models: dict, ids: torch.Tensor, name: str) -> None:
    model, batch = models[name], packed(TEXTS[1])
    count, tokens = ids.shape
    ends = torch.arange(count + 1) * tokens
    rows = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": tokens}
    positions = torch.arange(tokens)[None]
    with na.patch(model):
        assert torch.equal(model(**batch).logits, model(batch["input_ids"]).logits)
        plain = run(model, ids)
        for same in (rows, {"position_ids": positions}, {"position_ids": positions + 7}):
            assert torch.equal(run(model, ids, **same), plain)


@families
@pytest.mark.parametrize("padding", ["left", "right", "holes"])
def test_positions_of_padding_are_no_texts(
    models: dict, ids: torch.Tensor, name: str, padding: str
) -> None:
    model, mask = models[name], MASKS[padding]
    assert mask is not None
    counted = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)
    with na.patch(model):
        expected = run(model, ids, mask)
        for positions in (counted, counted.masked_fill(mask == 0, 1), torch.arange(40)[None]):
            assert torch.equal(run(model, ids, mask, position_ids=positions), expected)
        again = counted.clone()
        again[1, 20:] -= 15
        refused("position_ids", model, input_ids=ids, attention_mask=mask, position_ids=again)
        refused("position_ids", model, input_ids=ids, position_ids=counted)


@families
def test_cached_positions_go_on(models: dict, ids: torch.Tensor, name: str) -> None:
    model, positions = models[name], torch.arange(40)[None]
    with na.patch(model):
        cache = transformers.DynamicCache()
        for part in (slice(0, 25), slice(25, 26), slice(26, 40)):
            run(model, ids[:, part], past_key_values=cache, position_ids=positions[:, part])
        new = {"input_ids": ids[:, :3], "past_key_values": cache}
        refused("position_ids", model, **new, position_ids=torch.tensor([[40, 0, 1]]))


@families
def test_continuous_batching_says_why_it_fails(
    models: dict, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    greedy = GenerationConfig(max_new_tokens=3, do_sample=False, eos_token_id=1, pad_token_id=0)
    batching = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64)
    with na.patch(models[name]), caplog.at_level(logging.CRITICAL):
        outputs = models[name].generate_batch(
            TEXTS, generation_config=greedy, continuous_batching_config=batching
        )
    assert len(outputs) in (0, len(TEXTS))  # older versions return no request that failed
    for output in outputs.values():
        assert not output.generated_tokens
        assert "cache must be None for a patched" in str(output.error)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("first", [True, False], ids=["patched first", "adapted first"])
def test_adapters_and_other_heads_refuse_them(first: bool) -> None:
    peft = pytest.importorskip("peft")
    batch, model = packed(*TEXTS), make_model("bloom")
    adapters = peft.LoraConfig(target_modules=["query_key_value"], task_type="CAUSAL_LM")
    if first:
        na.patch(model)
    adapted = peft.get_peft_model(model, adapters)
    if not first:
        na.patch(adapted)
    for given in ARGUMENTS:
        refused(given, adapted, input_ids=batch["input_ids"], **{given: batch[given]})
    classifier = transformers.BloomForTokenClassification(model.config)
    na.patch(classifier)
    refused("seq_idx", classifier, input_ids=batch["input_ids"], seq_idx=batch["seq_idx"])


def test_copies_refuse_them_and_undone_patches_do_not() -> None:
    batch, model = packed(*TEXTS), make_model("bloom")
    inner = na.patch(model.transformer)
    outer = na.patch(model, na.NTK(2.0))
    clone = copy.deepcopy(model)
    inner.undo()
    refused("position_ids", model, **batch)
    outer.undo()
    model(**batch)
    refused("position_ids", clone, **batch)
    na.unpatch(clone)
    clone(**batch)


def test_a_traced_graph_refuses_what_it_could_not_check(shallow: dict) -> None:
    batch, model = packed(*TEXTS), shallow["bloom"]
    torch.compiler.reset()
    with na.patch(model, attention="traceable"), torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        compiled(batch["input_ids"], use_cache=False)
        with pytest.raises(Exception, match="position_ids must be None where torch traces"):
            compiled(batch["input_ids"], position_ids=batch["position_ids"], use_cache=False)
    torch.compiler.reset()
