"""Masks of pairs of tensors: gradients, every derivative, traces, transforms and refusals."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch

import ntk_alibi as na
from attention_checks import pair_mask
from ntk_alibi.masks import block_mask as module

BIAS = na.ALiBi(4, sides="symmetric")
SHAPE = (2, 4, 40, 70)
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


def tensors(*, dtype: torch.dtype = torch.float32, grad: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, heads, length, 8, generator=generator).to(dtype).requires_grad_(grad)
        for heads, length in ((4, 40), (2, 70), (2, 70))
    ]


def mask_of(
    kind: str = "empty rows", shape: tuple[int, ...] = SHAPE, seed: int = 0
) -> torch.Tensor:
    return torch.from_numpy(pair_mask(kind, shape, seed))  # type: ignore[arg-type]


def attend(*inputs: torch.Tensor, mask: Any, **options: Any) -> torch.Tensor:
    result: torch.Tensor = na.attention(*inputs, BIAS, causal=False, mask=mask, **options)
    return result


def test_gradients_are_near_those_of_float64() -> None:
    sources, wide = tensors(grad=True), tensors(dtype=torch.float64, grad=True)
    mask = mask_of()
    for given in (mask, na.BlockMask(mask), mask[:1, :1], mask[:, :, :1].expand(SHAPE)):
        mine, theirs = (
            torch.autograd.grad(attend(*x, mask=given).square().sum(), x) for x in (sources, wide)
        )
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


def test_other_derivatives() -> None:
    query, key, value = (x[:1, :, :3, :2].double() for x in tensors())
    mask = mask_of("half")[:1, :, :3, :3]

    def f(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return attend(query, key, value, mask=mask)

    sources = tuple(x.clone().requires_grad_() for x in (query, key, value))
    assert torch.autograd.gradgradcheck(f, sources)
    assert torch.autograd.gradcheck(f, sources, check_forward_ad=True)


def test_transforms() -> None:
    query, key, value = tensors()
    masks = torch.stack([mask_of(seed=i) for i in range(3)])

    def loss(query: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return attend(query, key, value, mask=mask).square().sum()

    mapped = torch.func.vmap(lambda m: attend(query, key, value, mask=m))(masks)
    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(query, masks)
    for i, mask in enumerate(masks):
        torch.testing.assert_close(mapped[i], attend(query, key, value, mask=mask), rtol=0, atol=0)
        one = torch.func.grad(loss)(query, mask)
        torch.testing.assert_close(gradients[i], one, rtol=1e-4, atol=1e-5)


class Attend(torch.nn.Module):
    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return attend(*inputs[:3], mask=inputs[3], log_n=8)


def test_exported() -> None:
    inputs, mask = tensors(), mask_of()

    class Keeps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask = na.BlockMask(mask)

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return attend(*inputs, mask=self.mask)

    for attends, given in ((Attend(), (*inputs, mask)), (Keeps(), tuple(inputs))):
        exported = torch.export.export(attends, given).module()
        torch.testing.assert_close(exported(*given), attends(*given))


@pytest.mark.needs("torch >= 2.12", "Dynamo of older ones reads no arrays of a bias")
def test_compiled() -> None:
    inputs, mask = tensors(), mask_of()
    plain, whole = attend(*inputs, mask=mask), Attend()(*inputs, mask)
    compiled: Any = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for given in (mask, na.BlockMask(mask)):
        torch.testing.assert_close(compiled(*inputs, mask=given), plain)
    torch.testing.assert_close(torch.compile(Attend(), backend="aot_eager")(*inputs, mask), whole)
    torch.compiler.reset()


def test_a_kept_mask_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    class Core:
        @staticmethod
        def BlockMask(mask: Any) -> Any:  # noqa: N802 (the core's name)
            read.append(mask)
            return core.BlockMask(mask)

    core: Any = module._core
    monkeypatch.setattr(module, "_core", Core)
    sources, mask = tensors(grad=True), mask_of()
    kept = na.BlockMask(mask)
    for _ in range(2):
        attend(*sources, mask=kept).sum().backward()
        with torch.no_grad():
            attend(*sources, mask=kept)
    assert len(read) == 1
    before = attend(*sources, mask=mask)
    mask.logical_not_()  # a tensor tells that it has changed
    assert not torch.equal(attend(*sources, mask=mask), before)


def test_changes_of_a_mask_of_inference_mode_are_seen() -> None:
    with torch.inference_mode():
        sources, mask = tensors(), mask_of().clone()
        kept = na.BlockMask(mask)
        before = attend(*sources, mask=kept)
        mask.logical_not_()
        after = attend(*sources, mask=kept)
        torch.testing.assert_close(after, attend(*sources, mask=mask.clone()))
    assert not torch.equal(after, before)


#: Tensors over memory that an older mask read, with other values by now.
OVER_MEMORY = {
    "from_numpy": lambda memory, _: torch.from_numpy(memory),
    "dlpack": lambda memory, _: torch.from_dlpack(torch.from_numpy(memory)),
    "data": lambda _, older: older.data,
    "set_": lambda _, older: torch.empty(0, dtype=torch.bool).set_(older),
    "the same": lambda _, older: older,
}


def recorded_by_vmap(*inputs: torch.Tensor, mask: Any) -> torch.Tensor:
    return torch.func.vmap(partial(attend, mask=mask))(*(x[None] for x in inputs))[0]


@pytest.mark.parametrize("over", OVER_MEMORY)
def test_a_mask_over_memory_of_an_older_one_has_its_own_bits(over: str) -> None:
    """Masks are found again by their object, not by the address and the version of their memory."""
    sources, memory = tensors(grad=True), mask_of("half").numpy().copy()
    older = torch.from_numpy(memory)
    kept = na.BlockMask(older)
    attend(*sources, mask=kept).sum().backward()
    memory[...] = mask_of("empty rows").numpy()  # of which torch's version says nothing
    expected = attend(*sources, mask=mask_of("empty rows"))
    gradient = torch.autograd.grad(expected.square().sum(), sources[0])[0]
    new = OVER_MEMORY[over](memory, older)
    for given in (new, na.BlockMask(new)):
        output = attend(*sources, mask=given)
        torch.testing.assert_close(output, expected, rtol=0, atol=0)
        found = torch.autograd.grad(output.square().sum(), sources[0])[0]
        torch.testing.assert_close(found, gradient, rtol=0, atol=0)
        mapped = recorded_by_vmap(*sources, mask=given)
        torch.testing.assert_close(mapped, expected, rtol=0, atol=0)
    assert kept.shape == SHAPE  # which was alive until here


@pytest.mark.needs("torch >= 2.12", "Dynamo of older ones reads no arrays of a bias")
def test_compiled_code_reads_a_new_mask_over_old_memory() -> None:
    sources, memory = tensors(grad=True), mask_of("half").numpy().copy()
    compiled: Any = torch.compile(attend, fullgraph=True, backend="aot_eager")
    masks = []
    for kind in ("half", "empty rows"):
        memory[...] = mask_of(kind).numpy()  # type: ignore[arg-type]
        masks += [torch.from_numpy(memory), na.BlockMask(torch.from_numpy(memory))]
        for given in masks[-2:]:
            expected = attend(*sources, mask=mask_of(kind))
            torch.testing.assert_close(compiled(*sources, mask=given), expected, rtol=0, atol=0)
    torch.compiler.reset()


def test_freed_memory_is_not_taken_for_the_mask_that_was_there() -> None:
    sources, masks = tensors(grad=True), []
    for seed in range(8):
        mask = mask_of(seed=seed).clone()
        masks.append(na.BlockMask(mask))
        assert_own_bits(sources, mask, masks[-1])
        mask.data = mask.new_empty(0)  # frees the memory, unless the mask holds it


def assert_own_bits(sources: list[torch.Tensor], mask: torch.Tensor, given: Any) -> None:
    with torch.no_grad():
        expected = attend(*sources, mask=mask.clone())
    torch.testing.assert_close(attend(*sources, mask=given).detach(), expected, rtol=0, atol=0)


def test_a_kept_mask_sees_what_torch_changes() -> None:
    sources, mask = tensors(grad=True), mask_of()
    kept = na.BlockMask(mask)
    for _ in range(2):
        with torch.no_grad():
            assert_own_bits(sources, mask, kept)
        assert_own_bits(sources, mask, kept)
        mask.logical_not_()


def test_a_mask_that_changes_before_the_backward_pass_is_refused() -> None:
    sources, mask = tensors(grad=True), mask_of()
    output = attend(*sources, mask=mask)
    mask[:] = True
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_copies_of_a_mask() -> None:
    kept = na.BlockMask(mask_of())
    for other in (copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        torch.testing.assert_close(other.mask, kept.mask)
    assert repr(kept) == "BlockMask(shape=(2, 4, 40, 70))"


@pytest.mark.parametrize("batch", [2, 20])  # 20: a batch of as many rows as tokens
def test_a_module_takes_masks_and_padding_by_name(batch: int) -> None:
    attention = na.AlibiAttention(4, 32, causal=False)
    x = torch.randn(batch, 20, 32)
    mask = mask_of("half", (batch, 1, 20, 20))
    mask[..., 0] = True
    padding = torch.arange(20) < torch.arange(1, batch + 1)[:, None]
    of_pairs = padding[:, None, None].expand(batch, 1, 20, 20)
    same = partial(torch.testing.assert_close, rtol=0, atol=0)
    same(attention(x, x, x, na.BlockMask(mask)), attention(x, x, x, mask))
    torch.testing.assert_close(
        attention(x, x, x, of_pairs), attention(x, x, x, key_padding_mask=padding)
    )
    both = attention(x, x, x, mask, padding)
    torch.testing.assert_close(attention(x, x, x, mask & of_pairs), both)
    with pytest.raises(ValueError, match="pass padding as key_padding_mask, and pairs"):
        attention(x, x, x, padding)
    same(attention(x, x, x, mask[0, 0][None, None]), attention(x, x, x, mask[:1]))


@pytest.mark.parametrize("grad", [False, True])
def test_memory_that_takes_the_place_of_the_masks_is_read(grad: bool) -> None:
    inputs, tensor = tensors(grad=grad), mask_of("half")
    mask = na.BlockMask(tensor)
    attend(*inputs, mask=mask)
    for seed in (1, 2):
        other = mask_of("half", seed=seed)
        if seed == 1:
            tensor.data = other.clone()
        else:
            torch.utils.swap_tensors(tensor, other.clone())
        assert torch.equal(attend(*inputs, mask=mask), attend(*inputs, mask=other))
