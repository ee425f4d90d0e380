"""What the patches of all families promise, against unpatched models and independent formulas."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.falcon import modeling_falcon
from transformers.models.falcon.modeling_falcon import FalconAttention
from transformers.models.mpt.modeling_mpt import MptModel

import ntk_alibi as na
from ntk_alibi.integrations.alibi_pass import Rule
from padded_batches import BATCH, LENGTH, MASKS, VOCABULARY, batch, masks, real, run

HEADS = 8

#: Float32 sums of a few hundred terms, through three layers, at logits of about 1.
LOGITS = {"atol": 2e-5, "rtol": 0.0}


def _bloom(heads: int, **config: Any) -> Any:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16 * heads, "n_layer": 3, "n_head": heads}
    return transformers.BloomForCausalLM(
        transformers.BloomConfig(tie_word_embeddings=False, **sizes, **config)
    )


def _mpt(heads: int, **config: Any) -> Any:
    sizes = {"vocab_size": VOCABULARY, "d_model": 16 * heads, "n_layers": 3, "n_heads": heads}
    defaults = {"max_seq_len": 48, "use_cache": True, "tie_word_embeddings": False}
    return transformers.MptForCausalLM(transformers.MptConfig(**{**sizes, **defaults, **config}))


def _falcon(heads: int, **config: Any) -> Any:
    sizes = {"hidden_size": 16 * heads, "num_hidden_layers": 3, "num_attention_heads": heads}
    defaults = {"vocab_size": VOCABULARY, "alibi": True, "tie_word_embeddings": False}
    return transformers.FalconForCausalLM(
        transformers.FalconConfig(**{**sizes, **defaults, **config})
    )


MAKERS = {
    "bloom": _bloom,
    "mpt": _mpt,
    "falcon": _falcon,
    "falcon, heads of keys": functools.partial(_falcon, multi_query=False),
    "falcon, new decoder": functools.partial(
        _falcon, new_decoder_architecture=True, num_kv_heads=2
    ),
}
#: BLOOM's own tests are in test_integrations_bloom.py.
OTHERS = [name for name in MAKERS if name != "bloom"]
CASES = [
    (name, attention)
    for name in OTHERS
    for attention in ("fused", "sdpa", "eager")
    if (name, attention) != ("mpt", "sdpa")
]
others = pytest.mark.parametrize("name", OTHERS)
families = pytest.mark.parametrize("name", ["bloom", "mpt", "falcon"])
cases = pytest.mark.parametrize(("name", "attention"), CASES)


def make_model(name: str, heads: int = HEADS, **config: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(heads)
        model = MAKERS[name](heads, **config).eval()
        for parameter in model.parameters():
            if parameter.ndim == 2:  # weights large enough for attention to matter
                parameter.data.normal_(0, 0.08)
    return model


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: make_model(name) for name in MAKERS}


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return batch()


@cases
@masks
def test_no_scaling_equals_transformers(
    models: dict, ids: torch.Tensor, name: str, attention: Any, mask: Any
) -> None:
    model, kept = models[name], real(mask)
    stock = run(model, ids, mask)
    with na.patch(model, attention=attention):
        torch.testing.assert_close(run(model, ids, mask)[kept], stock[kept], **LOGITS)
    assert torch.equal(run(model, ids, mask), stock)


def independent_logits(
    model: Any, ids: torch.Tensor, mask: torch.Tensor | None, slopes: np.ndarray
) -> torch.Tensor:
    """transformers' model with its attention written out anew in float64, row by row."""
    model = copy.deepcopy(model).double()
    falcon = hasattr(model.config, "alibi")
    logits = torch.zeros(*ids.shape, VOCABULARY, dtype=torch.float64)
    for b, kept in enumerate(real(mask)):
        columns = torch.arange(len(kept))[kept]
        positions = torch.arange(len(columns)) if falcon else columns
        distance = (positions[:, None] - positions).double()
        bias = -torch.from_numpy(slopes)[:, None, None] * distance
        bias = torch.where(distance < 0, -torch.inf, bias)
        with torch.no_grad():
            x = (model.transformer.word_embeddings if falcon else model.transformer.wte)(
                ids[b][kept]
            )
            for block in model.transformer.h if falcon else model.transformer.blocks:
                x = (_falcon_block if falcon else _mpt_block)(block, x, bias)
            last = model.transformer.ln_f if falcon else model.transformer.norm_f
            logits[b, kept] = model.lm_head(last(x))
    return logits


def _mpt_block(block: Any, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    q, k, v = (
        block.attn.Wqkv(block.norm_1(x)).view(len(x), 3, block.num_heads, -1).permute(1, 2, 0, 3)
    )
    weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + bias, dim=-1)
    x = x + block.attn.out_proj((weights @ v).transpose(0, 1).flatten(1))
    hidden = torch.nn.functional.gelu(block.ffn.up_proj(block.norm_2(x)))
    return x + block.ffn.down_proj(hidden)


def _falcon_block(block: Any, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """With one head of keys, parallel to the feed-forward part."""
    normed, attention = block.input_layernorm(x), block.self_attention
    fused = attention.query_key_value(normed).view(len(x), block.num_heads + 2, -1).transpose(0, 1)
    q, k, v = fused[:-2], fused[-2], fused[-1]
    weights = torch.softmax((q @ k.mT + bias) / q.shape[-1] ** 0.5, dim=-1)
    attended = attention.dense((weights @ v).transpose(0, 1).flatten(1))
    hidden = torch.nn.functional.gelu(block.mlp.dense_h_to_4h(normed))
    return x + attended + block.mlp.dense_4h_to_h(hidden)


@pytest.mark.parametrize(("name", "attention"), [case for case in CASES if "," not in case[0]])
@pytest.mark.parametrize("mask", ["none", "left", "holes"])
@pytest.mark.parametrize("heads", [8, 12])
def test_scaled_logits_equal_an_independent_computation(
    ids: torch.Tensor, name: str, attention: Any, mask: Any, heads: int
) -> None:
    model, mask = make_model(name, heads), MASKS[mask]
    kept = real(mask)
    slopes = na.reference.ntk_slopes(na.reference.alibi_slopes(heads), 4.0)
    expected = independent_logits(model, ids, mask, slopes)
    with na.patch(model, na.NTK(4.0), attention=attention):
        logits = run(model, ids, mask)
    torch.testing.assert_close(logits[kept].double(), expected[kept], **LOGITS)
    assert (logits - run(model, ids, mask))[kept].abs().max() > 1e-3


@others
@pytest.mark.parametrize("scaling", [na.DynamicNTK(2.0, 16), na.DynamicNTK(2.0, 16, per="query")])
def test_a_padded_row_equals_the_row_alone(
    models: dict, ids: torch.Tensor, name: str, scaling: Any
) -> None:
    mask = MASKS["left"]
    with na.patch(models[name], scaling):
        batch = run(models[name], ids, mask)
        for b, kept in enumerate(mask.bool()):
            alone = run(models[name], ids[b][kept][None])[0]
            torch.testing.assert_close(batch[b][kept], alone, **LOGITS)


def generate(model: Any, ids: torch.Tensor, mask: Any, **options: Any) -> torch.Tensor:
    mask = torch.ones_like(ids) if mask is None else mask
    tokens = {"pad_token_id": 0, "eos_token_id": VOCABULARY}  # some versions want one
    options = {"max_new_tokens": 6, "do_sample": False, **tokens, **options}
    generated: torch.Tensor = model.generate(ids, attention_mask=mask, **options)
    return generated


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("mask", [None, MASKS["left"]], ids=["unpadded", "left"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cache_implementation": "static"},
        {"use_cache": False},
        {"num_beams": 3},
        {"prefill_chunk_size": 16},
        {"prompt_lookup_num_tokens": 3},
    ],
    ids=str,
)
def test_generate(models: dict, ids: torch.Tensor, name: str, mask: Any, options: Any) -> None:
    model, beams = models[name], options.get("num_beams", 1)
    if "prompt_lookup_num_tokens" in options:  # transformers' takes one row
        ids, mask = ids[:1], None if mask is None else mask[:1]
    # Stock Falcon cannot read the mask that generate() makes for a static cache.
    stock = generate(model, ids, mask, num_beams=beams)
    with na.patch(model):
        assert torch.equal(generate(model, ids, mask, **options), stock)
    with na.patch(model, na.DynamicNTK(4.0, 8, per="query")):
        tokens = generate(model, ids, mask, **options)
        full = generate(model, ids, mask, use_cache=False, num_beams=beams)
    assert torch.equal(tokens, full)


@pytest.mark.parametrize("name", ["mpt", "falcon"])
@pytest.mark.parametrize("scaling", [na.NTK(4.0), na.DynamicNTK(2.0, 16, per="query")], ids=repr)
def test_gradients_and_gradient_checkpointing(ids: torch.Tensor, name: str, scaling: Any) -> None:
    def gradients(attention: Any, checkpointing: bool) -> list[torch.Tensor]:
        model = make_model(name).train()
        if checkpointing:
            new, old = "activation_checkpointing_enable", "gradient_checkpointing_enable"
            getattr(model, new if hasattr(model, new) else old)()
        with na.patch(model, scaling, attention=attention):
            model(ids, attention_mask=MASKS["right"], labels=ids, use_cache=False).loss.backward()
        return [parameter.grad for parameter in model.parameters()]

    expected = gradients("eager", False)
    for checkpointing in (False, True):
        for a, b in zip(gradients("fused", checkpointing), expected, strict=True):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@families
def test_undoing_before_a_checkpointed_backward_is_an_error(ids: torch.Tensor, name: str) -> None:
    model = make_model(name).train()
    new, old = "activation_checkpointing_enable", "gradient_checkpointing_enable"
    getattr(model, new if hasattr(model, new) else old)()
    with na.patch(model, na.NTK(2.0)):
        loss = model(ids, labels=ids, use_cache=False).loss
    with pytest.raises(RuntimeError, match="the patch must stay until the backward pass"):
        loss.backward()


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon"])
def test_dropout_in_training(ids: torch.Tensor, name: str) -> None:
    model = make_model(name).train()
    for layer in model.modules():
        if hasattr(layer, "attn_dropout_p"):  # MPT; its configuration takes 0 and 1 only
            layer.attn_dropout_p = 0.5
        elif hasattr(layer, "attention_dropout"):
            layer.attention_dropout.p = 0.5
    with na.patch(model, na.NTK(2.0)):
        a, b = (model(ids, use_cache=False).logits for _ in range(2))
        assert (a - b).abs().max() > 1e-3
        model.eval()
        assert torch.equal(run(model, ids), run(model, ids))


class Largest(TorchDispatchMode):
    """The most numbers that any result of an operation stores."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        results = function(*args, **(kwargs or {}))
        for result in results if isinstance(results, tuple | list) else (results,):
            if isinstance(result, torch.Tensor):
                self.numbers = max(self.numbers, result.untyped_storage().nbytes())
        return results


@families
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("options", [{"scaling": na.NTK(2.0)}, {"window": 64, "sink": 4}], ids=str)
def test_no_matrix_of_all_queries_and_keys_is_built(
    models: dict, name: str, padded: bool, options: dict[str, Any]
) -> None:
    length = 4096
    ids = torch.zeros((1, length), dtype=torch.long)
    mask = (torch.arange(length) >= 5).long()[None] if padded else None
    with na.patch(models[name], **options), Largest() as largest:
        run(models[name], ids, mask, logits_to_keep=1)
    assert largest.numbers < length * length  # bytes: fewer than a boolean for each pair


@families
def test_bfloat16_is_nearer_to_float32_than_stock(name: str) -> None:
    model = make_model(name, **({"max_seq_len": 1024} if name == "mpt" else {}))
    ids = torch.randint(0, VOCABULARY, (1, 1024), generator=torch.Generator().manual_seed(0))
    half = copy.deepcopy(model).bfloat16()
    with na.patch(model):  # stock Falcon rounds its bias to bfloat16 in float32, too
        exact = run(model, ids)
    stock = (run(half, ids).float() - exact).square().mean()
    with na.patch(half):
        ours = (run(half, ids).float() - exact).square().mean()
    assert ours < stock


@families
def test_output_attentions(models: dict, ids: torch.Tensor, name: str) -> None:
    mask = MASKS["left"]
    with torch.no_grad(), na.patch(models[name], na.NTK(4.0)):
        outputs = models[name](ids, attention_mask=mask, output_attentions=True)
        logits = run(models[name], ids, mask)
    kept = real(mask)
    torch.testing.assert_close(outputs.logits[kept], logits[kept], **LOGITS)
    assert [weights.shape for weights in outputs.attentions] == [(BATCH, HEADS, LENGTH, LENGTH)] * 3
    seen = (
        kept[:, None, :, None] & kept[:, None, None, :] & torch.ones(LENGTH, LENGTH).tril().bool()
    )
    for weights in outputs.attentions:
        assert (weights * kept[:, None, :, None])[~seen.expand_as(weights)].abs().max() == 0.0
        torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, HEADS, LENGTH))


@families
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled(models: dict, ids: torch.Tensor, name: str) -> None:
    torch.compiler.reset()
    with na.patch(models[name], na.NTK(4.0)):
        expected = run(models[name], ids, MASKS["left"])
        compiled = torch.compile(models[name], backend="eager")
        torch.testing.assert_close(run(compiled, ids, MASKS["left"]), expected, **LOGITS)
        torch.testing.assert_close(run(compiled, ids), run(models[name], ids), **LOGITS)
    torch.compiler.reset()


@families
def test_nothing_is_left_behind(ids: torch.Tensor, name: str) -> None:
    def state() -> list[Any]:
        return [
            (part, sorted(vars(module)), dict(module._forward_pre_hooks))
            for part, module in model.named_modules()
        ]

    model = make_model(name)
    before, config, stock = state(), model.config.to_dict(), run(model, ids)
    with na.patch(model, na.NTK(2.0)):
        clone = copy.deepcopy(model)
        with na.patch(model, na.NTK(8.0)):
            run(model, ids)
        patched = run(model, ids)
        assert model.config.to_dict() == config
    assert state() == before
    assert torch.equal(run(model, ids), stock)
    assert torch.equal(run(clone, ids), patched)
    assert not torch.equal(patched, stock)


@families
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_lora(ids: torch.Tensor, name: str) -> None:
    peft = pytest.importorskip("peft")
    targets = ["Wqkv"] if name == "mpt" else ["query_key_value"]
    config = peft.LoraConfig(target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM")
    model = peft.get_peft_model(make_model(name), config).eval()
    stock = run(model, ids)
    with na.patch(model):
        torch.testing.assert_close(run(model, ids), stock, **LOGITS)
    assert torch.equal(run(model, ids), stock)


@families
@pytest.mark.parametrize("hooks_first", [False, True])
def test_hooks_of_accelerate(ids: torch.Tensor, name: str, hooks_first: bool) -> None:
    accelerate = pytest.importorskip("accelerate")
    model, names = make_model(name), (".attn", ".self_attention")

    def add_hooks() -> None:
        for part, module in model.named_modules():
            if part.endswith(names):
                hook = accelerate.hooks.AlignDevicesHook("cpu", io_same_device=True)
                accelerate.hooks.add_hook_to_module(module, hook)

    stock = run(model, ids)
    if hooks_first:
        add_hooks()
    with na.patch(model, na.NTK(4.0)):
        patched = run(model, ids)
        if not hooks_first:
            add_hooks()
        assert torch.equal(run(model, ids), patched)
    assert torch.equal(run(model, ids), stock)
    assert not torch.equal(patched, stock)


def test_mpt_goes_on_behind_max_seq_len(models: dict) -> None:
    model, ids = models["mpt"], torch.arange(64)[None]
    with pytest.raises(RuntimeError, match="size of tensor"):
        run(model, ids)
    longer = copy.deepcopy(model)
    longer.config.max_seq_len = 64
    with na.patch(model):
        torch.testing.assert_close(run(model, ids), run(longer, ids), **LOGITS)


def test_mpt_has_the_slopes_of_its_alibi_bias_max(models: dict, ids: torch.Tensor) -> None:
    """transformers takes 8 whatever the configuration says."""
    model = make_model("mpt", attn_config={"alibi_bias_max": 16})
    model.load_state_dict(models["mpt"].state_dict())
    assert torch.equal(run(model, ids), run(models["mpt"], ids))
    expected = independent_logits(model, ids, None, 2.0 ** -(2.0 * np.arange(1, HEADS + 1)))
    with na.patch(model):
        torch.testing.assert_close(run(model, ids).double(), expected, **LOGITS)
    stretched = na.reference.ntk_slopes(2.0 ** -(2.0 * np.arange(1, HEADS + 1)), 4.0)
    with na.patch(model, na.NTK(4.0)):
        logits = run(model, ids).double()
    torch.testing.assert_close(logits, independent_logits(model, ids, None, stretched), **LOGITS)


def test_mpt_clips_its_projections(ids: torch.Tensor) -> None:
    model = make_model("mpt", attn_config={"clip_qkv": 0.1, "softmax_scale": 0.5})
    stock = run(model, ids)
    with na.patch(model):
        torch.testing.assert_close(run(model, ids), stock, **LOGITS)


def test_mpt_with_twelve_heads(ids: torch.Tensor) -> None:
    model = make_model("mpt", 12)
    stock = run(model, ids)
    with na.patch(model):
        torch.testing.assert_close(run(model, ids), stock, **LOGITS)


def test_falcon_in_the_eager_form_of_transformers_counts_the_bias_twice(
    models: dict, ids: torch.Tensor
) -> None:
    eager = make_model("falcon", attn_implementation="eager")
    with na.patch(eager):
        torch.testing.assert_close(run(eager, ids), run(models["falcon"], ids), **LOGITS)
    assert (run(eager, ids) - run(models["falcon"], ids)).abs().max() > 1e-2


@pytest.mark.parametrize("attention", ["fused", "eager"])
@pytest.mark.parametrize(("heads", "length"), [(8, 600), (12, LENGTH), (12, 600), (16, LENGTH)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_falcon_with_the_rounding_of_transformers(
    heads: int, length: int, attention: Any, dtype: torch.dtype
) -> None:
    """The bias is exactly theirs; theirs is added to scores in float32, at its own magnitude."""
    model = make_model("falcon", heads).to(dtype)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (2, length), generator=generator)
    mask = (torch.arange(length) >= torch.tensor([[0], [9]])).long()
    kept, stock = mask.bool(), run(model, ids, mask)
    with na.patch(model, attention=attention):
        exact = (run(model, ids, mask) - stock)[kept].abs().max()
    with na.patch(model, attention=attention, compat="transformers"):
        compatible = (run(model, ids, mask) - stock)[kept].abs().max()
    largest_bias = 2.0**-0.5 * length / 16**0.5
    assert compatible < LOGITS["atol"] + 2.0**-23 * largest_bias * 3  # layers
    assert exact > 50 * compatible


@pytest.mark.parametrize("attention", ["fused", "eager"])
def test_falcon_with_the_rounding_of_transformers_in_bfloat16(attention: Any) -> None:
    """Sums in bfloat16 differ; the mean difference is a small part of the exact mode's."""
    model, ids = make_model("falcon", 12).bfloat16(), torch.arange(600)[None] % VOCABULARY
    stock, errors = run(model, ids), []
    for compat in ("transformers", "exact"):
        with na.patch(model, attention=attention, compat=compat):
            errors.append((run(model, ids) - stock).abs().mean())
    assert errors[0] < 0.7 * errors[1]


def test_falcon_generates_with_the_rounding_of_transformers(ids: torch.Tensor) -> None:
    model, mask = make_model("falcon", 12), MASKS["left"]
    with na.patch(model, compat="transformers") as handle:
        assert "compat='transformers', in force" in repr(handle)
        tokens = generate(model, ids, mask)
        assert torch.equal(generate(model, ids, mask, use_cache=False), tokens)
        assert torch.equal(generate(model, ids, mask, cache_implementation="static"), tokens)
    assert torch.equal(generate(model, ids, mask), tokens)


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 16, 32, 40, 64, 71, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_falcons_rounded_bias_is_theirs_bit_for_bit(heads: int, dtype: torch.dtype) -> None:
    positions = torch.arange(3000)
    theirs = modeling_falcon.build_alibi_tensor(torch.ones_like(positions)[None], heads, dtype)
    rule = Rule(heads, slope_divisor=80**0.5)
    ours = rule.rounded_bias(None, None, positions[None], dtype)
    assert torch.equal(ours[0, :, 0], (theirs / 80**0.5)[:, 0].float())


def test_the_rounding_of_transformers_is_refused_where_there_is_none(models: dict) -> None:
    for name in ("bloom", "mpt"):
        with pytest.raises(ValueError, match=r"compat for .* must be one of 'exact', got 'transf"):
            na.patch(models[name], compat="transformers")
    falcon = models["falcon"]
    with pytest.raises(ValueError, match="compat must be one of 'exact', 'transformers', got 'hf'"):
        na.patch(falcon, compat="hf")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="compat='transformers' must be one of 'fused', 'eager'"):
        na.patch(falcon, compat="transformers", attention="sdpa")
    with pytest.raises(ValueError, match="scaling must not have per='query' here"):
        na.patch(falcon, na.DynamicNTK(per="query"), compat="transformers")


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("falcon", {"alibi": False}, "must be a Falcon with ALiBi, got one with rotary"),
        ("mpt", {"attn_config": {"alibi": False}}, "whose attn_config.alibi is False"),
    ],
)
def test_models_without_alibi_are_refused(name: str, config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        na.patch(make_model(name, **config))


def test_forms_that_a_family_does_not_have(models: dict) -> None:
    with pytest.raises(ValueError, match="attention for MPT must be one of 'fused', 'eager', got"):
        na.patch(models["mpt"], attention="sdpa")


def test_classes_that_compute_otherwise_are_refused() -> None:
    class OwnAttention(FalconAttention):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    class OwnModel(MptModel):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    class BloomModel(torch.nn.Module):
        """Of that name only."""

    falcon, mpt = make_model("falcon"), make_model("mpt")
    falcon.transformer.h[1].self_attention.__class__ = OwnAttention
    with pytest.raises(ValueError, match="as transformers' FalconAttention is, got a OwnAttention"):
        na.patch(falcon)
    mpt.transformer.__class__ = OwnModel
    with pytest.raises(ValueError, match="as transformers' MptModel is, got a OwnModel"):
        na.patch(mpt)
    with pytest.raises(ValueError, match="got BloomModel"):
        na.patch(BloomModel())


@pytest.mark.parametrize("name", ["mpt", "falcon"])
def test_a_mask_where_our_pass_should_be_is_an_error(ids: torch.Tensor, name: str) -> None:
    model = make_model(name)
    with na.patch(model, na.NTK(4.0)):
        model.transformer._ntk_alibi_hook.remove()
        with pytest.raises(RuntimeError, match="patch would have no effect with transformers"):
            run(model, ids)


@families
def test_masks_of_four_dimensions(models: dict, ids: torch.Tensor, name: str) -> None:
    """generate() hands causal ones to models with a static cache; no other means the same."""
    padding = MASKS["left"].bool()
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() & padding[:, None, None, :]
    numbers = torch.where(causal, 0.0, torch.finfo(torch.float32).min)
    with na.patch(models[name]):
        expected = run(models[name], ids, padding)
        for mask in (causal, numbers):
            assert torch.equal(run(models[name], ids, mask), expected)
        with pytest.raises(ValueError, match=r"attention_mask must have shape .*= \(3, 40\)"):
            run(models[name], ids, torch.ones_like(causal))


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon", "falcon, new decoder"])
def test_by_name_and_configuration(
    models: dict, ids: torch.Tensor, name: str, tmp_path: Any
) -> None:
    models[name].save_pretrained(tmp_path / "stock")

    def load(folder: str, **options: Any) -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path / folder, **options
        ).eval()

    model = load("stock", attn_implementation="ntk_alibi")
    stock = run(models[name], ids, MASKS["left"])
    kept = real(MASKS["left"])
    torch.testing.assert_close(run(model, ids, MASKS["left"])[kept], stock[kept], **LOGITS)
    model.config.alibi_scaling = {"alibi_type": "ntk", "factor": 4.0}
    with na.patch(models[name], na.NTK(4.0)):
        expected = run(models[name], ids)
        tokens = generate(models[name], ids, MASKS["left"])
    assert torch.equal(run(model, ids), expected)
    for options in ({}, {"cache_implementation": "static"}):
        assert torch.equal(generate(model, ids, MASKS["left"], **options), tokens)
    with na.patch(model, na.NTK(8.0)):
        assert not torch.equal(run(model, ids), expected)
    assert torch.equal(run(copy.deepcopy(model), ids), expected)
    model.save_pretrained(tmp_path / "scaled")
    assert torch.equal(run(load("scaled", attn_implementation="ntk_alibi"), ids), expected)
    assert torch.equal(run(load("scaled"), ids), run(models[name], ids))
    model.config.alibi_scaling = {"alibi_type": "ntk", "scale": 4.0}
    with pytest.raises(ValueError, match="'factor' is missing; 'scale' is unknown"):
        run(model, ids)


@families
def test_the_name_given_to_a_model_that_was_made_without_it(ids: torch.Tensor, name: str) -> None:
    """transformers' own attention would ignore the scaling, or the mask."""
    model = make_model(name)
    model.config._attn_implementation = "ntk_alibi"
    with pytest.raises(RuntimeError, match="must be given when a BLOOM, MPT or Falcon model is"):
        run(model, ids)


def test_the_name_given_to_other_models() -> None:
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(num_attention_heads=2, num_key_value_heads=2, **sizes)
    llama = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="ntk_alibi")
    with pytest.raises(RuntimeError, match="or is another"):
        llama(torch.zeros((1, 3), dtype=torch.long))
    rotary = transformers.FalconConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
    with pytest.raises(ValueError, match="must be a Falcon with ALiBi"):
        transformers.AutoModelForCausalLM.from_config(rotary, attn_implementation="ntk_alibi")
