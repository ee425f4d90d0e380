"""Dropout of attention weights of tensors: seeds from torch's generator, and the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import ntk_alibi as na


def tensors(dtype: torch.dtype = torch.float32, *, grad: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(2, 4, 90, 16, dtype=dtype).requires_grad_(grad) for _ in range(3)]


@pytest.mark.parametrize("grad", [False, True], ids=["core", "operator"])
def test_seeds_are_drawn_from_torch(grad: bool) -> None:
    inputs = tensors(grad=grad)
    torch.manual_seed(5)
    one, two = (na.attention(*inputs, na.ALiBi(4), dropout=0.2) for _ in range(2))
    torch.manual_seed(5)
    seed = int(torch.randint(2**63 - 1, (), dtype=torch.int64))
    torch.manual_seed(5)
    again = na.attention(*inputs, na.ALiBi(4), dropout=0.2)
    arrays = [x.detach().numpy() for x in inputs]
    assert (one == again).all()
    assert (one != two).any()
    same = na.attention(*arrays, na.ALiBi(4), dropout=0.2, seed=seed)
    assert (again.detach().numpy() == same).all()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_checkpoints_drop_the_same_weights(dtype: torch.dtype, reentrant: bool) -> None:
    inputs = tensors(dtype, grad=True)

    def attend(*x: torch.Tensor) -> torch.Tensor:
        return na.attention(*x, na.ALiBi(4), dropout=0.3)

    results = []
    for run in (attend, lambda *x: checkpoint(attend, *x, use_reentrant=reentrant)):
        torch.manual_seed(3)
        for x in inputs:
            x.grad = None
        output: torch.Tensor = run(*inputs)
        output.square().sum().backward()
        results.append([output, *(x.grad for x in inputs)])
    for plain, replayed in zip(*results, strict=True):
        assert (plain == replayed).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_maps(dtype: torch.dtype) -> None:
    """A given seed serves all samples; else torch's `randomness` decides what is drawn."""
    inputs = [x[None].expand(3, *x.shape) for x in tensors(dtype)]
    single = [x[0] for x in inputs]

    def attend(*x: torch.Tensor, **options: Any) -> torch.Tensor:
        return na.attention(*x, na.ALiBi(4), dropout=0.3, **options)

    mapped = torch.vmap(lambda *x: attend(*x, seed=4))(*inputs)
    assert (mapped == attend(*single, seed=4)).all()
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(attend)(*inputs)
    different = torch.vmap(attend, randomness="different")(*inputs)
    assert (different[0] != different[1]).any()
    same = torch.vmap(attend, randomness="same")(*inputs)
    assert (same[0] == same[1]).all()


def test_module_drops_in_training() -> None:
    torch.manual_seed(0)
    module = na.AlibiAttention(4, 32, dropout=0.5)
    x = torch.randn(2, 20, 32)
    plain = module.eval()(x, x, x)
    assert (module(x, x, x) == plain).all()
    module.train()
    torch.manual_seed(1)
    dropped = module(x, x, x)
    torch.manual_seed(1)
    assert (module(x, x, x) == dropped).all()
    assert (dropped != plain).any()
    assert "dropout=0.5" in repr(module)


def gradients(output: torch.Tensor, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad((output * torch.arange(16)).sum(), inputs)


def test_no_dropout_draws_nothing() -> None:
    state = torch.get_rng_state()
    inputs = tensors()
    torch.set_rng_state(state)
    na.attention(*inputs, dropout=0.0)
    assert (torch.get_rng_state() == state).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled(dtype: torch.dtype) -> None:
    """A compiled call draws its seed anew each time, and drops what an uncompiled call drops."""
    inputs = tensors(dtype, grad=True)

    def attend(seed: int | None) -> torch.Tensor:
        return na.attention(*inputs, na.ALiBi(4), dropout=0.3, seed=seed)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(8), attend(8))
    one, two = compiled(None), compiled(None)
    assert (one != two).any()
    torch.manual_seed(2)
    again = compiled(None)
    torch.manual_seed(2)
    torch.testing.assert_close(attend(None), again)
    for got, plain in zip(
        gradients(compiled(8), inputs), gradients(attend(8), inputs), strict=True
    ):
        torch.testing.assert_close(got, plain)
