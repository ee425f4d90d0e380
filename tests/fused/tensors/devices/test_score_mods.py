"""Scores, masks and blocks that FlexAttention gets, evaluated pair by pair without compiling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ntk_alibi as na
from conformance import WAYS, Expectation, loss, tensors
from conformance_cases import CASES
from device_calls import by_pairs, device_call
from ntk_alibi.fused.parts import compute_in_parts
from ntk_alibi.fused.tensors.devices.flex import BLOCK, visible_blocks
from ntk_alibi.fused.tensors.devices.score_mods import capture_tensors, mask_mod

# Threads would wait for each other in these many small calls.
pytestmark = pytest.mark.usefixtures("one_thread")

#: Kinds of calls without dropout. Rotation happens before the kernels, so one kind has it.
OTHERS = {"RoPE", "XPOS", "packed", "dropout"}
SOME_WAYS = [way for way in WAYS if not OTHERS & {*way.replace(",", "").split()}]
SOME_WAYS += ["RoPE"]


def attended(name: str, way: str, *, padded: bool) -> tuple[Expectation, Any, list[torch.Tensor]]:
    case, kind = CASES[name], WAYS[way]
    if kind.refusal(case) is not None:
        pytest.skip("refused by every kernel")
    sources = tensors(case, kind, grad=True)
    call = device_call(*sources[:3], case.make(*sources[3:]), **kind.given(tensors=True))
    *results, _ = compute_in_parts(call, lambda part: (*by_pairs(part, padded=padded), None))
    return Expectation(case, kind), results, sources


@pytest.mark.parametrize("way", SOME_WAYS)
@pytest.mark.parametrize("name", CASES)
def test_every_bias_in_every_kind_of_call(name: str, way: str) -> None:
    expectation, results, _ = attended(name, way, padded=False)
    expectation.check(results)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_every_bias(name: str) -> None:
    """Lengths are padded to whole blocks, as before a backward pass."""
    way = "log n" if CASES[name].causal else "both sides"
    expectation, results, sources = attended(name, way, padded=True)
    expectation.check(results)
    gradients = torch.autograd.grad(loss(*results), sources, materialize_grads=True)
    expectation.check_gradients(gradients)


MASKS = st.fixed_dictionaries({"causal": st.booleans()}) | st.fixed_dictionaries(
    {"causal": st.booleans(), "window": st.integers(1, 400)}, optional={"sink": st.integers(0, 300)}
)


@given(
    queries=st.integers(1, 400),
    keys=st.integers(1, 700),
    mask=MASKS,
    block=st.none() | st.integers(1, 300),
    where=st.sampled_from(["columns", "start", "shuffled", "gaps", "far"]),
    real=st.sampled_from(["all", "left", "holes", "none"]),
    seed=st.integers(0, 100),
)
def test_blocks_hold_what_the_mask_shows(
    queries: int, keys: int, mask: Any, block: Any, where: str, real: str, seed: int
) -> None:
    """No visible pair is outside of the blocks, and no hidden pair is in a full one."""
    random = torch.Generator().manual_seed(seed)
    options: dict[str, Any] = dict(mask)
    if block is not None and mask["causal"]:
        options["causal_block"] = block
    if where == "start":
        options["align"] = "start"
    elif where != "columns":
        start = 2**31 - 1 - 3 * keys if where == "far" else 0
        at = start + torch.arange(keys) * (1 if where == "shuffled" else 2)
        at = at[torch.randperm(keys, generator=random)] if where == "shuffled" else at
        chosen = at[torch.randint(keys, (queries,), generator=random)]
        options |= {"key_positions": at, "query_positions": chosen.sort().values}
    padding = {
        "left": torch.arange(keys) >= torch.tensor([[keys // 3], [0]]),
        "holes": torch.rand(2, keys, generator=random) < 0.7,
        "none": torch.zeros(2, keys, dtype=torch.bool),
    }
    if real in padding:
        options["key_padding_mask"] = padding[real]
    x = torch.zeros(2, 1, queries, 1), torch.zeros(2, 1, keys, 1), torch.zeros(2, 1, keys, 1)
    call = device_call(*x, **options)
    captured = capture_tensors(call, queries, keys)
    positions = call.problem.positions(x[0])
    expected = call.problem.mask.visible(*positions)
    if real in padding:
        expected = expected & padding[real][:, None]
    rows = torch.arange(2)[:, None, None], 0, torch.arange(queries)[:, None], torch.arange(keys)
    seen = mask_mod(captured)(*rows)
    seen, expected = (x.broadcast_to(2, queries, keys) for x in (seen, expected))
    assert torch.equal(seen, expected)
    partial, full = (
        blocks.repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)[:, 0, :queries, :keys]
        for blocks in visible_blocks(captured)
    )
    assert not (partial & full).any()
    assert not (seen & ~partial & ~full).any()
    assert not (full & ~seen).any()


def test_a_plain_causal_mask_has_full_blocks_below_the_diagonal() -> None:
    x = torch.zeros(1, 1, 4 * BLOCK, 1)
    partial, full = visible_blocks(capture_tensors(device_call(x, x, x), 4 * BLOCK, 4 * BLOCK))
    assert torch.equal(partial[0, 0], torch.eye(4, dtype=torch.bool))
    assert torch.equal(full[0, 0], torch.ones(4, 4, dtype=torch.bool).tril(-1))


def test_infinite_slopes_hide_keys_without_nan() -> None:
    """A query with infinite slopes sees only itself, in the gradients too."""
    query, key, value = (torch.randn(1, 2, 40, 8).requires_grad_() for _ in range(3))
    slopes = torch.tensor([torch.inf, 0.5]).requires_grad_()
    output, _ = by_pairs(device_call(query, key, value, na.ALiBi(2, slopes=slopes)))
    torch.testing.assert_close(output[:, 0], value[:, 0])
    gradients = torch.autograd.grad(output.sum(), (query, key, value, slopes))
    assert all(x.isfinite().all() for x in gradients)
