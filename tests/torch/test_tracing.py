"""`na.attention` where torch traces it other than by torch.compile, and on other tensor classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor

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


def test_modes_that_do_not_trace_change_nothing() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    bias = na.ALiBi(4, na.DynamicNTK(2.0, 16))
    expected = na.attention(*three(0), bias)
    with FlopCounterMode(display=False):
        assert torch.equal(na.attention(*three(0), bias), expected)


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


def test_values_of_traced_masks_and_lengths_are_not_read() -> None:
    message = " must not be a tensor where torch traces"
    mask, lengths = torch.ones(2, 9), torch.tensor([9, 3])
    with pytest.raises(ValueError, match="attention_mask" + message):
        make_fx(lambda x: na.build_alibi_tensor(x, 4, torch.float32))(mask)
    bias = na.ALiBi(4, na.DynamicNTK(2.0, 4))
    with pytest.raises(ValueError, match="lengths" + message):
        make_fx(lambda x: bias.tensor(9, 9, torch.float32, lengths=x))(lengths)


def test_a_dynamic_scaling_is_refused_where_torch_traces() -> None:
    bias = na.ALiBi(4, na.DynamicNTK(2.0, 16))
    with pytest.raises(ValueError, match=r"scaling must be None or one of .* where torch"):
        make_fx(lambda *x: na.attention(*x, bias))(*three(0))


def test_tensor_classes_with_their_own_operations() -> None:
    def pair(x: torch.Tensor) -> TwoTensor:
        return TwoTensor(x, x)

    x, mask = three(0), torch.ones(2, 9)
    message = " must be a plain tensor, got a TwoTensor"
    with pytest.raises(TypeError, match="query" + message):
        na.attention(*map(pair, x))
    with pytest.raises(TypeError, match="key_padding_mask" + message):
        na.attention(*x, key_padding_mask=pair(mask))
    with pytest.raises(TypeError, match="query_positions" + message):
        na.attention(*x, query_positions=pair(torch.arange(9)))
    with pytest.raises(TypeError, match="bias" + message):
        na.attention(*x, pair(torch.ones(9, 9)))
    with pytest.raises(TypeError, match="attention_mask" + message):
        na.build_alibi_tensor(pair(mask), 4, torch.float32)
    with pytest.raises(TypeError, match="table" + message):
        na.DistanceTable(pair(torch.ones(4, 9)))


def test_classes_without_their_own_operations_are_plain() -> None:
    class Named(torch.Tensor):
        pass

    x = three(0)
    named = [y.as_subclass(Named) for y in x]
    assert torch.equal(na.attention(*named), na.attention(*x))
    assert torch.equal(na.attention(*map(torch.nn.Parameter, x)), na.attention(*x))
