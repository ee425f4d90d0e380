"""Kernels on a GPU against float64 on the CPU; benchmarks/results/gpu.md has what ran where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM

import ntk_alibi as na
from attention_checks import ROUNDING
from conformance import WAYS, Expectation, loss, tensors
from conformance_cases import CASES
from device_calls import device_call
from ntk_alibi.fused.tensors.devices.flash import FlashAttention
from ntk_alibi.fused.tensors.devices.flex import FlexAttention
from ntk_alibi.models import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]


def random_inputs(
    device: str,
    *lengths: int,
    dtype: torch.dtype = torch.bfloat16,
    dim: int = 64,
    batch: int = 2,
) -> list[torch.Tensor]:
    """Return query, key and value of 8 and 2 heads on a device, which require grad."""
    random = torch.Generator().manual_seed(0)
    shapes = [(batch, heads, n, dim) for heads, n in zip((8, 2, 2), lengths, strict=True)]
    return [
        torch.randn(shape, generator=random).to(device, dtype).requires_grad_() for shape in shapes
    ]


def check(
    sources: list[torch.Tensor], attend: Callable[..., torch.Tensor], bias: Any, **options: Any
) -> None:
    """Compare output and gradients with float64 on the CPU.

    Scores and weights are rounded to the dtype once each in a kernel of half precision, results
    once more; a gradient is a product of three such values.
    """
    wide = [x.detach().double().cpu().requires_grad_() for x in sources]
    exact = na.attention(*wide, bias, **options)
    output = attend(*sources)
    unit = max(ROUNDING[str(sources[0].dtype)[6:]], 2.0**-20)
    assert output.dtype == sources[0].dtype
    largest = max(float(x.abs().max()) for x in wide)
    assert float((output.double().cpu() - exact).abs().max()) <= 8 * unit * largest
    weights = torch.randn(exact.shape, generator=torch.Generator().manual_seed(1)).double()
    theirs = torch.autograd.grad((exact * weights).sum(), wide)
    mine = torch.autograd.grad((output * weights.to(output)).sum(), sources)
    for a, b in zip(mine, theirs, strict=True):
        assert float((a.double().cpu() - b).abs().max()) <= 32 * unit * float(b.abs().max() + 1)


@pytest.mark.parametrize("way", ["plain", "both sides", "a window and sinks on both sides"])
@pytest.mark.parametrize("name", CASES)
def test_every_bias_with_gradients(name: str, way: str, cuda: str) -> None:
    """Cases of 8 channels take the chunks, which are the yardstick: Triton multiplies 16."""
    case, kind = CASES[name], WAYS[way]
    if kind.refusal(case) is not None:
        pytest.skip("refused by every kernel")
    sources = [x.to(cuda).detach().requires_grad_() for x in tensors(case, kind)]
    options = kind.given(tensors=True)
    result = na.attention(*sources[:3], case.make(*sources[3:]), **options, return_logsumexp=True)
    expectation = Expectation(case, kind)
    expectation.check(tuple(x.cpu() for x in result))
    on_cpu = loss(*(x.cpu() for x in result))
    gradients = torch.autograd.grad(on_cpu, sources, materialize_grads=True)
    expectation.check_gradients([x.cpu() for x in gradients])


BIASES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "slopes": lambda: na.ALiBi(8, na.NTK(4.0)),
    "dynamic": lambda: na.ALiBi(8, na.DynamicNTK(2.0, 64)),
    "a table": lambda: na.DistanceTable(torch.randn(8, 600)),
    "sums": lambda: na.ForgetGates(-0.1 * torch.rand(2, 8, 513)),
    "dense": lambda: torch.randn(8, 1, 513),
    "exempt": lambda: na.ALiBi(8, exempt=5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("batch", "queries"), [(1, 1), (2, 1), (1, 100), (2, 256), (2, 513)])
@pytest.mark.parametrize("name", BIASES)
def test_flex_attention(name: str, batch: int, queries: int, dtype: torch.dtype, cuda: str) -> None:
    """A single query's keys are divided, without gradients; one of 100 has heads that share."""
    bias = BIASES[name]()
    if batch == 1 and name == "sums":
        bias = na.ForgetGates(-0.1 * torch.rand(1, 8, 513))

    def attend(*x: torch.Tensor) -> torch.Tensor:
        call = device_call(*x, bias)
        assert FlexAttention().find_obstacle(call, log=False) is None
        return FlexAttention().compute(call, log=False)[0]

    sources = random_inputs(cuda, queries, 513, 513, dtype=dtype, batch=batch)
    check(sources, attend, bias)
    with torch.no_grad():
        alone, output = attend(*sources), attend(*(x.detach().clone() for x in sources))
    torch.testing.assert_close(alone, output)


@pytest.mark.parametrize("name", ["a table", "slopes", "dense"])
def test_gradients_of_learned_parameters(name: str, cuda: str) -> None:
    made = {
        "slopes": lambda x: na.ALiBi(8, slopes=x[:, 0], sides="symmetric"),
        "a table": lambda x: na.DistanceTable(x, -513),
        "dense": lambda x: x[:, None, :513],
    }[name]
    start = torch.rand(8, 1027)

    def derivative(device: str, dtype: torch.dtype) -> torch.Tensor:
        parameters = start.to(device).requires_grad_()
        sources = [x.detach().to(dtype) for x in random_inputs(device, 513, 513, 513)]
        output = na.attention(*sources, made(parameters), causal=False)
        (gradient,) = torch.autograd.grad(output.double().square().sum(), parameters)
        return gradient.double().cpu()

    mine, exact = derivative(cuda, torch.float32), derivative("cpu", torch.float64)
    torch.testing.assert_close(mine, exact, rtol=0, atol=1e-3 * float(exact.abs().max()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("queries", [1, 300, 513])
def test_flash_attention(queries: int, window: int | None, dtype: torch.dtype, cuda: str) -> None:
    pytest.importorskip("flash_attn")
    bias = na.ALiBi(8, na.NTK(4.0))

    def attend(*x: torch.Tensor) -> torch.Tensor:
        call = device_call(*x, bias, window=window)
        assert FlashAttention().find_obstacle(call, log=False) is None
        return FlashAttention().compute(call, log=False)[0]

    check(random_inputs(cuda, queries, 513, 513, dtype=dtype), attend, bias, window=window)


def test_a_patched_model_generates_what_it_does_on_the_cpu(cuda: str) -> None:
    model: Any = load()[0]
    na.patch(model, na.NTK(4.0))
    ids = torch.arange(5, 105)[None]
    expected = model.generate(ids, max_new_tokens=20, do_sample=False)
    mine = model.to(cuda).generate(ids.to(cuda), max_new_tokens=20, do_sample=False)
    assert torch.equal(mine.cpu(), expected)


def test_a_patched_pass_does_not_wait_for_the_device(cuda: str) -> None:
    model: Any = BloomForCausalLM(
        BloomConfig(vocab_size=64, hidden_size=128, n_layer=2, n_head=4)
    ).to(cuda, torch.bfloat16)
    na.patch(model, na.NTK(4.0))
    ids = torch.ones(1, 200, dtype=torch.long, device=cuda)
    with torch.no_grad():
        model(ids)  # compiles, and copies slopes
        torch.cuda.set_sync_debug_mode("error")
        try:
            model(ids)
        finally:
            torch.cuda.set_sync_debug_mode("default")
