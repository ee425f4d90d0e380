"""`na.attention` where torch traces it other than by torch.compile, and on other tensor classes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.flop_counter import FlopCounterMode

import ntk_alibi as na

BIASES = {"none": None, "ALiBi": na.ALiBi(4), "NTK": na.ALiBi(4, na.NTK(4.0))}
biases = pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)


def three(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn((2, 4, 9, 8), generator=generator) for _ in range(3)]


@biases
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("grad", [False, True])
def test_a_graph_of_make_fx_computes_anew(bias: Any, mode: Any, grad: bool) -> None:
    """A graph must not keep the values of the tensors that it was made with."""

    def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return na.attention(q, k, v, bias, key_padding_mask=mask)

    everything, later = torch.ones(2, 9), torch.arange(9) >= torch.tensor([[0], [3]])
    traced = [x.requires_grad_(grad) for x in three(0)]
    graph = make_fx(attend, tracing_mode=mode)(*traced, everything)
    assert torch.equal(graph(*three(1), later.float()), attend(*three(1), later))


@biases
def test_fake_tensors_have_shapes_only(bias: Any) -> None:
    with FakeTensorMode() as mode:
        query, key, value = map(mode.from_tensor, three(0))
        mask = mode.from_tensor(torch.ones(2, 9))
        output, logsumexp = na.attention(
            query, key, value, bias, key_padding_mask=mask, return_logsumexp=True
        )
    assert (output.shape, logsumexp.shape) == (query.shape, query.shape[:3])
    with pytest.raises(TypeError, match=r"query must be a plain .*, got a FakeTensor: .*inside"):
        na.attention(query, key, value, bias)


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


@DTYPES
@pytest.mark.parametrize("bias", [na.ALiBi(4, na.NTK(4.0)), na.Sandwich(4)], ids=repr)
def test_a_graph_keeps_the_tensor_of_a_bias(bias: Any, dtype: torch.dtype) -> None:
    def biased(scores: torch.Tensor) -> torch.Tensor:
        return scores + bias.tensor(9, 9, dtype)

    scores = torch.ones(1, 4, 9, 9)
    graph = make_fx(biased)(scores)
    assert torch.equal(graph(scores), biased(scores))
    with FakeTensorMode():
        assert bias.tensor(9, 9, dtype).shape == scores.shape


def test_tensor_classes_with_their_own_operations() -> None:
    def pair(x: torch.Tensor) -> TwoTensor:
        return TwoTensor(x, x)

    x, mask = three(0), torch.ones(2, 9)
    for name, call in {
        "query": lambda: na.attention(*map(pair, x)),
        "key_padding_mask": lambda: na.attention(*x, key_padding_mask=pair(mask)),
        "query_positions": lambda: na.attention(*x, query_positions=pair(torch.arange(9))),
        "bias": lambda: na.attention(*x, pair(torch.ones(9, 9))),
        "attention_mask": lambda: na.build_alibi_tensor(pair(mask), 4, torch.float32),
        "table": lambda: na.DistanceTable(pair(torch.ones(4, 9))),
    }.items():
        with pytest.raises(TypeError, match=f"^{name} must be a plain tensor, got a TwoTensor"):
            call()


def test_classes_without_their_own_operations_are_plain() -> None:
    class Named(torch.Tensor):
        pass

    x = three(0)
    named = [y.as_subclass(Named) for y in x]
    assert torch.equal(na.attention(*named), na.attention(*x))
    assert torch.equal(na.attention(*map(torch.nn.Parameter, x)), na.attention(*x))


TRACERS: dict[str, Callable[[torch.nn.Module, tuple[torch.Tensor, ...]], Any]] = {
    "torch.jit.trace": torch.jit.trace,
    "torch.fx": lambda module, _: torch.fx.symbolic_trace(module),
    "the older export to ONNX": lambda module, given: torch.onnx.export(
        module, given, io.BytesIO(), dynamo=False
    ),
}


class OfItself(na.AlibiAttention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x[0], x[0], x[0])


class Calling(torch.nn.Module):
    """A module of a function of one tensor."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: na.attention(x, x, x, na.ALiBi(4)),
        lambda x: na.attention(x.double(), x.double(), x.double()),
        lambda x: na.merge([x, x], [x[..., 0], x[..., 0]]),
        OfItself(4, 32),
    ],
    ids=["attention", "in float64", "merge", "AlibiAttention"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the tracers themselves
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_tracers_that_keep_constants_are_refused(function: Any, tracer: str) -> None:
    with torch.no_grad(), pytest.raises(ValueError, match=r"must not go through torch.jit.trace"):
        TRACERS[tracer](Calling(function), (torch.zeros(2, 4, 9, 32),))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripts_are_refused() -> None:
    layer = na.AlibiAttention(4, 32)
    for module in (layer, torch.nn.Sequential(layer)):
        with pytest.raises(ValueError, match=r"model must not go through .* torch.jit.script"):
            torch.jit.script(module)


@pytest.mark.parametrize("key_heads", [4, 1])
def test_flops_are_those_of_all_pairs(key_heads: int) -> None:
    """As torch counts its own attention: two products of all pairs, and five backward."""
    query = torch.randn(2, 4, 9, 8, requires_grad=True)
    key = torch.randn(2, key_heads, 21, 8)
    pairs = 2 * 4 * 9 * 21 * 8
    with FlopCounterMode(display=False) as counter:
        output = na.attention(query, key, key, na.ALiBi(4))
    assert counter.get_total_flops() == 4 * pairs
    with FlopCounterMode(display=False) as counter:
        output.sum().backward()
    assert counter.get_total_flops() == 10 * pairs
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        assert torch.equal(na.attention(query, key, key, na.ALiBi(4)), output)
    assert counter.get_total_flops() == 4 * pairs


def test_values_of_traced_masks_and_lengths_are_not_read() -> None:
    message = " must not be a tensor where torch traces"
    mask, lengths = torch.ones(2, 9), torch.tensor([9, 3])
    with pytest.raises(ValueError, match="attention_mask" + message):
        make_fx(lambda x: na.build_alibi_tensor(x, 4, torch.float32))(mask)
    bias = na.ALiBi(4, na.DynamicNTK(2.0, 4))
    with pytest.raises(ValueError, match="lengths" + message):
        make_fx(lambda x: bias.tensor(9, 9, torch.float32, lengths=x))(lengths)
