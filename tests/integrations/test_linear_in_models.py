"""Products of the linear layers of whole models: who gets them, and that all is restored."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NoReturn

import pytest
import torch
from torch import nn

import ntk_alibi as na
from family_models import LOGITS, families, make_model
from linear_products import ONEDNN, inputs, layer_of, needs_onednn, operators
from model_runs import state_of
from ntk_alibi import _core
from ntk_alibi.integrations import linear
from padded_batches import MASKS, run


@needs_onednn
@families
@pytest.mark.parametrize("mask", [None, MASKS["left"]], ids=["unpadded", "left"])
def test_models_compute_the_same(name: str, mask: Any, ids: torch.Tensor) -> None:
    model = make_model(name)
    stock = run(model, ids, mask)
    with na.patch(model, linear="torch"):
        expected = run(model, ids, mask)
        assert ONEDNN not in operators(lambda: run(model, ids, mask))
        with na.patch(model, linear="onednn"):
            torch.testing.assert_close(run(model, ids, mask), expected, **LOGITS)
            assert ONEDNN in operators(lambda: run(model, ids, mask))
        assert torch.equal(run(model, ids, mask), expected)
    assert torch.equal(run(model, ids, mask), stock)


@needs_onednn
@families
def test_every_layer_is_restored(name: str) -> None:
    model = make_model(name)
    before = state_of(model)
    outer = na.patch(model, linear="onednn")
    replaced = [x for x in model.modules() if type(x).__name__.endswith("Linear")]
    assert len(replaced) == 3 * 4 + 1
    assert all("forward" in vars(x) for x in replaced)
    inner = na.patch(model, linear="torch")
    assert not any("forward" in vars(x) for x in replaced)
    outer.undo()
    assert not any("forward" in vars(x) for x in replaced)
    inner.undo()
    assert state_of(model) == before
    na.patch(model, linear="onednn")
    assert "linear='onednn'" in repr(na.patched(model)[0])
    na.unpatch(model)
    assert state_of(model) == before


@needs_onednn
@torch.no_grad()
def test_the_layer_of_logits_goes_with_its_model() -> None:
    model = make_model("bloom")
    before, x = sorted(vars(model.transformer)), inputs(3, 128)
    na.patch(model, linear="onednn")
    assert ONEDNN in operators(lambda: model.lm_head(x))
    assert [name for name, _ in model.named_modules(remove_duplicate=False)].count("lm_head") == 1
    inner = na.patch(model.transformer, linear="torch")
    assert ONEDNN not in operators(lambda: model.lm_head(x))
    inner.undo()
    assert ONEDNN in operators(lambda: model.lm_head(x))
    na.unpatch(model.transformer)
    assert ONEDNN not in operators(lambda: model.lm_head(x))
    assert sorted(vars(model.transformer)) == before
    na.patch(model.transformer, linear="onednn")
    assert ONEDNN not in operators(lambda: model.lm_head(x))
    na.unpatch(model)


@needs_onednn
@pytest.mark.parametrize("how", ["copied", "pickled"])
def test_copies_have_products_of_their_own_weights(ids: torch.Tensor, how: str) -> None:
    model = make_model("bloom")
    with na.patch(model, linear="onednn"):
        clone = copy.deepcopy(model) if how == "copied" else pickle.loads(pickle.dumps(model))
        expected = run(model, ids)
    assert torch.equal(run(clone, ids), expected)
    assert ONEDNN in operators(lambda: run(clone, ids))
    with torch.no_grad():
        layer_of(clone).weight.zero_()
    assert not torch.equal(run(clone, ids), expected)
    na.unpatch(clone)
    assert "forward" not in vars(layer_of(clone))


@needs_onednn
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("patched_first", [False, True])
def test_lora_layers(ids: torch.Tensor, patched_first: bool) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        target_modules=["query_key_value"], init_lora_weights=False, task_type="CAUSAL_LM"
    )
    model = make_model("bloom")
    if patched_first:
        na.patch(model, linear="onednn")
    wrapped = peft.get_peft_model(model, config).eval()
    if not patched_first:
        na.patch(wrapped, linear="onednn")
    fast = run(wrapped, ids)
    assert ONEDNN in operators(lambda: run(wrapped, ids))
    na.unpatch(wrapped)
    assert not any("forward" in vars(x) for x in wrapped.modules())
    with na.patch(wrapped, linear="torch"):
        torch.testing.assert_close(fast, run(wrapped, ids), **LOGITS)


@needs_onednn
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per:UserWarning")
@pytest.mark.parametrize("patched_first", [False, True])
def test_quantised_layers_keep_their_own_products(ids: torch.Tensor, patched_first: bool) -> None:
    model = make_model("bloom")
    if patched_first:
        na.patch(model, linear="onednn")
    model = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    if not patched_first:
        na.patch(model, linear="onednn")
    fast = run(model, ids)
    assert ONEDNN not in operators(lambda: run(model, ids))
    with na.patch(model, linear="torch"):
        assert torch.equal(run(model, ids), fast)
    na.unpatch(model)


@needs_onednn
@pytest.mark.parametrize("hooks_first", [False, True])
def test_hooks_of_accelerate_on_layers(ids: torch.Tensor, hooks_first: bool) -> None:
    hooks = pytest.importorskip("accelerate").hooks
    model = make_model("bloom")
    expected = run(model, ids)

    def add_hook() -> None:
        hook = hooks.AlignDevicesHook("cpu", io_same_device=True)
        hooks.add_hook_to_module(layer_of(model), hook)

    if hooks_first:
        add_hook()
    with na.patch(model, linear="onednn"):
        if not hooks_first:
            add_hook()
        torch.testing.assert_close(run(model, ids), expected, **LOGITS)
    assert torch.equal(run(model, ids), expected)


@needs_onednn
@torch.no_grad()
def test_a_layer_with_a_forward_of_its_own_keeps_it() -> None:
    model = make_model("bloom")
    layer = layer_of(model)
    layer.forward = lambda x: x + 1  # type: ignore[method-assign]
    with na.patch(model, linear="onednn"):
        assert torch.equal(layer(torch.zeros(3)), torch.ones(3))
    assert torch.equal(layer(torch.zeros(3)), torch.ones(3))


@pytest.mark.parametrize("vendor", ["amd", "intel"])
@pytest.mark.parametrize("instructions", ["AVX2", "AVX512"])
@torch.no_grad()
def test_auto_asks_for_the_processor_and_the_sizes(
    monkeypatch: pytest.MonkeyPatch, ids: torch.Tensor, vendor: str, instructions: str
) -> None:
    monkeypatch.setattr(_core, "cpu_vendor", lambda: vendor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: instructions)
    slow = vendor == "amd" and torch.backends.mkl.is_available()
    expected = slow and linear.PRODUCT is not None
    model = make_model("bloom", heads=32)  # 512 channels
    na.patch(model)
    block, x = model.transformer.h[0], inputs(3, 512)
    assert (ONEDNN in operators(lambda: block.mlp.dense_h_to_4h(x))) == expected
    assert ONEDNN not in operators(lambda: block.self_attention.dense(x))
    for rows, has_it in ((256, expected), (257, expected and instructions == "AVX512")):
        many = inputs(1, rows, 512)
        assert (ONEDNN in operators(lambda: block.mlp.dense_h_to_4h(many))) == has_it  # noqa: B023
    with na.patch(model, attention="eager"):
        assert ONEDNN not in operators(lambda: run(model, ids))
        with na.patch(model, attention="eager", linear="onednn"):
            assert ONEDNN in operators(lambda: run(model, ids))


def test_a_torch_without_the_operator(monkeypatch: pytest.MonkeyPatch, ids: torch.Tensor) -> None:
    monkeypatch.setattr(linear, "PRODUCT", None)
    model = make_model("bloom")
    with na.patch(model, linear="torch"):
        expected = run(model, ids)
    with na.patch(model):
        assert torch.equal(run(model, ids), expected)
    with pytest.raises(ValueError, match=r"linear must be 'auto' or 'torch' where torch has no"):
        na.patch(model, linear="onednn")
    assert na.patched(model) == []


@pytest.mark.parametrize("other", ["missing", "arguments"])
def test_the_operator_is_known_by_its_arguments(
    monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    class Operators:
        def __getattr__(self, _: str) -> NoReturn:
            raise AttributeError

    namespace = Operators() if other == "missing" else torch.ops.aten
    if other == "arguments":
        monkeypatch.setattr(torch.ops.aten, "_linear_pointwise", torch.ops.aten.linear, False)
    monkeypatch.setattr(torch.ops, "mkldnn", namespace)
    assert linear.find_product() is None


def test_wrong_choices() -> None:
    with pytest.raises(ValueError, match="linear must be one of 'auto', 'torch', 'onednn', got 1"):
        na.patch(make_model("bloom"), linear=1)  # type: ignore[arg-type]
