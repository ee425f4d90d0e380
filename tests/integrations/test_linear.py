"""Products of a patched model's linear layers: right, and torch's own in all unusual calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from linear_products import ONEDNN, inputs, needs_onednn, operators, patched_layer


@pytest.fixture
def layer() -> nn.Linear:
    return patched_layer()


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
@torch.no_grad()
def test_hooks_of_layers_run(layer: nn.Linear) -> None:
    seen: list[torch.Tensor] = []
    layer.register_forward_hook(lambda *arguments: seen.append(arguments[2]))
    layer.register_forward_pre_hook(lambda _, arguments: (2 * arguments[0],))
    x = INPUTS["a batch"]
    result = layer(x)
    assert torch.equal(seen[0], result)
    torch.testing.assert_close(result, F.linear(2 * x, layer.weight, layer.bias), atol=1e-5, rtol=0)
