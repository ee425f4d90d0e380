"""Calls of attention of every kind, for hypothesis, and rotary embeddings as papers write them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import ntk_alibi as na
from attention_checks import NUMPY, dense, visible

LAYOUTS = ("plain", "fused", "transposed", "reversed", "repeated", "spread", "mirrored", "odd")
PADDINGS = ("none", "left", "right", "holes", "all of a row")
POSITIONS = ("columns", "real tokens", "gaps", "unsorted", "repeats", "far", "queries only")
SIDES = ("causal", "symmetric", "halves", "two_slopes")
LENGTHS = st.integers(0, 150) | st.sampled_from((1, 2, 3, 63, 64, 65, 128, 129))
DIMS = st.integers(1, 256) | st.sampled_from((1, 8, 15, 16, 17, 32, 64, 80))


@dataclass
class Call:
    """Arguments of a call, the visible pairs, and the expected bias of all pairs.

    `dense_bias` is -inf for pairs that are not visible, too.
    """

    query: NDArray[Any]
    key: NDArray[Any]
    value: NDArray[Any]
    bias: Any
    options: dict[str, Any]
    seen: NDArray[np.bool_]
    dense_bias: NDArray[np.float64]

    def run(self, **options: Any) -> Any:
        options = {**self.options, "return_logsumexp": True, **options}
        return na.attention(self.query, self.key, self.value, self.bias, **options)


def laid_out(entries: NDArray[Any], layout: str) -> NDArray[Any]:
    """Return an array of equal shape and dtype with other strides; "repeated" changes values."""
    batch, heads, length, dim = entries.shape
    if layout == "fused":  # BLOOM's (batch, length, heads, 3, head_dim)
        whole = np.zeros((batch, length, heads, 3, dim), entries.dtype)
        whole[:, :, :, 1] = entries.swapaxes(1, 2)
        return whole[:, :, :, 1].swapaxes(1, 2)
    if layout == "transposed":
        return np.ascontiguousarray(entries.swapaxes(1, 3)).swapaxes(1, 3)
    if layout == "reversed":
        return np.ascontiguousarray(entries[::-1, ::-1, ::-1])[::-1, ::-1, ::-1]
    if layout == "repeated":
        return np.broadcast_to(entries[:, :1, :1], entries.shape)
    if layout == "spread":
        whole = np.zeros((batch, heads, 2 * length, 2 * dim), entries.dtype)
        whole[:, :, ::2, 1::2] = entries
        return whole[:, :, ::2, 1::2]
    if layout == "mirrored":
        return np.ascontiguousarray(entries[..., ::-1])[..., ::-1]
    if layout == "odd":
        whole = np.zeros(entries.nbytes + 1, np.uint8)[1:].view(entries.dtype)
        whole.reshape(entries.shape)[:] = entries
        return whole.reshape(entries.shape)
    return entries


def padding(random: np.random.Generator, kind: str, batch: int, keys: int) -> NDArray[Any] | None:
    if kind == "none":
        return None
    mask = np.ones((batch, keys), [np.int64, np.bool_, np.float32][random.integers(3)])
    for row in mask:
        cut = random.integers(keys + 1)
        if kind == "left":
            row[:cut] = 0
        elif kind == "right":
            row[cut:] = 0
        elif kind == "holes":
            row[random.random(keys) < random.random()] = 0
    if kind == "all of a row":
        mask[random.integers(batch)] = 0
    return mask


def positions(
    random: np.random.Generator, kind: str, queries: int, keys: int, mask: NDArray[Any] | None
) -> tuple[dict[str, Any], NDArray[Any], NDArray[Any]]:
    """Return options, and the positions of queries and keys, (length,) or (batch, length)."""
    q, k = np.arange(keys - queries, keys), np.arange(keys)
    if kind == "columns":
        return {}, q, k
    if kind == "queries only" or queries > keys:
        q = random.integers(0, keys + 20, queries)
        return {"query_positions": q}, q, k
    if kind == "real tokens" and mask is not None:
        k = np.maximum(mask.astype(np.int64).cumsum(axis=1) - 1, 0)
        return {"key_positions": k}, k[:, keys - queries :], k
    if kind == "gaps":
        k = np.cumsum(random.integers(1, 9, keys))
    elif kind == "unsorted":
        k = random.permutation(keys)
    elif kind == "repeats":
        k = np.sort(random.integers(0, 1 + keys // 3, keys))
    else:
        k = k + 10**6
    if kind == "gaps" and random.integers(2):
        return {"key_positions": k}, k[keys - queries :], k
    q = random.choice(k, queries) if keys else q
    return {"key_positions": k, "query_positions": q}, q, k


def real_tokens(per: str, mask: NDArray[Any] | None, q: NDArray[Any], k: NDArray[Any]) -> Any:
    """Count the real keys of each row, or the tokens up to each query, for a dynamic scaling.

    Every position from 0 on counts, except positions that only padding has.
    """
    real = np.ones((1, k.shape[-1]), np.bool_) if mask is None else mask.astype(np.bool_)
    if per == "sequence":
        return real.sum(axis=1)
    rows = np.broadcast_to(q, (len(real), q.shape[-1]))
    keys = np.broadcast_to(k, real.shape)
    holes = [set(at[~row]) - set(at[row]) for at, row in zip(keys, real, strict=True)]
    return np.array(
        [[max(p + 1, 0) - sum(h <= p for h in own) for p in row]
         for row, own in zip(rows.tolist(), holes, strict=True)]
    ).reshape(rows.shape)  # fmt: skip


def own_slopes(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Draw slopes (batch, heads, queries) or with fewer axes; some infinite, 0 or negative."""
    batch, heads, queries = shape
    shapes = ((heads,), (1, heads), (batch, heads), (batch, heads, queries))
    slopes = np.exp2(-10 * random.random(shapes[random.integers(4)])).astype(np.float32)
    for special in (np.inf, 0.0, -0.03):
        if random.integers(4) == 0:
            slopes[random.random(slopes.shape) < 0.3] = special
    return slopes


def linear(
    random: np.random.Generator, causal: bool, shape: tuple[int, ...], counting: bool
) -> na.ALiBi:
    """Draw an ALiBi bias for (batch, heads, queries), with a static or dynamic scaling."""
    heads = shape[1]
    sides = [s for s in SIDES if causal or s != "causal"]
    side: Any = sides[random.integers(len(sides))]
    if side == "two_slopes" or random.integers(3) == 0:
        pair = own_slopes(random, shape), own_slopes(random, shape)
        return na.ALiBi(heads, slopes=pair if side == "two_slopes" else pair[0], sides=side)
    scalings = (
        None,
        na.NTK(8.0),
        na.Interpolation(3.0),
        na.DynamicNTK(2.0, 32),
        na.DynamicNTK(3.0, 16, per="query"),
        na.DynamicInterpolation(2.0, 40, per="query"),
    )
    return na.ALiBi(heads, scalings[random.integers(6 if counting else 3)], sides=side)


def full_bias(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """Draw values broadcastable to shape, some of them -inf, but never a whole row."""
    axes = [1 if random.integers(4) == 0 else n for n in shape][random.integers(4) :]
    entries = 3 * random.standard_normal(axes)
    hidden = random.random(axes) < random.choice([0.0, 0.3])
    hidden[..., random.integers(max(1, axes[-1])) :][..., :1] = False
    entries[hidden] = -np.inf
    dtype = list(NUMPY.values())[random.integers(3)]
    return laid_out_bias(random, entries.astype(dtype))


def laid_out_bias(random: np.random.Generator, bias: NDArray[Any]) -> NDArray[Any]:
    kind = random.integers(3)
    if kind == 0:
        return np.ascontiguousarray(bias[..., ::-1])[..., ::-1]
    if kind == 1:
        whole = np.zeros(bias.shape, [("number", bias.dtype), ("flag", np.uint8)])
        whole["number"] = bias
        return whole["number"]
    return bias


@st.composite
def calls(
    draw: st.DrawFn,
    *,
    dtypes: tuple[str, ...] = tuple(NUMPY),
    layouts: tuple[str, ...] = LAYOUTS,
    standing: tuple[str, ...] = POSITIONS,
    counting: bool = True,
) -> Call:
    """Draw a call with these dtypes, layouts and positions, and a linear, a dense or no bias.

    hypothesis shrinks shapes and kinds; values come from a seed.
    """
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    batch, kv_heads, group = draw(st.tuples(*[st.integers(1, n) for n in (3, 2, 3)]))
    queries, keys, dim = draw(LENGTHS), draw(LENGTHS), draw(DIMS)
    causal = draw(st.booleans())
    options: dict[str, Any] = {
        "causal": causal,
        "window": draw(st.none() | st.integers(1, 160)),
        "causal_block": draw(st.none() | st.integers(1, 90)) if causal else None,
        "sink": 0,
        "scale": draw(st.sampled_from((None, None, 0.0, -0.3, 1.0))),
        "skip_tolerance": draw(st.sampled_from((0.0, None, 2.0**-4, 2.0**-12))),
    }
    if options["window"] or options["causal_block"]:
        options["sink"] = draw(st.sampled_from((0, 0, 1, 5, 70)))
    mask = padding(random, draw(st.sampled_from(PADDINGS)), batch, keys)
    given, q, k = positions(random, draw(st.sampled_from(standing)), queries, keys, mask)
    intervals = {name: options[name] for name in ("window", "causal_block", "sink")}
    seen = visible(q, k, causal=causal, **intervals, mask=mask)
    shape = (batch, kv_heads * group, queries, keys)
    kind = draw(st.sampled_from(("linear", "linear", "full", None)))
    bias, dense_bias = _bias(random, kind, shape, causal, counting, (mask, q, k))
    dense_bias = np.where(seen, dense_bias, -np.inf)
    dtype = draw(st.sampled_from(dtypes))
    key_shape = (batch, kv_heads, keys, dim)
    arrays = [random.standard_normal((*shape[:3], dim)), *random.standard_normal((2, *key_shape))]
    if draw(st.booleans()):  # a few keys that weigh much, wherever they are
        arrays[1] *= np.where(random.random((keys, 1)) < 0.05, 20.0, 1.0)
    query, key, value = (
        laid_out(x.astype(NUMPY[dtype]), draw(st.sampled_from(layouts))) for x in arrays
    )
    if draw(st.booleans()):
        key, value = _poisoned(key, value, seen)
    options |= given | ({} if mask is None else {"key_padding_mask": mask})
    return Call(
        query,
        key,
        value,
        bias,
        options,
        np.broadcast_to(seen, shape),
        np.broadcast_to(dense_bias, shape),
    )


def _bias(
    random: np.random.Generator,
    kind: str | None,
    shape: tuple[int, ...],
    causal: bool,
    counting: bool,
    where: tuple[Any, ...],
) -> tuple[Any, NDArray[np.float64]]:
    """Draw a bias of this kind, and return it with its dense form."""
    mask, q, k = where
    if kind == "full":
        bias = full_bias(random, shape)
        return bias, np.broadcast_to(bias.astype(np.float64), shape)
    if kind != "linear":
        return None, np.zeros(shape)
    alibi = linear(random, causal, shape[:3], counting)
    per = getattr(alibi.scaling, "per", None)
    lengths = None if per is None else real_tokens(per, mask, q, k)
    return alibi, dense(alibi, q, k, lengths)


def _poisoned(
    key: NDArray[Any], value: NDArray[Any], seen: NDArray[np.bool_]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Put NaN and infinity into keys and values that no query sees; keep writeable layouts."""
    unseen = np.broadcast_to(~seen.any(axis=2), key.shape[:3])
    poisoned = []
    for array, poison in ((key, np.nan), (value, np.inf)):
        if not array.flags.writeable:  # repeated values
            array = array.copy()
        array[unseen] = poison
        poisoned.append(array)
    return poisoned[0], poisoned[1]


# ---- rotary embeddings, and the sums of their papers ------------------------------------------

ROTARY = {
    "RoPE": lambda dim, **kw: na.RoPE(dim, **kw),
    "XPOS": lambda dim, **kw: na.XPOS(dim, **kw),
    "XPOS of many centres": lambda dim, **kw: na.XPOS(dim, 100.0, 5.0, 0.2, **kw),
}


def in_pairs(x: NDArray[Any], layout: str) -> NDArray[np.float64]:
    """Return rotary channels in the papers' order."""
    x = np.asarray(x, np.float64)
    half = x.shape[-1] // 2
    order = np.stack([np.arange(half), np.arange(half) + half], axis=-1).ravel()
    return x if layout == "pairs" else x[..., order]


def products(
    rotary: Any, query: Any, key: Any, q: NDArray[Any], k: NDArray[Any]
) -> NDArray[np.float64]:
    """Return q.k of all pairs (batch, heads, queries, keys) by the reference."""
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


def reference_scores(
    arrays: Any,
    rotary: Any,
    q: NDArray[Any],
    k: NDArray[Any],
    seen: NDArray[np.bool_],
    log_n: int | None = None,
    scale: float | None = None,
) -> tuple[NDArray[np.float64], float]:
    """Return scores of all pairs, 0 for hidden keys, and the greatest scale in them."""
    scale = 1 / math.sqrt(arrays[0].shape[3]) if scale is None else scale
    factors = np.ones((1, 1, 1)) if log_n is None else na.reference.log_n_factors(seen, log_n)
    with np.errstate(invalid="ignore"):  # NaN in keys that no query sees
        scores = scale * factors[..., None] * products(rotary, *arrays[:2], q, k)
    return np.where(seen, scores, 0.0), scale * float(factors.max(initial=1.0))


def places(call: Call) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return positions of a call's queries and keys."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    k = call.options.get("key_positions", np.arange(keys))
    last = np.arange(keys - queries, keys)
    if "key_positions" in call.options:
        last = k[..., max(keys - queries, 0) :]
    return call.options.get("query_positions", last), k


def masked(call: Call) -> NDArray[np.bool_]:
    """Return the pairs that the mask leaves visible, for all heads; the bias may hide more."""
    q, k = places(call)
    names = ("causal", "window", "causal_block", "sink")
    mask = call.options.get("key_padding_mask")
    seen = visible(q, k, **{name: call.options[name] for name in names}, mask=mask)
    return np.broadcast_to(seen, call.seen.shape)
