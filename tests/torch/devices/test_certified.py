"""Certified blocks: what is left out weighs next to nothing, and enough is left out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ntk_alibi as na
from device_calls import device_call
from ntk_alibi.torch.devices import certified
from ntk_alibi.torch.devices.block_masks import BLOCK, visible_blocks
from ntk_alibi.torch.devices.certified import AT_ONCE, can_certify, kept_blocks
from ntk_alibi.torch.devices.flex import FlexAttention
from ntk_alibi.torch.devices.score_mods import captured

# Threads would wait for each other in these many small calls.
pytestmark = pytest.mark.usefixtures("one_thread")


def blocks(call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return masks of the blocks that are kept, and of those that are visible."""
    assert can_certify(call)
    numbers = captured(call, *call.problem.shape[2:])
    visible = visible_blocks(numbers)
    seen = visible.partial | visible.full
    keep = kept_blocks(call, numbers)
    return keep & seen, seen.expand(keep.shape)


def left_out(call: Any, kept: torch.Tensor) -> torch.Tensor:
    """Return what each query leaves out, as a share of the sum over what it reads, in float64."""
    queries, keys = call.problem.shape[2:]
    at_queries, at_keys = call.problem.positions(call.query)
    group = call.query.shape[1] // call.key.shape[1]
    factors = 1.0 if call.factors is None else call.factors.double()[..., None]
    key = call.key.double().repeat_interleave(group, 1)
    scores = call.scale * factors * call.query.double() @ key.mT
    bias, hidden = call.bias.values(at_queries, at_keys)
    seen = call.problem.mask.visible(at_queries, at_keys)[:, None] & ~hidden
    if call.problem.key_padding_mask is not None:
        seen = seen & torch.as_tensor(call.problem.key_padding_mask).bool()[:, None, None]
    scores = torch.where(seen, scores + bias.double(), -torch.inf)
    pairs = kept.repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)[:, :, :queries, :keys]
    read = torch.where(pairs, scores, -torch.inf).logsumexp(-1)
    rest = torch.where(pairs, -torch.inf, scores).logsumexp(-1)
    return torch.where(rest.isneginf(), 0.0, (rest - read).exp())


def tensors(length: int, *, heads: int = 4, dim: int = 64, queries: int = 0) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    lengths = (queries or length, length, length)
    return [torch.randn(1, heads, n, dim, generator=random) for n in lengths]


def steep(x: torch.Tensor) -> torch.Tensor:
    """Return keys that grow with distance, against which the bias has to win."""
    return x * torch.linspace(40.0, 0.1, x.shape[2])[:, None]


ADVERSARIES: dict[str, Any] = {
    "random": lambda q, k: (q, k),
    "long queries": lambda q, k: (30.0 * q, k),
    "long keys": lambda q, k: (q, 30.0 * k),
    "keys that grow with distance": lambda q, k: (q, steep(k)),
    "one huge key": lambda q, k: (q, torch.cat([100.0 * q[:, :, -1:], k[:, :, 1:]], 2)),
    "keys along queries": lambda q, k: (q, torch.cat([k[:, :, q.shape[2] :], 3.0 * q.flip(2)], 2)),
    "a common vector": lambda q, k: (q, k + 20.0 * torch.randn(k.shape[3])),
    "equal keys": lambda q, k: (q, k[:, :, :1].expand_as(k).contiguous()),
    "no queries' norms": lambda q, k: (0.0 * q, k),
    "tiny": lambda q, k: (1e-20 * q, 1e-20 * k),
    "one steep query": lambda q, k: (torch.cat([q[:, :, :-1], 80.0 * q[:, :, -1:]], 2), k),
}

OPTIONS: list[tuple[Any, dict[str, Any]]] = [
    (na.ALiBi(4), {}),
    (na.ALiBi(4, na.NTK(4.0)), {"skip_tolerance": 2.0**-9}),
    (na.ALiBi(4, na.DynamicNTK(2.0, 128)), {"skip_tolerance": 2.0**-4}),
    (na.ALiBi(4, na.Knee(200, 4.0)), {"skip_tolerance": 2.0**-4}),
    (na.ALiBi(4, slopes=torch.tensor([0.5, 0.0, -0.01, torch.inf])), {"skip_tolerance": 0.1}),
    (na.ALiBi(4), {"window": 300, "sink": 5, "skip_tolerance": 2.0**-9}),
    (na.ALiBi(4), {"log_n": 64, "skip_tolerance": 2.0**-9}),
    (na.ALiBi(4), {"key_positions": torch.arange(600) // 3, "skip_tolerance": 2.0**-9}),
    (na.ALiBi(4), {"key_padding_mask": torch.arange(600)[None] % 5 > 0, "skip_tolerance": 2e-3}),
]


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bfloat16,
        *(pytest.param(x, marks=pytest.mark.slow) for x in (torch.float32, torch.float16)),
    ],
)
@pytest.mark.parametrize("name", ADVERSARIES)
def test_what_is_left_out_weighs_less_than_the_tolerance(name: str, dtype: torch.dtype) -> None:
    """In exact arithmetic: the rounding of the reference, 2^-40 of the sum, is all that is added.

    Queries that see no other key have no rest.
    """
    for bias, options in OPTIONS:
        q, k, v = tensors(600, queries=450)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            q, k = ADVERSARIES[name](q, k)
        if dtype == torch.float16 and max(q.abs().max(), k.abs().max()) > 6e4:
            continue
        call = device_call(q.to(dtype), k.to(dtype), v.to(dtype), bias, **options)
        kept, _ = blocks(call)
        share = options.get("skip_tolerance", 2.0**-24)
        assert float(left_out(call, kept).max()) <= share + 2.0**-40


def test_a_slope_below_zero_keeps_every_block() -> None:
    call = device_call(*tensors(900), na.ALiBi(4, slopes=torch.tensor([0.5, 0.2, -0.1, 0.0])))
    kept, seen = blocks(call)
    assert torch.equal(kept[:, 2:], seen[:, 2:])
    assert not torch.equal(kept[:, :2], seen[:, :2])


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite_keep_their_blocks(broken: float) -> None:
    q, k, v = tensors(900)
    k[0, 0, 40, 3] = broken
    kept, seen = blocks(device_call(q, k, v, na.ALiBi(4)))
    assert torch.equal(kept[:, 0, :, 0], seen[:, 0, :, 0])


#: Shares of 128 x 128 causal blocks: 16 heads of 64 channels, unit variance. docs/gpu.md has those
#: of longer calls, which only have more parts: see the test below.
SHARES = {4096: (0.464, 0.569), 16384: (0.189, 0.347)}


@pytest.mark.slow
@pytest.mark.parametrize("length", SHARES)
def test_the_shares_that_are_kept(length: int) -> None:
    for scaling, share in zip((None, na.NTK(4.0)), SHARES[length], strict=True):
        kept, seen = blocks(device_call(*tensors(length, heads=16), na.ALiBi(16, scaling)))
        assert math.isclose(float(kept.sum() / seen.sum()), share, abs_tol=0.02)


def test_calls_in_parts_keep_the_same_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of heads and of queries; each block of queries has its own scores."""
    q, k, v = tensors(900)
    call = device_call(q * torch.linspace(0.1, 8.0, 900)[:, None], k, v, na.ALiBi(4))
    whole, seen = blocks(call)
    assert not torch.equal(whole, seen)
    monkeypatch.setattr(certified, "AT_ONCE", 2**17)
    assert torch.equal(blocks(call)[0], whole)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("queries", [1024, 400])
def test_the_output_is_the_same_to_the_bit(queries: int) -> None:
    call = device_call(*tensors(1024, heads=8, queries=queries), na.ALiBi(8))
    kept, seen = blocks(call)
    assert int(kept.sum()) < int(seen.sum())
    with torch.no_grad():
        every = FlexAttention().attend(call, log=False)[0]
        some = FlexAttention(certify_from=1024).attend(call, log=False)[0]
    assert torch.equal(some, every)


def test_calls_without_bounds() -> None:
    x = tensors(900)
    assert can_certify(device_call(*x, na.ALiBi(4)))
    others: list[tuple[Any, dict[str, Any]]] = [
        (None, {}),
        (na.ALiBi(4), {"skip_tolerance": None}),
        (na.ALiBi(4, exempt=2), {}),
        (na.ALiBi(4, sides="symmetric"), {"causal": False}),
        (na.ForgetGates(-torch.rand(1, 4, 900)), {}),
    ]
    for bias, options in others:
        assert not can_certify(device_call(*x, bias, **options))
    assert not can_certify(device_call(x[0][:, :, -BLOCK:], *x[1:], na.ALiBi(4)))


def test_masks_of_blocks_that_would_fill_the_memory_are_not_built() -> None:
    for length, few in ((2**18, True), (2**20, False)):
        x = torch.empty(1, 16, length, 64, dtype=torch.bfloat16, device="meta")
        assert can_certify(device_call(x, x, x, na.ALiBi(16))) is few


class Largest(TorchDispatchMode):
    """Notes the most numbers of a tensor that an operation returns."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not function.is_view:
            self.numbers = max(self.numbers, result.numel())
        return result


@pytest.mark.parametrize(("batch", "heads", "key_heads"), [(1, 16, 16), (1, 32, 1), (4, 8, 2)])
def test_few_scores_exist_at_one_time(batch: int, heads: int, key_heads: int) -> None:
    """Rows and heads that share keys are no reason for more of them."""
    length = 2**15
    query = torch.empty(batch, heads, length, 64, dtype=torch.bfloat16, device="meta")
    key = torch.empty(batch, key_heads, length, 64, dtype=torch.bfloat16, device="meta")
    call = device_call(query, key, key, na.ALiBi(heads))
    numbers = captured(call, length, length)
    with Largest() as largest:
        kept_blocks(call, numbers)
    assert largest.numbers <= max(AT_ONCE, query.numel())


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_both_settings_of_products_are_understood(precision: str) -> None:
    """Torch raises where its older setting is read after the newer one was made."""
    settings: Any = torch.backends.cuda.matmul
    before = settings.fp32_precision
    call = device_call(*(x.to("meta") for x in tensors(900)), na.ALiBi(4))
    settings.fp32_precision = precision
    try:
        assert kept_blocks(call, captured(call, 900, 900)).is_meta
    finally:
        settings.fp32_precision = before


def test_meta_tensors_give_shapes() -> None:
    """No number is read on the host: tensors without numbers would raise."""
    q, k, v = (x.to("meta") for x in tensors(900, queries=700))
    call = device_call(q, k[:, :2], v[:, :2], na.ALiBi(4, na.NTK(2.0)), window=600)
    keep = kept_blocks(call, captured(call, 768, 1024))
    assert keep.shape == (1, 4, 6, 8)
    assert keep.dtype == torch.bool
    assert keep.is_meta
