"""Patches: nesting, undoing, copies, threads, saving, wrong arguments."""

from __future__ import annotations

import copy
import logging
import threading
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import BloomForCausalLM
from transformers.models.bloom import modeling_bloom

import ntk_alibi as na
from model_runs import BATCH, LENGTH, LOGITS, run, state_of
from ntk_alibi.integrations import transformers_versions
from small_models import VOCABULARY, attentions, make_model


def test_patches_nest_and_undo_in_any_order(models: dict, ids: torch.Tensor) -> None:
    model = models["bloom"]
    stock = run(model, ids)
    outer = na.patch(model, na.NTK(2.0))
    two = run(model, ids)
    with na.patch(model, na.NTK(8.0), attention="eager") as inner:
        eight = run(model, ids)
        assert "in force" in repr(inner)
        with na.patch(model):
            torch.testing.assert_close(run(model, ids), stock, **LOGITS)
        assert torch.equal(run(model, ids), eight)
    assert torch.equal(run(model, ids), two)
    newest = na.patch(model, na.NTK(8.0), attention="eager")
    outer.undo()
    assert torch.equal(run(model, ids), eight)
    outer.undo()
    newest.undo()
    assert "undone" in repr(newest)
    assert torch.equal(run(model, ids), stock)


def test_only_this_instance_is_patched(ids: torch.Tensor) -> None:
    config = make_model("bloom").config
    a, b = BloomForCausalLM(config).eval(), BloomForCausalLM(config).eval()
    b.load_state_dict(a.state_dict())
    stock, name = run(b, ids), config._attn_implementation
    with na.patch(a, na.Interpolation(4.0)):
        stretched = run(a, ids)
        assert not torch.equal(stretched, stock)
        assert torch.equal(run(b, ids), stock)
        with na.patch(b, na.Interpolation(4.0)):
            assert torch.equal(run(b, ids), stretched)
        assert torch.equal(run(a, ids), stretched)
    assert torch.equal(run(a, ids), stock)
    assert a.transformer.config is b.transformer.config is config
    assert config._attn_implementation == name


def test_threads_do_not_see_each_other(ids: torch.Tensor) -> None:
    shared, wrong = make_model("bloom"), []
    others = [copy.deepcopy(shared) for _ in range(4)]
    choices = [None, na.NTK(2.0), na.Interpolation(2.0), na.DynamicNTK(2.0, 16, per="query")]
    expected = []
    for scaling in choices:
        with na.patch(shared, scaling):
            expected.append(run(shared, ids))

    def work(model: Any, scaling: Any, logits: torch.Tensor) -> None:
        for _ in range(10):
            with na.patch(model, scaling):
                if not torch.equal(run(model, ids), logits):
                    wrong.append(scaling)

    threads = [
        threading.Thread(target=work, args=arguments)
        for arguments in zip(others, choices, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_several_threads_on_one_patched_model(ids: torch.Tensor) -> None:
    model, results = make_model("bloom"), []
    with na.patch(model, na.DynamicNTK(2.0, 16)):
        expected = [run(model, ids[:, :n]) for n in (40, 30, 20)]

        def work(index: int) -> None:
            n = (40, 30, 20)[index]
            results.extend(torch.equal(run(model, ids[:, :n]), expected[index]) for _ in range(10))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [True] * 30


def test_a_bias_that_transformers_builds_elsewhere_has_no_effect(
    models: dict, ids: torch.Tensor
) -> None:
    model = models["bloom"]
    with na.patch(model, na.NTK(4.0), attention="eager"):
        expected = run(model, ids)
        tensor = torch.ones(BATCH * 8, 1, LENGTH).cumsum(dim=-1)
        model.transformer.build_alibi_tensor = lambda *_, **__: tensor
        assert torch.equal(run(model, ids), expected)


@attentions
def test_a_mask_that_transformers_builds_elsewhere_is_an_error(
    models: dict, ids: torch.Tensor, attention: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This guards against a transformers version that does not ask for our mask."""
    monkeypatch.setattr(modeling_bloom, "create_causal_mask", lambda *_, **__: None)
    message = "transformers built the mask of BloomAttention without asking"
    with (
        na.patch(models["bloom"], na.NTK(4.0), attention=attention),
        pytest.raises(RuntimeError, match=message),
    ):
        run(models["bloom"], ids)


def test_models_without_alibi_are_refused() -> None:
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2,
        )
    )  # fmt: skip
    with pytest.raises(
        ValueError, match=r"known family \(Baichuan-13B, BLOOM, Falcon, .*\), got LlamaForCausalLM"
    ):
        na.patch(llama, na.NTK(2.0))
    with pytest.raises(ValueError, match="got Linear"):
        na.patch(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    "alibi", [{"position_embedding_type": "alibi"}, {"alibi_starting_size": 512}, {}]
)
def test_a_stock_class_of_a_checkpoint_with_code_says_how_to_load_it(alibi: Any) -> None:
    """As AutoModel gives it for jina-embeddings-v2 and MosaicBERT without the code."""
    size = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = transformers.BertConfig(**size, num_attention_heads=2, alibi_scaling=None, **alibi)
    with pytest.raises(ValueError, match="got Sequential, which a patch would leave") as caught:
        na.patch(torch.nn.Sequential(transformers.BertModel(config)))
    advice = "".join(f"; its config has {name}={value!r}, which" for name, value in alibi.items())
    assert advice in str(caught.value)
    assert ("trust_remote_code=True" in str(caught.value)) == bool(alibi)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("bloom",), {}, TypeError, "model must be a torch.nn.Module, got str"),
        ((make_model("bloom"), 4.0), {}, TypeError, "method must be None or an object"),
        (
            (make_model("bloom"),),
            {"attention": "flash"},
            ValueError,
            "attention must be one of 'fused', 'eager', 'traceable', got 'flash'",
        ),
        (
            (make_model("bloom"),),
            {"method": "ntk:4"},
            TypeError,
            r"second argument, scaling: patch\(model, 'ntk:4'\), got method='ntk:4'",
        ),
        ((make_model("bloom"),), {"scalng": "ntk:4"}, TypeError, "keyword argument 'scalng'"),
    ],
)
def test_wrong_arguments(arguments: Any, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        na.patch(*arguments, **options)


def test_a_patch_is_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ntk_alibi"):
        handle = na.patch(make_model("bloom"), "ntk:4")
    assert caplog.messages == [repr(handle)]


def test_warnings_of_patch_name_the_line_that_calls_it() -> None:
    model = make_model("bloom")
    model.config.seq_length = 64
    for _ in range(2):
        with pytest.warns(UserWarning, match="train_length|same call") as caught:
            na.patch(model, na.DynamicNTK(2.0, 9))
        assert {warning.filename for warning in caught} == {__file__}


def test_modeling_code_with_other_arguments_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, hidden_states: Any, position_bias: Any) -> None: ...

    model = make_model("bloom")
    monkeypatch.setattr(modeling_bloom.BloomAttention, "forward", forward)
    with pytest.raises(
        RuntimeError, match=r"is not what the BLOOM patch expects: .*forward has no"
    ):
        na.patch(model, na.NTK(2.0))


def test_slow_but_exact_models_keep_the_eager_form(ids: torch.Tensor) -> None:
    model = make_model("bloom", pretraining_tp=2, slow_but_exact=True)
    with pytest.raises(ValueError, match="attention must be 'eager' for a BLOOM with slow_but"):
        na.patch(model)
    stock = run(model, ids)
    with na.patch(model, attention="eager"):
        assert torch.equal(run(model, ids), stock)


@pytest.mark.parametrize("shape", [(BATCH, LENGTH, LENGTH), (BATCH, LENGTH - 1), (1, LENGTH)])
def test_masks_of_a_wrong_shape(models: dict, ids: torch.Tensor, shape: Any) -> None:
    with (
        na.patch(models["bloom"]),
        pytest.raises(ValueError, match=r"attention_mask must have shape .*= \(3, 40\)"),
    ):
        run(models["bloom"], ids, torch.ones(shape))


def test_no_tokens_and_no_rows(models: dict) -> None:
    for shape in ((0, 5), (2, 0)):
        with na.patch(models["bloom"], na.NTK(2.0)):
            assert run(models["bloom"], torch.zeros(shape, dtype=torch.long)).shape == (
                *shape,
                VOCABULARY,
            )


def test_the_tested_versions_are_those_declared() -> None:
    assert transformers_versions.TRANSFORMERS_VERSIONS[0] <= Version(transformers.__version__)


def test_unpatch_takes_back_what_others_patched(ids: torch.Tensor) -> None:
    model = make_model("bloom")
    before, stock = state_of(model), run(model, ids)
    assert na.patched(model) == []
    na.patch(model, na.NTK(2.0))
    kept = na.patch(model.transformer, na.FlatHeads(8.0), attention="eager")
    found = na.patched(model)
    assert [(x.scaling, x.attention) for x in found] == [
        (na.NTK(2.0), "fused"),
        (na.FlatHeads(8.0), "eager"),
    ]
    found[0].undo()
    assert [x.scaling for x in na.patched(model)] == [kept.scaling]
    clone = copy.deepcopy(model)
    na.unpatch(model)
    na.unpatch(model)
    assert na.patched(model) == []
    assert state_of(model) == before
    assert torch.equal(run(model, ids), stock)
    assert [x.scaling for x in na.patched(clone)] == [kept.scaling]
    kept.undo()
    na.unpatch(clone)
    assert torch.equal(run(clone, ids), stock)


def test_unpatch_keeps_what_a_configuration_asks_for(ids: torch.Tensor) -> None:
    model = make_model("bloom", attn_implementation="ntk_alibi")
    stock = run(model, ids)
    na.patch(model, na.NTK(4.0))
    na.unpatch(model)
    assert na.patched(model) == []
    assert torch.equal(run(model, ids), stock)


def test_modules_without_attention_have_no_patches() -> None:
    assert na.patched(torch.nn.Linear(1, 1)) == []
    na.unpatch(torch.nn.Linear(1, 1))
    for function in (na.patched, na.unpatch):
        with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module"):
            function("bloom")
