"""Products of linear layers of patched models: whose they are, and that they are right."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import ntk_alibi as na
from family_models import LOGITS, families, make_model
from ntk_alibi import _core
from ntk_alibi.integrations import linear
from padded_batches import MASKS, run

ONEDNN = "mkldnn::_linear_pointwise"

needs_onednn = pytest.mark.skipif(
    linear.PRODUCT is None, reason="this torch has no product of oneDNN"
)


def operators(call: Callable[[], object]) -> set[str]:
    """Return the names of the operators that a call runs."""
    with torch.profiler.profile() as profile:
        call()
    return {event.key for event in profile.key_averages()}


def layer_of(model: Any) -> nn.Linear:
    layer: nn.Linear = model.transformer.h[0].mlp.dense_h_to_4h
    return layer


@pytest.fixture
def layer() -> Any:
    """A layer of a patched BLOOM that takes oneDNN's products, (in, out) = (128, 512)."""
    model = make_model("bloom")
    na.patch(model, linear="onednn")
    return layer_of(model)


def inputs(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


INPUTS = {
    "one row": inputs(128),
    "a token": inputs(1, 1, 128),
    "a batch": inputs(3, 37, 128),
    "no rows": inputs(0, 5, 128),
    "four dimensions": inputs(2, 3, 5, 128),
    "transposed": inputs(128, 33).T,
    "rows swapped": inputs(4, 9, 128).transpose(0, 1),
    "every second": inputs(2, 5, 256)[..., ::2],
    "expanded": inputs(1, 1, 128).expand(2, 7, 128),
    "negated lazily": torch.complex(inputs(3, 128), inputs(3, 128)).conj().imag,
}


@needs_onednn
@pytest.mark.parametrize("x", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
@torch.no_grad()
def test_products_are_right_within_the_bound_of_float32_sums(
    layer: nn.Linear, x: torch.Tensor, bias: bool, transposed: bool
) -> None:
    """n terms of float32, in any order, are off by (n - 1 + products) 2^-24 of their sizes."""
    if not bias:
        layer.bias = None
    elif layer.bias is not None:
        layer.bias.normal_()
    if transposed:
        layer.weight = nn.Parameter(layer.weight.T.contiguous().T)
    exact = [None if y is None else y.double() for y in (layer.weight, layer.bias)]
    sizes = F.linear(x.double().abs(), *(None if y is None else y.abs() for y in exact))
    result = layer(x)
    assert result.shape == (*x.shape[:-1], 512)
    assert result.dtype == torch.float32
    terms = layer.in_features + 1
    assert bool(
        ((result - F.linear(x.double(), *exact)).abs() <= terms * 2.0**-24 * sizes * 1.01).all()
    )
    assert ONEDNN in operators(lambda: layer(x))


@needs_onednn
@torch.no_grad()
def test_products_do_not_depend_on_the_number_of_threads(layer: nn.Linear) -> None:
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(layer(INPUTS["a batch"]))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(result, results[0]) for result in results)


def _records(layer: nn.Linear) -> torch.Tensor:
    with torch.enable_grad():
        return layer(INPUTS["a batch"])


def _autocasts(layer: nn.Linear) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return layer(INPUTS["a batch"])


def _counts(layer: nn.Linear) -> torch.Tensor:
    with FlopCounterMode(display=False) as counter:
        result: torch.Tensor = layer(INPUTS["a batch"])
    assert counter.get_total_flops() == 2 * 3 * 37 * 128 * 512
    return result


def _disables(layer: nn.Linear) -> torch.Tensor:
    torch._C._set_mkldnn_enabled(False)  # its public form warns of Intel's GPUs
    try:
        return layer(INPUTS["a batch"])
    finally:
        torch._C._set_mkldnn_enabled(True)


def _differentiates_forwards(layer: nn.Linear) -> torch.Tensor:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(INPUTS["a batch"], INPUTS["a batch"])
        result, tangent = forward_ad.unpack_dual(layer(x))
        assert tangent is not None
        return result.clone()


def _doubles(layer: nn.Linear) -> torch.Tensor:
    return layer.double()(INPUTS["a batch"].double())


def _halves(layer: nn.Linear) -> torch.Tensor:
    return layer.bfloat16()(INPUTS["a batch"].bfloat16())


def _maps(layer: nn.Linear) -> torch.Tensor:
    return torch.vmap(layer)(INPUTS["a batch"])


def _compiles(layer: nn.Linear) -> torch.Tensor:
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    return compiled(INPUTS["a batch"])


def _exports(layer: nn.Linear) -> torch.Tensor:
    program = torch.export.export(layer, (INPUTS["a batch"],))
    assert "aten.linear.default" in {str(node.target) for node in program.graph.nodes}
    result: torch.Tensor = program.module()(INPUTS["a batch"])
    return result


def _has_weights_of_another_class(layer: nn.Linear) -> torch.Tensor:
    class Other(nn.Parameter):
        pass

    layer.weight = Other(layer.weight.detach())
    return layer(INPUTS["a batch"])


UNUSUAL = [
    _records, _autocasts, _counts, _disables, _differentiates_forwards, _doubles, _halves, _maps,
    _compiles, _exports, _has_weights_of_another_class,
]  # fmt: skip


@needs_onednn
@pytest.mark.parametrize("call", UNUSUAL, ids=lambda call: call.__name__[1:])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@torch.no_grad()
def test_unusual_calls_are_torchs_to_the_bit(
    layer: nn.Linear, call: Callable[[nn.Linear], torch.Tensor]
) -> None:
    stock = nn.Linear(128, 512)
    stock.load_state_dict(layer.state_dict())
    expected = call(stock)
    result: list[torch.Tensor] = []
    assert ONEDNN not in operators(lambda: result.append(call(layer)))
    assert torch.equal(result[0], expected)


@torch.no_grad()
def test_wrong_inputs_raise_torchs_errors(layer: nn.Linear) -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        layer(inputs(3, 127))
    with pytest.raises(RuntimeError, match="same dtype"):
        layer(inputs(3, 128).double())
    with pytest.raises(TypeError, match="must be Tensor, not list"):
        layer([1.0] * 128)


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
    def state() -> list[Any]:
        return [(part, sorted(vars(module))) for part, module in model.named_modules()]

    model = make_model(name)
    before = state()
    outer = na.patch(model, linear="onednn")
    replaced = [x for x in model.transformer.modules() if type(x).__name__.endswith("Linear")]
    assert len(replaced) == 3 * 4
    assert all("forward" in vars(x) for x in replaced)
    inner = na.patch(model, linear="torch")
    assert not any("forward" in vars(x) for x in replaced)
    outer.undo()
    assert not any("forward" in vars(x) for x in replaced)
    inner.undo()
    assert state() == before
    na.patch(model, linear="onednn")
    assert "linear='onednn'" in repr(na.patched(model)[0])
    na.unpatch(model)
    assert state() == before


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
@torch.no_grad()
def test_hooks_of_layers_run(layer: nn.Linear) -> None:
    seen: list[torch.Tensor] = []
    layer.register_forward_hook(lambda *arguments: seen.append(arguments[2]))
    layer.register_forward_pre_hook(lambda _, arguments: (2 * arguments[0],))
    x = INPUTS["a batch"]
    result = layer(x)
    assert torch.equal(seen[0], result)
    torch.testing.assert_close(result, F.linear(2 * x, layer.weight, layer.bias), atol=1e-5, rtol=0)


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
@torch.no_grad()
def test_auto_asks_for_the_maker_and_the_size(
    monkeypatch: pytest.MonkeyPatch, ids: torch.Tensor, vendor: str
) -> None:
    monkeypatch.setattr(_core, "cpu_vendor", lambda: vendor)
    slow = vendor == "amd" and torch.backends.mkl.is_available()
    expected = slow and linear.PRODUCT is not None
    model = make_model("bloom", heads=32)  # 512 channels
    na.patch(model)
    block, x = model.transformer.h[0], inputs(3, 512)
    assert (ONEDNN in operators(lambda: block.mlp.dense_h_to_4h(x))) == expected
    assert ONEDNN not in operators(lambda: block.self_attention.dense(x))
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
