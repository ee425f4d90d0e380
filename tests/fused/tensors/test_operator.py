"""`na.attention` on tensors that require grad, are traced, cast or transformed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ntk_alibi as na
from ntk_alibi.fused.gradients import attention_gradients
from ntk_alibi.fused.tensors import operator
from ntk_alibi.masks import EVERYTHING


def tensors(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad) for _ in range(3)
    ]


def test_gradcheck_in_float64() -> None:
    query, key, value = (x.double().detach().requires_grad_() for x in tensors(1, 2, 5, 3))
    slopes = torch.rand(2, dtype=torch.float32)

    def attend(q: Any, k: Any, v: Any) -> Any:
        bias = na.ALiBi(2, slopes=slopes, sides="symmetric")
        return na.attention(q, k, v, bias, window=3, return_logsumexp=True)

    assert torch.autograd.gradcheck(attend, (query, key, value))


def test_the_logsumexp_alone_has_gradients() -> None:
    sources = tensors(1, 4, 40, 16)
    wide = [x.detach().double().requires_grad_() for x in sources]
    mine, theirs = (
        torch.autograd.grad(
            na.attention(*x, na.ALiBi(4), return_logsumexp=True)[1].sum(), x, allow_unused=True
        )
        for x in (sources, wide)
    )
    for a, b in zip(mine[:2], theirs[:2], strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)
    assert mine[2] is None or not mine[2].any()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_operator_registrations() -> None:
    query, key, value = tensors(1, 2, 9, 8)
    left = torch.rand(1, 2, 1).requires_grad_()
    right = torch.full((1, 2, 1), torch.inf)
    others = [None] * (len(operator.OPTIONAL_TENSORS) - 4)
    mask = torch.rand(1, 2, 9, 9) < 0.5
    inputs = (query, key, value, left, right, *others, torch.tensor(5), mask)
    others = (0, 0, EVERYTHING.to_integers(), True, 0.3, 0.0, [9000, 0, 1, 2, 3])
    torch.library.opcheck(operator._attention, (*inputs, *others))


@pytest.mark.parametrize("placed", ["keys", "both", "neither"])
def test_dynamic_scalings_count_the_same_with_gradients(placed: str) -> None:
    query, key, value = tensors(2, 4, 70, 16)
    positions = 3 * torch.arange(70)
    options: dict[str, Any] = {"key_positions": positions} if placed != "neither" else {}
    if placed == "both":
        options["query_positions"] = positions[10:]
    arguments = (query[:, :, 10:], key, value, na.ALiBi(4, na.DynamicNTK(2.0, 16)))
    recorded = na.attention(*arguments, **options)
    with torch.no_grad():
        torch.testing.assert_close(recorded, na.attention(*arguments, **options), rtol=0, atol=0)


def test_own_slopes_may_require_grad_where_nothing_is_recorded() -> None:
    query, key, value = tensors(1, 4, 40, 16)
    bias = na.ALiBi(4, slopes=torch.rand(4).requires_grad_())
    recorded = na.attention(query, key, value, bias)
    with torch.no_grad():
        torch.testing.assert_close(na.attention(query, key, value, bias), recorded, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vmap_is_a_loop(dtype: torch.dtype) -> None:
    query, key, value = (x.to(dtype) for x in tensors(1, 2, 9, 8, grad=False))
    stacked = [torch.stack([x, 2 * x]) for x in (query, key, value)]
    bias = na.ALiBi(2)
    mapped = torch.vmap(lambda *x: na.attention(*x, bias))(*stacked)
    of_queries = torch.vmap(lambda q: na.attention(q, key, value, bias))(stacked[0])
    for i in range(2):
        torch.testing.assert_close(mapped[i], na.attention(*(x[i] for x in stacked), bias))
        own = na.attention(stacked[0][i], key, value, bias)
        torch.testing.assert_close(of_queries[i], own)


def test_a_mapped_mask_does_not_count_tokens() -> None:
    query, key, value = tensors(1, 2, 9, 8, grad=False)
    bias = na.ALiBi(2, na.DynamicNTK(1.0, 4))
    with pytest.raises(ValueError, match="attention_mask must not be a tensor where torch traces"):
        torch.vmap(lambda mask: na.attention(query, key, value, bias, key_padding_mask=mask))(
            torch.ones(2, 1, 9)
        )


def test_other_devices_take_torchs_own_operations() -> None:
    meta = [x.to("meta") for x in tensors(1, 4, 300, 16, grad=False)]
    output, logsumexp = na.attention(*meta, na.ALiBi(4), return_logsumexp=True)
    assert output.device.type == logsumexp.device.type == "meta"
    assert output.shape == (1, 4, 300, 16)


def test_by_chunks_equals_the_core() -> None:
    sources = tensors(2, 4, 600, 16, grad=False)
    bias = na.ALiBi(4, na.DynamicNTK(2.0, 64))
    mask = torch.rand(2, 600) < 0.8
    wide = na.attention(*(x.double() for x in sources), bias, key_padding_mask=mask)
    mine = na.attention(*sources, bias, key_padding_mask=mask)
    torch.testing.assert_close(mine.double(), wide, rtol=0, atol=5e-6)


@pytest.mark.parametrize("name", ["key", "output", "logsumexp", "logsumexp_gradient"])
def test_gradients_name_what_torch_records(name: str) -> None:
    query = torch.randn(1, 2, 3, 8)
    output, log = na.attention(query, query, query, return_logsumexp=True)
    given = {"query": query, "key": query, "value": query, "output": output, "logsumexp": log}
    given |= {"output_gradient": output, "logsumexp_gradient": log}
    given[name] = given[name].clone().requires_grad_()
    with pytest.raises(ValueError, match=f"^{name} must be a tensor that torch neither records"):
        attention_gradients(**given)


def test_a_torch_without_a_private_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    query = torch.randn(1, 2, 3, 8)
    monkeypatch.delattr(torch._C, "_are_functorch_transforms_active")
    with pytest.raises(RuntimeError, match=r"has no name by which .* use torch 2\.9 to 2\.14"):
        na.attention(query, query, query)
