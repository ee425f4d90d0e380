"""Rows of several texts in patched models: each as in a row of its own, or refused."""

from __future__ import annotations

import copy
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers import ContinuousBatchingConfig, DataCollatorWithFlattening, GenerationConfig

import ntk_alibi as na
import ntk_alibi.integrations  # registers the name
from model_runs import LOGITS, MASKS, enable_checkpointing, run
from ntk_alibi.integrations.arguments import CACHE
from small_models import families, make_model

TEXTS = [torch.arange(2, 2 + length).tolist() for length in (5, 17, 9)]
SOURCES = ("position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx")


def packed(*texts: list[int]) -> dict[str, Any]:
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    batch: dict[str, Any] = collate([{"input_ids": text} for text in texts])
    return batch


def refused(argument: str, model: Any, **kwargs: Any) -> None:
    with pytest.raises(ValueError, match=f"{argument} must .* for a patched .* got"):
        model(**kwargs)


def separately(model: Any, texts: list[list[int]] = TEXTS) -> torch.Tensor:
    return torch.cat([model(torch.tensor([text])).logits for text in texts], dim=1)


def reads_texts(model: Any, **given: Any) -> bool:
    with torch.no_grad():
        return torch.allclose(model(**given).logits, separately(model), **LOGITS)


def gradients(model: Any, logits: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)) / 100
    (logits * weights).sum().backward()
    return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


QUERY = na.DynamicNTK(2.0, train_length=8, per="query")
WINDOW = {"window": 6, "sink": 2, "log_n": na.LogN(8)}


def test_positions_by_place_and_states_without_a_cache(models: dict) -> None:
    batch = packed(*TEXTS)
    with na.patch(models["falcon"]), torch.no_grad():
        states = models["falcon"].base_model(batch["input_ids"], seq_idx=batch["seq_idx"])
        assert getattr(states, CACHE) is None
        positional = models["falcon"](batch["input_ids"], None, None, batch["position_ids"])
        torch.testing.assert_close(positional.logits, separately(models["falcon"]), **LOGITS)


@families
@pytest.mark.parametrize("argument", SOURCES)
def test_models_around_the_patched_one_read_them(models: dict, name: str, argument: str) -> None:
    """A model with a head drops these arguments, also where its inner model alone is patched."""
    model, batch = models[name], packed(*TEXTS)
    given = {"input_ids": batch["input_ids"], argument: batch[argument]}
    with na.patch(model.base_model):
        assert reads_texts(model, **given)
        with na.patch(model.base_model, na.NTK(2.0)):
            assert reads_texts(model, **given)
        assert reads_texts(model, **given)
    model(**given)


@families
@pytest.mark.parametrize("configured", [False, True])
def test_models_that_get_a_patched_one_later_read_them(name: str, configured: bool) -> None:
    model, batch = make_model(name), packed(*TEXTS)
    inner = model.base_model
    if configured:
        inner = type(inner)._from_config(model.config, attn_implementation="ntk_alibi").eval()
    else:
        handle = na.patch(inner)
    outer = type(model)(model.config).eval()
    outer.transformer = inner
    within = torch.nn.ModuleDict({"model": inner})  # no model of transformers
    wrapped = type(model)(model.config).eval()
    wrapped.transformer = within
    wrapped.transformer = within["model"]
    for argument in SOURCES:
        given = {"input_ids": batch["input_ids"], argument: batch[argument]}
        assert reads_texts(outer, **given)
        assert reads_texts(wrapped, **given)
    if not configured:
        handle.undo()
        assert not [x for x in (outer, wrapped, within, inner) if x._forward_pre_hooks]


def test_rows_hold_texts_of_their_own_lengths(models: dict) -> None:
    model, ids = models["bloom"], torch.arange(2, 42).view(2, 20)
    ends = torch.tensor([0, 3, 20, 31, 40])
    positions = torch.cat([torch.arange(n) for n in ends.diff().tolist()]).view(2, 20)
    with na.patch(model, QUERY), torch.no_grad():
        texts = [x.tolist() for x in ids.flatten().split(ends.diff().tolist())]
        expected = separately(model, texts).view(2, 20, -1)
        for given in ({"position_ids": positions}, {"cu_seq_lens_q": ends}):
            torch.testing.assert_close(model(ids, **given).logits, expected, **LOGITS)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_know_the_texts(reentrant: bool) -> None:
    model, batch = make_model("falcon").train(), packed(*TEXTS)
    with na.patch(model, QUERY):
        expected = gradients(model, model(**batch).logits)
        enable_checkpointing(model, {"use_reentrant": reentrant})
        model.enable_input_require_grads()
        again = gradients(model, model(**batch).logits)
    for name, gradient in expected.items():
        torch.testing.assert_close(again[name], gradient, **LOGITS)


def test_what_does_not_go_with_texts_is_refused(models: dict) -> None:
    batch, model = packed(*TEXTS), models["bloom"]
    ids, segments = batch["input_ids"], batch["seq_idx"]
    mask = torch.ones_like(ids)
    hidden = mask.clone()
    hidden[0, 0] = 0
    with na.patch(model):
        assert reads_texts(model, input_ids=ids, seq_idx=segments, attention_mask=mask)
        for other in (
            {CACHE: transformers.DynamicCache()},
            {"use_cache": True},
            {"attention_mask": hidden},
        ):
            refused("seq_idx", model, input_ids=ids, seq_idx=segments, **other)
        for given in ("max_length_q", "max_length_k"):
            refused(given, model, input_ids=ids, **{given: 17})
            refused(given, model, input_ids=ids, seq_idx=segments, **{given: 16})
            model(ids, seq_idx=segments, **{given: 17})
        refused("seq_idx", model, **{**batch, "seq_idx": segments.clamp(max=1)})
        refused("seq_idx", model, input_ids=ids, seq_idx=segments % 2)
        for ends in ([0, 5, 30], [0, 5, 32], [1, 5, 31], [0, 9, 5, 31]):
            refused("cu_seq_lens_k", model, input_ids=ids, cu_seq_lens_k=torch.tensor(ends))
        two_rows = {"input_ids": ids[:, :30].view(2, 15), "cu_seq_lens_q": torch.tensor([0, 9, 30])}
        refused("cu_seq_lens_q", model, **two_rows)
        refused("cache", model, input_ids=ids, read_index=[])
        refused(
            "cache", model, input_ids=ids, read_index=[], **{CACHE: transformers.DynamicCache()}
        )
    with na.patch(model, attention="traceable"):
        refused("seq_idx", model, input_ids=ids, seq_idx=segments)


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


@pytest.mark.filterwarnings("ignore:A decoder-only architecture")
@pytest.mark.parametrize("use_cache", [True, False])
def test_generated_tokens_behind_padding_on_the_right_go_on(
    models: dict, ids: torch.Tensor, use_cache: bool
) -> None:
    """generate() counts their positions on from the padding's; Falcon takes them."""
    model, mask = models["falcon"], torch.ones(2, 12, dtype=torch.long)
    mask[0, 7:] = 0
    given: dict[str, Any] = {"attention_mask": mask, "use_cache": use_cache, "max_new_tokens": 4}
    given |= {"do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids[:2, :12], **given)
    with na.patch(model):
        assert torch.equal(model.generate(ids[:2, :12], **given), expected)


@families
def test_cached_positions_go_on(models: dict, ids: torch.Tensor, name: str) -> None:
    model, positions = models[name], torch.arange(40)[None]
    with na.patch(model):
        cache = transformers.DynamicCache()
        for part in (slice(0, 25), slice(25, 26), slice(26, 40)):
            run(model, ids[:, part], **{CACHE: cache}, position_ids=positions[:, part])
        new = {"input_ids": ids[:, :3], CACHE: cache}
        refused("position_ids", model, **new, position_ids=torch.tensor([[40, 0, 1]]))


def generated(model: Any, texts: list[list[int]], **options: Any) -> list[list[int]]:
    greedy = GenerationConfig(max_new_tokens=20, do_sample=False, eos_token_id=1, pad_token_id=0)
    if not options:
        return [
            model.generate(
                torch.tensor([text]),
                attention_mask=torch.ones((1, len(text)), dtype=torch.long),
                generation_config=greedy,
            )[0, len(text) :].tolist()
            for text in texts
        ]
    batching = ContinuousBatchingConfig(num_blocks=64, **options)
    outputs = model.generate_batch(
        texts, generation_config=greedy, continuous_batching_config=batching
    )
    assert [output.error for output in outputs.values()] == [None] * len(texts)
    return [outputs[request].generated_tokens for request in sorted(outputs)]


#: Older versions hand their paged cache other arguments.
paged = pytest.mark.needs("transformers >= 5.20", "its paged cache took other arguments")


@paged
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("falcon", {"scaling": na.NTK(4.0), **WINDOW}),
        pytest.param("bloom", {"scaling": QUERY}, marks=pytest.mark.slow),
        pytest.param("falcon, new decoder", {"attention": "eager"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_continuous_batching_gives_the_tokens_of_generate(
    models: dict, name: str, options: Any
) -> None:
    """In pages, in chunks of prompts, and with blocks that texts share."""
    model, draw = models[name], torch.Generator().manual_seed(0)
    shared = torch.randint(2, 60, (40,), generator=draw).tolist()  # more than a block
    texts = [*TEXTS, [7], [*shared, 8, 9], [*shared, 8], list(range(2, 60)) * 2]
    with na.patch(model, **options):
        expected = generated(model, texts)
        chunked = {"max_batch_tokens": 64, "page_size": 32}
        assert generated(model, texts, **chunked) == expected
        assert generated(model, texts, max_batch_tokens=256, allow_block_sharing=False) == expected
        assert generated(model, texts) == expected


@paged
def test_continuous_batching_says_why_it_fails(
    models: dict, caplog: pytest.LogCaptureFixture
) -> None:
    greedy = GenerationConfig(max_new_tokens=3, do_sample=False, eos_token_id=1, pad_token_id=0)
    batching = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64)
    with na.patch(models["mpt"], attention="traceable"), caplog.at_level(logging.CRITICAL):
        outputs = models["mpt"].generate_batch(
            TEXTS, generation_config=greedy, continuous_batching_config=batching
        )
    assert len(outputs) == len(TEXTS)
    for output in outputs.values():
        assert not output.generated_tokens
        assert "cache must be None for a patched" in str(output.error)
    with na.patch(models["mpt"]):
        table = {"cache": object(), "block_table": torch.zeros(1)}
        refused("block_table", models["mpt"], **table)
        refused("cache", models["mpt"], cache=SimpleNamespace(update=lambda key, value: None))
        if CACHE != "cache":  # before transformers 5.24, `cache` was a paged cache alone
            refused("cache", models["mpt"], cache=transformers.DynamicCache())


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("first", [True, False], ids=["patched first", "adapted first"])
def test_adapters_and_other_heads_read_them(first: bool) -> None:
    peft = pytest.importorskip("peft")
    batch, model = packed(*TEXTS), make_model("bloom")
    adapters = peft.LoraConfig(target_modules=["query_key_value"], task_type="CAUSAL_LM")
    if first:
        na.patch(model)
    adapted = peft.get_peft_model(model, adapters)
    if not first:
        na.patch(adapted)
    for given in SOURCES:
        assert reads_texts(adapted, input_ids=batch["input_ids"], **{given: batch[given]})
    classifier = transformers.BloomForTokenClassification(model.config).eval()
    na.patch(classifier)
    assert reads_texts(classifier, input_ids=batch["input_ids"], seq_idx=batch["seq_idx"])


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_learned_prompts_refuse_them() -> None:
    peft = pytest.importorskip("peft")
    prompt = peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(make_model("bloom"), prompt)
    na.patch(adapted)
    refused("position_ids", adapted, **packed(*TEXTS))
    model = make_model("bloom")
    na.patch(model)
    refused("position_ids", peft.get_peft_model(model, prompt), **packed(*TEXTS))


def test_copies_read_them_and_undone_patches_do_not() -> None:
    batch, model = packed(*TEXTS), make_model("bloom")
    inner = na.patch(model.transformer)
    outer = na.patch(model, na.NTK(2.0))
    clone = copy.deepcopy(model)
    inner.undo()
    assert reads_texts(model, **batch)
    outer.undo()
    assert not reads_texts(model, **batch)
    assert reads_texts(clone, **batch)
    na.unpatch(clone)
    assert not reads_texts(clone, **batch)


def test_a_traced_graph_refuses_what_it_could_not_check(shallow: dict) -> None:
    batch, model = packed(*TEXTS), shallow["bloom"]
    torch.compiler.reset()
    with na.patch(model, attention="traceable"), torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        compiled(batch["input_ids"], use_cache=False)
        with pytest.raises(Exception, match="position_ids must be None where torch traces"):
            compiled(batch["input_ids"], position_ids=batch["position_ids"], use_cache=False)
    torch.compiler.reset()
