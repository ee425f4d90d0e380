"""FlexAttention on the CPU: its compiled forward pass, its joint graph, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import ROUNDING, UNIT, expected, inputs, pair_mask, visible
from device_calls import by_pairs, device_call
from ntk_alibi.fused.tensors.devices import flex
from ntk_alibi.fused.tensors.devices.score_mods import capture_tensors, choose_variant

KERNEL = flex.FlexAttention()
SLOPES = na.alibi_slopes(4)

# Dynamo asks tensors that are no leaves for their gradients, and Inductor imports what torch calls
# outdated.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def no_compiled_code_stays() -> Iterator[None]:
    yield
    torch.compiler.reset()


def attend(call: Any) -> torch.Tensor:
    """Return the output of the compiled kernel, which must support the call."""
    assert KERNEL.find_obstacle(call, log=False) is None
    with torch.no_grad():
        return KERNEL.compute(call, log=False)[0]


def gates(shape: tuple[int, ...]) -> torch.Tensor:
    return -0.1 * torch.rand(shape, generator=torch.Generator().manual_seed(7))


def table() -> na.DistanceTable:
    values = torch.randn(4, 800, generator=torch.Generator().manual_seed(8))
    return na.DistanceTable(values, -400)


#: One call for each variant that is compiled: bias and options.
FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "no bias": (None, {}),
    "slopes": (na.ALiBi(4, na.NTK(4.0)), {"window": 150, "sink": 5}),
    "slopes of queries": (
        na.ALiBi(4, na.DynamicNTK(2.0, 64)),
        {"key_padding_mask": np.arange(300) >= np.array([[0], [130]])},
    ),
    "two sides": (
        na.ALiBi(4, slopes=(SLOPES, SLOPES / 2), sides="two_slopes"),
        {"causal": False, "window": 90},
    ),
    "blocks": (na.ALiBi(4), {"causal_block": 70, "sink": 3}),
    "halves": (na.ALiBi(4, sides="halves"), {"causal": False}),
    "a table": (table(), {"causal": False}),
    "sums": (na.ForgetGates(gates((2, 4, 300))), {}),
    "dense": (torch.randn(4, 1, 300, generator=torch.Generator().manual_seed(9)), {}),
    "exempt": (na.ALiBi(4, sides="symmetric", exempt=7), {"causal": False}),
    "a constant": (
        na.BiALiBi(*(0.1 * torch.arange(1.0, 5.0) for _ in range(3))),
        {"causal": False},
    ),
    "factors": (na.ALiBi(4), {"log_n": na.LogN(16, (0.5, 1.0, 1.5, 2.0))}),
    "a mask": (na.ALiBi(4), {"mask": torch.from_numpy(pair_mask("half", (2, 4, 200, 300)))}),
    "a mask of documents": (
        None,
        {"causal": False, "mask": torch.from_numpy(pair_mask("documents", (1, 1, 200, 300)))},
    ),
    "positions": (
        na.ALiBi(4),
        {"key_positions": np.arange(300) * 2, "query_positions": np.arange(200) * 3},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_compiled_forms_equal_the_same_scores_pair_by_pair(name: str) -> None:
    """Both compute the same float32 scores in other orders; the pairs are checked elsewhere."""
    bias, options = FORMS[name]
    arrays = inputs(2, 4, 2, 200, 300, 32)
    call = device_call(*map(torch.from_numpy, arrays), bias, **options)
    wide = device_call(*(torch.from_numpy(x).double() for x in arrays), bias, **options)
    with torch.no_grad():
        exact, _ = by_pairs(wide)
    values, _ = wide.bias.values(*wide.problem.positions(wide.query))
    norms = [float(torch.from_numpy(x).norm(dim=-1).max()) for x in arrays[:2]]
    factor = 1.0 if wide.factors is None else float(wide.factors.max())
    product = factor * norms[0] * norms[1] / 32**0.5
    # 32 products and 8 roundings of a score, 8 of the bias; a weight has twice the error of its
    # score, and 300 weights are summed twice.
    of_score = 40 * product + 8 * float(values.abs().max())
    error = UNIT * (2 * of_score + 2 * 300) * float(np.abs(arrays[2]).max())
    assert float((attend(call).double() - exact).abs().max()) < error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "queries", "keys"),
    [
        ("float32", 256, 256),
        ("float32", 200, 300),
        ("bfloat16", 130, 333),
        ("float16", 1, 300),
    ],
)
def test_compiled_slopes_equal_the_reference(dtype: str, queries: int, keys: int) -> None:
    arrays = inputs(2, 4, 2, queries, keys, 32, dtype)
    tensors = [torch.from_numpy(x.astype(np.float32)).to(getattr(torch, dtype)) for x in arrays]
    output = attend(device_call(*tensors, na.ALiBi(4, na.NTK(2.0))))
    at_queries, at_keys = np.arange(keys - queries, keys), np.arange(keys)
    slopes = na.alibi_slopes(4, na.NTK(2.0)).astype(np.float64)
    bias = -slopes[:, None, None] * (at_queries[:, None] - at_keys)[None, None]
    bias = np.where(visible(at_queries, at_keys), bias, -np.inf)
    what = expected(*arrays, np.broadcast_to(bias, (2, 4, queries, keys)), 32**-0.5)
    assert output.dtype == getattr(torch, dtype)
    mine = output.double().numpy()
    # The kernel rounds weights to the dtype before it multiplies them by the values.
    weights = 2 * ROUNDING[dtype] * float(np.abs(arrays[2].astype(np.float64)).max())
    assert (np.abs(mine - what.output) <= what.output_error + weights).all()


@pytest.mark.needs("torch >= 2.11", "older ones read entries of a changing size as values")
@pytest.mark.parametrize(
    ("batch", "queries", "lengths", "backend", "known"),
    [
        (1, 1, (300, 513), "AUTO", True),
        (40, 1, (300, 513), "TRITON", False),
    ],
)
def test_keys_of_a_single_query_may_be_divided(
    batch: int, queries: int, lengths: tuple[int, int], backend: str, known: bool
) -> None:
    """FlexAttention divides them where it knows the number of rows, for any number of keys."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = None
    for keys in lengths:
        query, key = torch.randn(batch, 8, queries, 16), torch.randn(batch, 2, keys, 16)
        call = device_call(query, key, key, na.ALiBi(8))
        variant = choose_variant(call, padded=False, log=False)
        if compiled is None:
            function = flex.make_function(variant)
            compiled = torch.compile(function, backend=keep, dynamic=True, fullgraph=True)
        with torch.no_grad():
            output, _ = compiled(
                call.query, call.key, call.value, capture_tensors(call, queries, keys)
            )
        torch.testing.assert_close(output, by_pairs(call)[0], rtol=0, atol=1e-5)
    (graph,) = graphs
    (node,) = graph.graph.find_nodes(
        op="call_function", target=torch.ops.higher_order.flex_attention
    )
    shape = node.args[0].meta["example_value"].shape
    assert node.args[6]["BACKEND"] == backend
    assert [str(x).isdigit() for x in shape] == [known, True, queries == 1, True]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slopes", "a table", "sums", "dense", "a constant"])
def test_the_joint_graph_of_learned_parameters(name: str) -> None:
    """FlexAttention's own derivatives of captured tensors; on the CPU it has no others."""
    causal = name == "sums"
    parameters = (0.1 + torch.rand(4, 260)).requires_grad_()

    def bias() -> Any:
        if name == "a constant":
            return na.BiALiBi(parameters[:, 0], parameters[:, 1], parameters[:, 2])
        return {
            "slopes": lambda: na.ALiBi(4, slopes=parameters[:, 0], sides="symmetric"),
            "a table": lambda: na.DistanceTable(parameters, -130),
            "sums": lambda: na.ForgetGates(-parameters[None, :, :130].expand(2, -1, -1)),
            "dense": lambda: parameters[:, :130, None],
        }[name]()

    tensors = [torch.randn(2, 4, 130, 16) for _ in range(3)]
    call = device_call(*tensors, bias(), causal=causal)
    rows = [torch.nn.functional.pad(x, (0, 0, 0, 126)) for x in tensors]
    variant = choose_variant(call, padded=True, log=True)
    compiled = torch.compile(flex.make_function(variant), backend="aot_eager", fullgraph=True)
    output, logsumexp = compiled(*rows, capture_tensors(call, 256, 256))
    weights = torch.randn(2, 4, 130, 16)

    def derivative(output: torch.Tensor, logsumexp: torch.Tensor) -> torch.Tensor:
        loss = (output * weights).sum() + logsumexp.sin().sum()
        (gradient,) = torch.autograd.grad(loss, parameters)
        return gradient.double()

    mine = derivative(output[:, :, :130], logsumexp[:, :, :130])
    wide = device_call(*(x.double() for x in tensors), bias(), causal=causal)
    exact = derivative(*by_pairs(wide))
    assert float((mine - exact).abs().max()) < 1e-4 * float(exact.abs().max() + 1.0)


def refusal(call: Any, *, log: bool = False) -> str:
    reason = KERNEL.find_obstacle(call, log=log)
    assert reason is not None
    return reason


def test_what_flex_attention_cannot_do() -> None:
    x = torch.randn(1, 4, 9, 16)
    assert KERNEL.find_obstacle(device_call(x, x, x), log=False) is None
    assert "no logsumexp" in refusal(device_call(x, x, x), log=True)
    assert "float64" in refusal(device_call(*[x.double()] * 3))
    assert "no kernels for meta" in refusal(device_call(*[x.to("meta")] * 3))
    assert "no queries or no keys" in refusal(device_call(x[:, :, :0], x, x))
    slopes = torch.rand(4).requires_grad_()
    learned = device_call(x, x, x, na.ALiBi(4, slopes=slopes))
    assert "no gradients on cpu" in refusal(learned)
    with torch.no_grad():
        assert KERNEL.find_obstacle(learned, log=False) is None
