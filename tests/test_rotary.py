"""RoPE, XPOS and log-n scaling of `na.attention`: against papers, transformers, torch."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import ntk_alibi as na
from attention_calls import Call, calls
from attention_checks import NUMPY, UNIT, check, dense, expected, inputs, random, visible
from ntk_alibi.attention_gradients import attention_gradients
from ntk_alibi.rotary_attention import FADED

ROTARY = {
    "RoPE": lambda dim, **kw: na.RoPE(dim, **kw),
    "XPOS": lambda dim, **kw: na.XPOS(dim, **kw),
    "XPOS of many centres": lambda dim, **kw: na.XPOS(dim, 100.0, 5.0, 0.2, **kw),
}


def in_pairs(x: NDArray[Any], layout: str) -> NDArray[np.float64]:
    """Rotary channels in the papers' order."""
    x = np.asarray(x, np.float64)
    half = x.shape[-1] // 2
    order = np.stack([np.arange(half), np.arange(half) + half], axis=-1).ravel()
    return x if layout == "pairs" else x[..., order]


def products(
    rotary: Any, query: Any, key: Any, q: NDArray[Any], k: NDArray[Any]
) -> NDArray[np.float64]:
    """q.k of all pairs (batch, heads, queries, keys) by the reference."""
    batch, heads, queries, _ = query.shape
    query, key = np.asarray(query, np.float64), np.asarray(key, np.float64)
    key = np.repeat(key, heads // key.shape[1], axis=1)
    if rotary is None:
        return query @ key.swapaxes(-1, -2)
    turned = rotary.rotary_dim
    result = query[..., turned:] @ key[..., turned:].swapaxes(-1, -2)
    query, key = (in_pairs(x[..., :turned], rotary.layout) for x in (query, key))
    rows = np.broadcast_to(q, (batch, queries)), np.broadcast_to(k, (batch, key.shape[2]))
    for b, (at_query, at_key) in enumerate(zip(*rows, strict=True)):
        if isinstance(rotary, na.XPOS):
            settings = (rotary.base, rotary.scale_base, rotary.gamma)
            result[b] += na.reference.xpos_scores(query[b], key[b], at_query, at_key, *settings)
        else:
            left, right = (
                na.reference.rope(x[b], at, rotary.base)
                for x, at in ((query, at_query), (key, at_key))
            )
            result[b] += left @ right.swapaxes(-1, -2)
    return result


def meant(
    arrays: Any,
    rotary: Any,
    q: NDArray[Any],
    k: NDArray[Any],
    seen: NDArray[np.bool_],
    log_n: int | None = None,
    scale: float | None = None,
) -> tuple[NDArray[np.float64], float]:
    """Scores of all pairs, 0 where none is seen, and the greatest scale in them."""
    scale = 1 / math.sqrt(arrays[0].shape[3]) if scale is None else scale
    factors = np.ones((1, 1, 1)) if log_n is None else na.reference.log_n_factors(seen, log_n)
    with np.errstate(invalid="ignore"):  # NaN in keys that nobody sees
        scores = scale * factors[..., None] * products(rotary, *arrays[:2], q, k)
    return np.where(seen, scores, 0.0), scale * float(factors.max(initial=1.0))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"window": 20},
    {"window": 20, "sink": 3},
    {"causal_block": 16},
    {"window": 25, "causal_block": 16},
    {"scale": 0.3, "skip_tolerance": None},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda x: " ".join(x) or "plain")
@pytest.mark.parametrize("layout", ["pairs", "halves"])
@pytest.mark.parametrize("name", ROTARY)
def test_scores_are_the_papers_sums(name: str, layout: str, options: dict[str, Any]) -> None:
    arrays = inputs(2, 4, 2, 90, 130, 16)
    rotary = ROTARY[name](16, layout=layout)
    q, k = np.arange(40, 130), np.arange(130)
    seen = visible(q, k, **{x: options[x] for x in options if x not in ("scale", "skip_tolerance")})
    bias = np.where(seen, dense(na.ALiBi(4), q, k), -np.inf)
    scores, scale = meant(arrays, rotary, q, k, seen, scale=options.get("scale"))
    result = na.attention(*arrays, na.ALiBi(4), rotary=rotary, return_logsumexp=True, **options)
    check(*arrays, bias, result, scale, options.get("skip_tolerance", 0.0), scores=scores)


@st.composite
def rotated_calls(draw: st.DrawFn) -> tuple[Call, Any, int | None]:
    call = draw(calls())
    dim = call.query.shape[3]
    kinds = list(ROTARY) if call.options["causal"] else ["RoPE"]
    kind = draw(st.sampled_from([None, *kinds])) if dim > 1 else None
    log_n = draw(st.sampled_from((None, 2, 16, 100)))
    if kind is None:
        return call, None, log_n
    channels = 2 * draw(st.integers(1, min(dim // 2, 8)))
    layout = draw(st.sampled_from(("pairs", "halves")))
    return call, ROTARY[kind](dim, layout=layout, rotary_dim=channels), log_n


def places(call: Call) -> tuple[NDArray[Any], NDArray[Any]]:
    """Positions of a call's queries and keys."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    k = call.options.get("key_positions", np.arange(keys))
    last = np.arange(keys - queries, keys)
    if "key_positions" in call.options:
        last = k[..., max(keys - queries, 0) :]
    return call.options.get("query_positions", last), k


@given(drawn=rotated_calls())
def test_any_call_with_rotary_and_log_n_is_the_reference(drawn: Any) -> None:
    call, rotary, log_n = drawn
    arrays = call.query, call.key, call.value
    tolerance = call.options["skip_tolerance"]
    seen = masked(call)
    scores, scale = meant(arrays, rotary, *places(call), seen, log_n, call.options["scale"])
    output, logsumexp, stats = call.run(rotary=rotary, log_n=log_n, return_stats=True)
    check(*arrays, call.meant, (output, logsumexp), scale, tolerance, scores=scores)
    assert (stats.visited <= stats.visible).all()


def masked(call: Call) -> NDArray[np.bool_]:
    """What the mask leaves visible, whatever the bias hides, of all heads."""
    q, k = places(call)
    names = ("causal", "window", "causal_block", "sink")
    mask = call.options.get("key_padding_mask")
    seen = visible(q, k, **{name: call.options[name] for name in names}, mask=mask)
    return np.broadcast_to(seen, call.seen.shape)


@pytest.mark.parametrize("dtype", list(NUMPY))
@pytest.mark.parametrize("name", ROTARY)
def test_positions_of_a_million_lose_nothing(name: str, dtype: str) -> None:
    arrays = inputs(1, 2, 1, 70, 120, 32, dtype=dtype)
    rotary = ROTARY[name](32)
    near = np.arange(50, 120), np.arange(120)
    far = tuple(x + 1_000_003 for x in near)
    seen = visible(*near)
    # the reference is asked about the near positions: the scores depend on distances only
    scores, scale = meant(arrays, rotary, *near, seen)
    positions = {"query_positions": far[0], "key_positions": far[1]}
    bias = np.where(seen, 0.0, -np.inf)
    result = na.attention(*arrays, rotary=rotary, return_logsumexp=True, **positions)
    check(*arrays, bias, result, scale, scores=scores)
    tensors = [torch.from_numpy(x.astype(np.float32)).to(getattr(torch, dtype)) for x in arrays]
    other = na.attention(*tensors, rotary=rotary, return_logsumexp=True, **positions)
    check(*arrays, bias, (other[0].float().numpy().astype(NUMPY[dtype]), other[1].numpy()), scale,
          scores=scores)  # fmt: skip


def test_xpos_reaches_from_the_first_token_to_the_millionth() -> None:
    arrays = inputs(1, 2, 2, 5, 400, 16)
    k = np.unique(np.geomspace(1, 1_100_001, 4000).astype(np.int64) - 1)
    k = np.concatenate([k[:: len(k) // 396][:396], [1_100_001, 1_100_002, 1_100_003, 1_100_004]])
    q = np.array([3, 1000, 512_000, 1_100_003, 1_100_004])
    rotary, seen = na.XPOS(16), visible(q, k)
    assert len(k) == 400
    scores, scale = meant(arrays, rotary, q, k, seen)
    result = na.attention(
        *arrays, rotary=rotary, query_positions=q, key_positions=k, return_logsumexp=True
    )
    check(*arrays, np.where(seen, 0.0, -np.inf), result, scale, scores=scores)


def test_xpos_over_many_centres_is_the_papers_sum() -> None:
    """Four runs of 205 queries, the last columns of 1100."""
    arrays, rotary = inputs(1, 1, 1, 800, 1100, 4), na.XPOS(4, scale_base=64.0)
    q, k = np.arange(300, 1100), np.arange(1100)
    scores, scale = meant(arrays, rotary, q, k, visible(q, k))
    for options in ({}, {"window": 400}, {"causal_block": 128, "sink": 4}):
        seen = visible(q, k, **options)
        result = na.attention(*arrays, rotary=rotary, return_logsumexp=True, **options)
        check(*arrays, np.where(seen, 0.0, -np.inf), result, scale, scores=scores)


@pytest.mark.parametrize("options", [{}, {"window": 700_000}])
def test_xpos_over_a_million_keys_is_the_papers_sum(options: dict[str, Any]) -> None:
    arrays, rotary = inputs(1, 1, 1, 3, 1_000_000, 4), na.XPOS(4)
    q, k = np.arange(999_997, 1_000_000), np.arange(1_000_000)
    seen = visible(q, k, **options)
    scores, scale = meant(arrays, rotary, q, k, seen)
    result = na.attention(*arrays, rotary=rotary, return_logsumexp=True, **options)
    check(*arrays, np.where(seen, 0.0, -np.inf), result, scale, scores=scores)


def test_vmap_is_one_call_after_the_other() -> None:
    q, k, v = torch.randn(3, 3, 1, 2, 30, 8, generator=torch.Generator().manual_seed(0))
    for rotary in (na.RoPE(8), na.XPOS(8, scale_base=5.0)):

        def attend(*arrays: torch.Tensor, rotary: Any = rotary) -> Any:
            return na.attention(*arrays, na.ALiBi(2), rotary=rotary, log_n=9)

        several = torch.vmap(attend)(q, k, v)
        one_by_one = torch.stack([attend(*x) for x in zip(q, k, v, strict=True)])
        torch.testing.assert_close(several, one_by_one, rtol=1e-6, atol=1e-6)


def test_faded_keys_count_with_a_score_of_zero() -> None:
    """Far keys are not hidden: their score is 0, and what is left is the mean of the values."""
    rotary = na.XPOS(2)  # one pair, the fastest
    distance = math.ceil(-FADED / rotary.fastest_rate) + 1
    query, value = random(0, 1, 1, 1, 2), random(1, 1, 1, 7, 2)
    key = 1e6 * random(2, 1, 1, 7, 2)
    output, logsumexp = na.attention(
        query, key, value, rotary=rotary, query_positions=np.array([distance + 6]),
        key_positions=np.arange(7), return_logsumexp=True,
    )  # fmt: skip
    np.testing.assert_allclose(output[0, 0, 0], value[0, 0].mean(axis=0), atol=8 * UNIT * 4)
    np.testing.assert_allclose(logsumexp[0, 0, 0], math.log(7), rtol=4 * UNIT)


def test_xpos_is_the_published_code_where_that_does_not_overflow() -> None:
    """microsoft/torchscale: scale = ((2m + 0.4 D) / (1.4 D))^(n / 512), of n about the middle."""
    arrays, length = inputs(1, 2, 2, 200, 200, 32), 200
    n = torch.arange(-length // 2, length - length // 2)[:, None]
    scale = ((torch.arange(0, 32, 2).double() + 0.4 * 32) / (1.4 * 32)) ** (n / 512)
    angle = n * 10000.0 ** (-torch.arange(16).double() / 16)

    def published(x: Any, scale: torch.Tensor) -> torch.Tensor:
        x = torch.from_numpy(x).double()
        every_two = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
        sin, cos = ((f(angle) * scale).repeat_interleave(2, 1) for f in (torch.sin, torch.cos))
        return x * cos + every_two * sin

    scores = (published(arrays[0], scale) @ published(arrays[1], 1 / scale).mT).numpy()
    seen = visible(np.arange(length), np.arange(length))
    result = na.attention(*arrays, rotary=na.XPOS(32), return_logsumexp=True)
    scale_of_scores = 1 / math.sqrt(32)
    check(
        *arrays,
        np.where(seen, 0.0, -np.inf),
        result,
        scores=np.where(seen, scores, 0) * scale_of_scores,
    )


@pytest.mark.parametrize("partial", [None, 16])
def test_rotate_is_transformers(partial: int | None) -> None:
    """Llama's, and GPT-NeoX's of some channels; theirs forms angles in float32."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    dim, length = partial or 64, 2000
    config = LlamaConfig(hidden_size=4 * dim, num_attention_heads=4, max_position_embeddings=4096)
    x = torch.randn(2, 4, length, 64, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(length)[None]
    cos, sin = LlamaRotaryEmbedding(config)(x, positions)
    theirs, _ = apply_rotary_pos_emb(x[..., :dim], x[..., :dim], cos, sin)
    theirs = torch.cat([theirs, x[..., dim:]], dim=-1)
    mine = na.RoPE(64, layout="halves", rotary_dim=partial).rotate(x)
    # their frequencies are off by at most 3 u (a power and a quotient), their angles by one more
    off = 4 * UNIT * length + 4 * UNIT
    assert float((mine - theirs).abs().max()) <= off * float(2 * x.abs().max())
    assert torch.equal(mine[:, :, :1], x[:, :, :1])
    np.testing.assert_array_equal(
        na.RoPE(64, layout="halves", rotary_dim=partial).rotate(x.numpy()), mine.numpy()
    )


def test_stretched_is_the_papers_at_other_positions_or_another_base() -> None:
    x = np.random.default_rng(7).standard_normal((1, 1, 40, 16))
    positions = np.arange(40)
    interpolated = na.RoPE(16).stretched(na.Interpolation(4.0)).rotate(x)
    ntk = na.RoPE(16).stretched(na.NTK(4.0)).rotate(x)
    base = na.reference.rope_ntk_base(10000.0, 4.0, 16)
    for mine, theirs in (
        (interpolated, na.reference.rope(x, positions / 4)),
        (ntk, na.reference.rope(x, positions, base)),
    ):  # float64: angles up to 40 with errors of a few of their last bits
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=40 * 8 * 2.0**-53 * np.abs(x).max())


@pytest.mark.parametrize(("kind", "scaling"), [("linear", na.Interpolation), ("dynamic", na.NTK)])
def test_stretched_is_transformers(kind: str, scaling: Any) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": kind, "factor": 8.0 if kind == "linear" else 1.0, "rope_theta": 10000.0}
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=1, max_position_embeddings=128, rope_parameters=rope
    )
    # their dynamic rule at 8 training lengths is NTK with a = 8
    theirs, _ = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=1024)
    ones = np.tile([1.0, 0.0], 32)[None, None, None]
    turned = na.RoPE(64).stretched(scaling(8.0)).rotate(ones, np.array([1]))[0, 0, 0]
    mine = np.arctan2(turned[1::2], turned[0::2])
    np.testing.assert_allclose(mine, theirs.numpy(), rtol=8 * UNIT)


def test_ntk_leaves_the_fastest_pair_and_divides_the_slowest() -> None:
    ones = np.tile([1.0, 0.0], 8)[None, None, None]
    before, after = (
        np.arctan2(x[1::2], x[0::2])
        for x in (
            rope.rotate(ones, np.array([1]))[0, 0, 0]
            for rope in (na.RoPE(16), na.RoPE(16).stretched(na.NTK(4.0)))
        )
    )
    np.testing.assert_allclose((before / after)[[0, -1]], [1.0, 4.0], rtol=1e-12)


def test_keys_rotated_once_give_the_same_attention() -> None:
    query, key, value = inputs(1, 2, 2, 3, 50, 16)
    rope = na.RoPE(16)
    kept = rope.rotate(key), value
    moved = rope.rotate(query, np.arange(47, 50))
    whole = na.attention(query, key, value, na.ALiBi(2), rotary=rope)
    np.testing.assert_array_equal(na.attention(moved, *kept, na.ALiBi(2)), whole)


@pytest.mark.parametrize("name", ROTARY)
def test_scores_depend_on_distance_only(name: str) -> None:
    arrays = inputs(1, 1, 1, 8, 30, 8)
    q, k = np.arange(22, 30), np.arange(30)
    results = [
        na.attention(*arrays, rotary=ROTARY[name](8), query_positions=q + at, key_positions=k + at,
                     return_logsumexp=True)
        for at in (0, 12_345, 2**31 - 31)
    ]  # fmt: skip
    scores, scale = meant(arrays, ROTARY[name](8), q, k, visible(q, k))
    what = expected(*arrays, np.where(visible(q, k), 0.0, -np.inf), scale, scores=scores)
    for output, logsumexp in results:
        assert (np.abs(output - what.output) <= what.output_error).all()
        assert (np.abs(logsumexp - what.logsumexp) <= what.logsumexp_error).all()


DYNAMIC = [na.DynamicNTK(2.0, 32), na.DynamicNTK(2.0, 32, per="query"), na.NTK(4.0)]


@pytest.mark.parametrize("scaling", DYNAMIC, ids=repr)
@pytest.mark.parametrize("framework", ["NumPy", "torch"])
def test_dynamic_slopes_do_not_see_the_centres(scaling: Any, framework: str) -> None:
    arrays = inputs(2, 4, 4, 60, 80, 8)
    mask = np.ones((2, 80), np.int64)
    mask[1, :35] = 0
    seen = visible(np.arange(20, 80), np.arange(80), mask=mask, window=30)
    counts = mask.cumsum(axis=1)[:, 20:] if scaling.per == "query" else mask.sum(axis=1)
    bias = na.ALiBi(4, scaling)
    lengths = None if scaling.per is None else counts
    added = np.where(seen, dense(bias, np.arange(20, 80), np.arange(80), lengths), -np.inf)
    rotary = na.XPOS(8, scale_base=5.0)
    scores, scale = meant(arrays, rotary, np.arange(20, 80), np.arange(80), seen)
    options = {"window": 30, "rotary": rotary, "return_logsumexp": True}
    if framework == "NumPy":
        result = na.attention(*arrays, bias, key_padding_mask=mask, **options)
    else:
        tensors = [torch.from_numpy(x).requires_grad_() for x in arrays]
        found = na.attention(*tensors, bias, key_padding_mask=torch.from_numpy(mask), **options)
        result = tuple(x.detach().numpy() for x in found)
    check(*arrays, added, result, scale, scores=scores)


@given(call=calls(), train_length=st.integers(2, 90))
def test_log_n_counts_what_is_seen(call: Call, train_length: int) -> None:
    names = ("causal", "window", "causal_block", "sink", "key_padding_mask", "query_positions",
             "key_positions")  # fmt: skip
    options = {name: call.options[name] for name in names if name in call.options}
    queries, keys = call.query.shape[2], call.key.shape[2]
    factors = na.log_n_scale(queries, keys, train_length, **options)
    seen = masked(call)[:, 0]
    assert factors.dtype == np.float32
    assert factors.shape[0] in (1, len(seen))
    what = na.reference.log_n_factors(seen, train_length)
    np.testing.assert_allclose(np.broadcast_to(factors, what.shape), what, rtol=2 * UNIT)
    tensors = {
        name: torch.as_tensor(x) if isinstance(x, np.ndarray) else x for name, x in options.items()
    }
    theirs = na.log_n_scale(queries, keys, train_length, **tensors)
    np.testing.assert_allclose(np.asarray(theirs), factors, rtol=2 * UNIT)


def test_log_n_changes_nothing_up_to_the_training_length() -> None:
    arrays = inputs(2, 4, 2, 64, 64, 16)
    plain, scaled = (na.attention(*arrays, na.ALiBi(4), log_n=n) for n in (None, 64))
    np.testing.assert_array_equal(plain, scaled)
    assert (na.attention(*arrays, na.ALiBi(4), log_n=63) != plain)[:, :, -1].any()


def test_log_n_takes_key_norms() -> None:
    query, key, value = inputs(1, 2, 2, 1, 300, 16)
    norms = na.KeyNorms().update(key)
    plain, kept = (na.attention(query, key, value, log_n=8, key_norms=n) for n in (None, norms))
    np.testing.assert_array_equal(plain, kept)


GRADIENT_CASES = [
    (name, options)
    for name in ROTARY
    for options in (
        {"window": 20, "sink": 3},
        {"log_n": 7, "causal_block": 16},
        {"key_padding_mask": np.arange(70) >= np.array([[0], [30]])},
        {"query_positions": np.arange(70)[::-1] * 3 + 7, "key_positions": np.arange(70) * 3},
    )
]


@pytest.mark.parametrize(("name", "options"), GRADIENT_CASES)
def test_gradients_are_those_of_torch_in_float64(name: str, options: dict[str, Any]) -> None:
    """On the core, through torch's autograd and by `attention_gradients`, and on torch's own."""
    arrays = inputs(2, 4, 2, 70, 70, 16)
    rotary = ROTARY[name](16, rotary_dim=12)
    slopes = torch.rand(4, generator=torch.Generator().manual_seed(3))
    found = []
    for dtype in (torch.float32, torch.float64):
        sources = [torch.from_numpy(x).to(dtype) for x in arrays] + [slopes.to(dtype)]
        for x in sources:
            x.requires_grad_()
        bias = na.ALiBi(4, slopes=sources[3], sides="symmetric")
        output, log = na.attention(
            *sources[:3], bias, rotary=rotary, return_logsumexp=True, **options
        )
        seen = torch.where(log.isinf(), 0.0, log)
        loss = (output * torch.from_numpy(random(5, *output.shape)).to(dtype)).sum() + seen.sum()
        found.append([loss.detach(), *torch.autograd.grad(loss, sources)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5 * float(b.abs().max() + 1))
    bias = na.ALiBi(4, slopes=slopes.detach().numpy(), sides="symmetric")
    results = na.attention(*arrays, bias, rotary=rotary, return_logsumexp=True, **options)
    gradients = attention_gradients(
        *arrays, *results, random(5, *arrays[0].shape), np.ones_like(results[1]), bias,
        bias_gradient=True, rotary=rotary, **options,
    )  # fmt: skip
    for name_of, theirs in zip(("query", "key", "value"), found[0][1:4], strict=True):
        np.testing.assert_allclose(getattr(gradients, name_of), theirs, rtol=1e-5, atol=1e-5)
    assert gradients.left is not None
    assert gradients.right is not None
    summed = (gradients.left + gradients.right).sum(axis=(0, 2), dtype=np.float64)
    np.testing.assert_allclose(summed, found[0][4], rtol=1e-4, atol=1e-3)


def test_dense_biases_get_their_gradients_from_all_centres() -> None:
    arrays, rotary = inputs(1, 2, 2, 50, 60, 8), na.XPOS(8, scale_base=5.0)
    bias = random(7, 1, 2, 50, 60)
    kept = torch.from_numpy(bias.copy()).requires_grad_()
    output = na.attention(*map(torch.from_numpy, arrays), kept, rotary=rotary, window=9)
    (theirs,) = torch.autograd.grad(output.sin().sum(), [kept])
    results = na.attention(*arrays, bias, rotary=rotary, window=9, return_logsumexp=True)
    mine = attention_gradients(
        *arrays, *results, np.cos(results[0]), None, bias, bias_gradient=True, rotary=rotary,
        window=9,
    ).dense  # fmt: skip
    assert mine is not None
    np.testing.assert_allclose(mine, theirs, atol=1e-6)


GATES = -np.random.default_rng(5).random((2, 4, 130))
BIASES = {
    "none": None,
    "exempt": na.ALiBi(4, exempt=3),
    "dynamic": na.ALiBi(4, na.DynamicNTK(train_length=64, per="query")),
    "first": na.BiALiBi([0.5, 1.0, 1.5, 2.0], 0.1, 0.2),
    "power": na.KerplePower([0.5, 0.2, 0.1, 0.05], 0.5),
    "sandwich": na.Sandwich(4, dimension=8),
    "buckets": na.T5(np.random.default_rng(6).random((4, 32)), bidirectional=False),
    "gates": na.ForgetGates(GATES),
}


@pytest.mark.parametrize(
    "options", [{}, {"window": 20}, {"causal_block": 16}, {"log_n": 8}], ids=str
)
@pytest.mark.parametrize("name", ["RoPE", "XPOS of many centres"])
@pytest.mark.parametrize("kind", BIASES)
def test_any_bias_goes_with_it(kind: str, name: str, options: dict[str, Any]) -> None:
    arrays, bias, rotary = inputs(2, 4, 2, 90, 130, 16), BIASES[kind], ROTARY[name](16)
    numbers = np.zeros((1, 4, 90, 130)) if bias is None else bias.tensor(90, 130)
    results = na.attention(*arrays, bias, rotary=rotary, return_logsumexp=True, **options)
    q, k = np.arange(40, 130), np.arange(130)
    seen = visible(q, k, **{x: options[x] for x in options if x != "log_n"})
    scores, scale = meant(arrays, rotary, q, k, seen, options.get("log_n"))
    check(*arrays, np.where(seen, numbers, -np.inf), results, scale, scores=scores)

    given = (*arrays, *results, np.ones_like(results[0]), np.ones_like(results[1]))
    options = {**options, "rotary": rotary, "bias_gradient": True}
    whole = attention_gradients(*given, np.maximum(numbers, -1e4), **options)
    found = attention_gradients(*given, bias, **options)
    for x, y in zip(
        (found.query, found.key, found.value), (whole.query, whole.key, whole.value), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
    pairs = np.asarray(whole.dense, np.float64)
    d = q[:, None] - k
    if found.table is not None:
        for i in range(found.table.shape[1]):
            own = pairs[..., d == found.table_begin + i].sum(axis=(0, 2))
            np.testing.assert_allclose(found.table[:, i], own, rtol=1e-4, atol=1e-4)
    if found.sums is not None:
        own = -pairs.sum(axis=2)
        own[:, :, 40:] += pairs.sum(axis=3)
        np.testing.assert_allclose(found.sums, own, rtol=1e-4, atol=1e-4)
    if found.left is not None:
        first = {"exempt": 3, "first": 1}.get(kind, 0)
        own = -(pairs * d)[..., first:].sum(axis=3)
        np.testing.assert_allclose(found.left, own, rtol=1e-4, atol=1e-3)
    if found.first is not None:
        np.testing.assert_allclose(found.first, -pairs[..., 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["RoPE", "XPOS of many centres"])
@pytest.mark.parametrize("kind", ["exempt", "power", "gates"])
def test_tensors_of_any_bias_have_gradients_with_it(kind: str, name: str) -> None:
    makers: dict[str, Any] = {
        "exempt": (np.array([0.5, 0.3, 0.1, 0.05]), lambda x: na.ALiBi(4, slopes=x, exempt=3)),
        "power": (np.array([0.5, 0.2, 0.1, 0.05]), lambda x: na.KerplePower(x, 0.5)),
        "gates": (GATES, na.ForgetGates),
    }
    start, make = makers[kind]
    both = []
    for dtype in (torch.float32, torch.float64):
        arrays = [torch.from_numpy(x).to(dtype) for x in inputs(2, 4, 2, 90, 130, 16)]
        parameter = torch.from_numpy(start).to(dtype).requires_grad_()
        bias, rotary = make(parameter), ROTARY[name](16)
        output = na.attention(*arrays, bias, rotary=rotary, window=70)
        (output * torch.arange(16)).sum().backward()
        assert parameter.grad is not None
        both.append(parameter.grad.double())
    torch.testing.assert_close(*both, rtol=1e-4, atol=1e-4 * float(both[1].abs().max()))


@pytest.mark.parametrize("name", ROTARY)
def test_queries_beside_the_first_keys(name: str) -> None:
    query, key, value = inputs(1, 2, 2, 30, 50, 16)
    rotary = ROTARY[name](16)
    start = na.attention(query, key, value, na.ALiBi(2), rotary=rotary, align="start")
    same = na.attention(query, key[:, :, :30], value[:, :, :30], na.ALiBi(2), rotary=rotary)
    np.testing.assert_allclose(start, same, atol=1e-6)


@pytest.mark.parametrize("name", ROTARY)
def test_autocast_rounds_the_inputs_and_nothing_else(name: str) -> None:
    arrays = [torch.from_numpy(x) for x in inputs(1, 2, 2, 40, 40, 16)]
    at = torch.arange(40) + 1_000_000
    options = {"rotary": ROTARY[name](16), "query_positions": at, "key_positions": at, "log_n": 8}
    with torch.autocast("cpu", torch.bfloat16):
        mine = na.attention(*arrays, na.ALiBi(2), **options)
    rounded = na.attention(*(x.bfloat16().float() for x in arrays), na.ALiBi(2), **options)
    assert torch.equal(mine, rounded.bfloat16())


@pytest.mark.parametrize(
    "name", [x if x == "RoPE" else pytest.param(x, marks=pytest.mark.slow) for x in ROTARY]
)
def test_it_compiles_without_a_break(name: str) -> None:
    torch.manual_seed(0)
    sources = [x.requires_grad_() for x in torch.randn(3, 1, 2, 40, 8)]

    def attend(*arrays: torch.Tensor) -> Any:
        return na.attention(*arrays, na.ALiBi(2), rotary=ROTARY[name](8), log_n=9, window=30)

    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    for a, b in zip(
        *(torch.autograd.grad(f(*sources).sin().sum(), sources) for f in (attend, compiled)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_objects_compare_hash_print_and_pickle() -> None:
    for rotary in (
        na.RoPE(8, layout="halves", factor=2.0),
        na.XPOS(8, 100.0, 64, 0.3, rotary_dim=4),
    ):
        assert pickle.loads(pickle.dumps(rotary)) == rotary == eval(repr(rotary), vars(na))
        assert len({rotary, na.RoPE(8), na.XPOS(8)}) == 3
    assert na.RoPE(8) == na.RoPE(8, 10000)
    assert na.RoPE(8).rotary_dim == 8


QUERY = np.ones((1, 2, 5, 8), np.float32)


def attend(**options: Any) -> Any:
    return na.attention(QUERY, QUERY, QUERY, **options)


WRONG = [
    (lambda: na.RoPE(7), ValueError, "head_dim must be even for rotary positions, got 7"),
    (lambda: na.XPOS(5), ValueError, "head_dim must be even for rotary positions, got 5"),
    (lambda: na.RoPE(8, rotary_dim=3), ValueError, "rotary_dim must be even .* got 3"),
    (lambda: na.RoPE(8, rotary_dim=10), ValueError, "rotary_dim must be between 1 and 8, got 10"),
    (lambda: na.RoPE(0), ValueError, "head_dim must be between 1 and 256, got 0"),
    (lambda: na.RoPE(8.0), TypeError, "head_dim must be an integer, got 8.0"),
    (lambda: na.RoPE(8, 1.0), ValueError, "base must be a finite number > 1, got 1.0"),
    (lambda: na.RoPE(8, layout="neox"), ValueError, "layout must be one of 'pairs', 'halves'"),
    (lambda: na.XPOS(8, scale_base=0), ValueError, "scale_base must be a finite number > 0, got 0"),
    (lambda: na.XPOS(8, gamma=-0.4), ValueError, "gamma must be a finite number > 0, got -0.4"),
    (lambda: na.XPOS(8, gamma=math.nan), ValueError, "gamma must be a finite number > 0, got nan"),
    (lambda: na.RoPE(8, factor=0.5), ValueError, "factor must be a finite number >= 1, got 0.5"),
    (
        lambda: na.RoPE(8).stretched(na.DynamicNTK()),
        TypeError,
        "scaling must be an Interpolation or an NTK, got DynamicNTK",
    ),
    (lambda: na.RoPE(2).stretched(na.NTK(2.0)), ValueError, "for one pair of channels, got an NTK"),
    (lambda: attend(rotary=na.RoPE(16)), ValueError, "rotary must have query's head_dim 8, got"),
    (lambda: attend(rotary=na.RoPE), TypeError, "rotary must be None, a RoPE or an XPOS, got"),
    (lambda: attend(rotary="rope"), TypeError, "rotary must be None, .* got 'rope'"),
    (lambda: attend(rotary=na.XPOS(8), causal=False), ValueError, "causal must be True with XPOS"),
    (lambda: attend(log_n=1), ValueError, "log_n must be between 2 and .*, got 1"),
    (lambda: attend(log_n=2.5), TypeError, "log_n must be an integer, got 2.5"),
    (lambda: attend(log_n=8, window=0), ValueError, "window must be between 1 and .*, got 0"),
    (
        lambda: attend(rotary=na.RoPE(8), key_positions=np.arange(5) + 0.5),
        ValueError,
        "key_positions must be integers, got 0.5",
    ),
    (
        lambda: attend(rotary=na.RoPE(8), key_norms=na.KeyNorms().update(QUERY)),
        ValueError,
        "key_norms must be None when rotary is given",
    ),
    (lambda: na.RoPE(8).rotate(QUERY[0]), ValueError, "x must have shape"),
    (lambda: na.RoPE(4).rotate(QUERY), ValueError, "x must have head_dim 4"),
    (lambda: na.RoPE(8).rotate(QUERY, np.arange(4)), ValueError, r"positions must have shape \(5,"),
    (lambda: na.log_n_scale(4, 4, 1), ValueError, "train_length must be between 2 and"),
    (lambda: na.log_n_scale(4, 4, 8, window=0), ValueError, "window must be between 1 and"),
    (lambda: na.log_n_scale(-1, 4, 8), ValueError, "query_length must be between 0 and"),
    (
        lambda: na.log_n_scale(5, 4, 8, key_positions=np.arange(4)),
        ValueError,
        "query_positions must be given for more queries than keys",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG)
def test_bad_input_is_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_traced_xpos_refuses_positions_that_it_cannot_see() -> None:
    compiled = torch.compile(
        lambda x, at: na.attention(x, x, x, rotary=na.XPOS(8), query_positions=at),
        backend="eager",
        fullgraph=True,
    )
    with pytest.raises(Exception, match="query_positions and key_positions must be None with XPOS"):
        compiled(torch.ones(1, 2, 5, 8), torch.arange(5))
