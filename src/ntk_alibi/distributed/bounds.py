"""Upper bounds of the weights of blocks of keys on other ranks.

benchmarks/results/distributed.md has the proof. Arrays are NumPy's, float64 unless stated
otherwise, and logarithms are natural.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _arrays
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.masks import Mask

Floats = NDArray[np.float64]

#: A factor of norms that covers the rounding of float32 sums of at most 256 squares.
NORM_SLACK = 1.0 + 2.0**-15

#: The position of blocks without real keys, which no query sees.
NOWHERE = 2**31

#: The most pairs of a tile and a block that are computed at a time, so that memory stays bounded.
CHUNK = 2**22


class KeyBlocks(NamedTuple):
    """Blocks of consecutive keys of one rank.

    Attributes:
        norms: greatest norm of the keys less the centre, (batch, key heads, blocks) float32.
        centres: the centre that norms are measured from, (batch, key heads, head_dim) float32.
        first, last: least and greatest position of real keys, (1 or batch, blocks) int64; NOWHERE
            in blocks without any.
        real: number of real keys, (1 or batch, blocks).
        distinct: whether no two real keys of a block share a position, (1 or batch, blocks).
        sums: least prefix sum of the keys, (1 or batch, heads, blocks), or None.
    """

    norms: NDArray[np.float32]
    centres: NDArray[np.float32]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    real: NDArray[np.int64]
    distinct: NDArray[np.bool_]
    sums: Floats | None = None


class QueryTiles(NamedTuple):
    """Tiles of consecutive queries of this rank.

    Attributes:
        norms: greatest norm of the queries times all factors of their dot products, (batch, heads,
            tiles).
        room: for each source of blocks, the greatest q.z - l over the tile's queries, with q the
            query times these factors, z the source's centre and l a lower bound of the query's
            logsumexp, (sources, batch, heads, tiles).
        first, last: least and greatest position, (1 or batch, tiles) int64.
        seen_from, seen_to: bounds of the visible positions, (1 or batch, tiles).
        sums: greatest prefix sum, (1 or batch, heads, tiles), or None.
    """

    norms: Floats
    room: Floats
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    seen_from: NDArray[np.int64]
    seen_to: NDArray[np.int64]
    sums: Floats | None = None


def reduce_runs(array: NDArray[Any], size: int, reduce: Any, fill: Any) -> NDArray[Any]:
    """Reduce the last axis in runs of `size`; the last run may be shorter."""
    count = -(-array.shape[-1] // size)
    short = count * size - array.shape[-1]
    padded = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, short)], constant_values=fill)
    result: NDArray[Any] = reduce(padded.reshape(*array.shape[:-1], count, size), axis=-1)
    return result


def block_positions(
    positions: NDArray[Any], real: NDArray[np.bool_], size: int
) -> tuple[Any, Any, Any, Any]:
    """Return what positions say about each block of keys: four fields of `KeyBlocks`.

    Args:
        positions: (1 or batch, keys).
        real: (1 or batch, keys), False for padding.
        size: number of keys in a block.

    Returns:
        The fields `first`, `last`, `real` and `distinct`, each (1 or batch, blocks).
    """
    positions = np.broadcast_to(positions.astype(np.int64), real.shape)
    first = reduce_runs(np.where(real, positions, NOWHERE), size, np.min, NOWHERE)
    last = reduce_runs(np.where(real, positions, -1), size, np.max, -1)
    count = reduce_runs(real.astype(np.int64), size, np.sum, 0)
    unique = np.where(real, positions, -2 - np.arange(positions.shape[1]))
    return first, last, count, reduce_runs(unique, size, _all_differ, -1)


def tile_positions(positions: NDArray[Any], mask: Mask, size: int) -> dict[str, Any]:
    """Return the fields of `QueryTiles` that follow from positions (1 or batch, queries)."""
    at = positions.astype(np.int64)
    seen_from, seen_to = mask.interval(at)
    return {
        "first": reduce_runs(at, size, np.min, NOWHERE),
        "last": reduce_runs(at, size, np.max, -1),
        "seen_from": reduce_runs(seen_from, size, np.min, NOWHERE),
        "seen_to": reduce_runs(seen_to, size, np.max, -NOWHERE),
    }


def visible_blocks(tiles: QueryTiles, blocks: KeyBlocks, mask: Mask) -> NDArray[np.bool_]:
    """Return which blocks may be seen by some query of a tile, (1 or batch, tiles, blocks)."""
    first, last = blocks.first[:, None], blocks.last[:, None]
    inside = (first < tiles.seen_to[:, :, None]) & (last >= tiles.seen_from[:, :, None])
    sinks = (first < mask.sink) & (first < tiles.seen_to[:, :, None])
    result: NDArray[np.bool_] = (inside | sinks) & (blocks.real[:, None] > 0)
    return result


class BiasBounds:
    """Upper bounds of a bias between tiles and blocks.

    Args:
        bias: the kernel form for all keys of the sequence.
        tile: number of queries in a tile.
    """

    def __init__(self, bias: KernelBias, tile: int) -> None:
        self._bias = bias = bias.mapped(lambda _, x: _arrays.to_numpy(x))
        self._least: dict[str, Floats] = {}
        for name, slopes in bias.slopes.items():
            reduced = slopes.astype(np.float64)
            if reduced.shape[2] > 1:
                reduced = reduce_runs(reduced, tile, np.min, np.inf)
            self._least[name] = reduced
        if bias.table is not None:
            table = bias.table.astype(np.float64)
            self._from = np.maximum.accumulate(table[:, ::-1], axis=1)[:, ::-1]
            self._up_to = np.maximum.accumulate(table, axis=1)

    @property
    def sums(self) -> NDArray[Any] | None:
        """Prefix sums of this rank's keys, (1 or batch, heads, keys), or None."""
        sums: NDArray[Any] | None = self._bias.sums
        return sums

    @property
    def proven(self) -> bool:
        """Whether there are bounds for distant keys."""
        bias = self._bias
        if bias.exempt or bias.dense is not None:
            return False
        slopes = self._least.values()
        return (
            bias.table is not None
            or bias.sums is not None
            or (bool(self._least) and all(bool((side >= 0).all()) for side in slopes))
        )

    def between(
        self, head: int, batch: int, tiles: slice, query: QueryTiles, blocks: KeyBlocks
    ) -> tuple[Floats, Floats]:
        """Return an upper bound of the bias, and the logarithm of how many keys can reach it.

        Args:
            head: index of the head.
            batch: index of the batch row.
            tiles: the tiles to compute.
            query: the tiles of this rank.
            blocks: the blocks of one source.

        Returns:
            Two arrays that broadcast to (tiles, blocks).
        """
        real = _of_row(blocks.real, batch)[None]
        count = np.log(np.maximum(real, 1).astype(np.float64))
        if self._bias.sums is not None:
            assert query.sums is not None
            assert blocks.sums is not None
            c = _of_row(query.sums, batch)[head, tiles, None]
            k = _of_row(blocks.sums, batch)[head][None]
            return c - k, count
        behind = _of_row(query.first, batch)[tiles, None] - _of_row(blocks.last, batch)[None]
        ahead = _of_row(blocks.first, batch)[None] - _of_row(query.last, batch)[tiles, None]
        if self._bias.table is not None:
            return self._table_bound(head, behind, ahead), count
        bound, rate = self._slope_bound(head, batch, tiles, behind, ahead)
        rate = np.where(_of_row(blocks.distinct, batch)[None], rate, 0.0)
        return bound, np.log(_sum_of_weights(rate, np.exp(count)))

    def _table_bound(self, head: int, behind: NDArray[Any], ahead: NDArray[Any]) -> Floats:
        size, begin = self._from.shape[1], self._bias.table_begin
        whole = float(self._from[head, 0]) if size else -np.inf
        bound = np.full(np.broadcast_shapes(behind.shape, ahead.shape), whole)
        if size:
            beyond = self._from[head, np.clip(behind - begin, 0, size - 1)]
            at_most = self._up_to[head, np.clip(-ahead - begin, 0, size - 1)]
            bound = np.where(behind > 0, beyond, np.where(ahead > 0, at_most, bound))
        # Distances outside of the table have the bias 0.
        outside = (behind >= begin + size) | (-ahead < begin)
        result: Floats = np.where(outside, np.maximum(bound, 0.0), bound)
        return result

    def _slope_bound(
        self, head: int, batch: int, tiles: slice, behind: Any, ahead: Any
    ) -> tuple[Floats, Floats]:
        """Return the bound at a block's nearest key, and how fast it falls beyond that key."""

        def least(name: str) -> Floats:
            row = _of_row(self._least[name], batch)[head]
            column: Floats = (row[tiles] if len(row) > 1 else row)[:, None]
            return column

        near = np.maximum(np.maximum(behind, ahead), 0).astype(np.float64)
        left = behind > 0
        slope = np.where(left, least("left"), least("right"))
        hidden = np.isinf(slope) & (near > 0)
        slope = np.where(np.isinf(slope), 0.0, slope)
        if self._bias.far_left is None:
            bound, rate = -slope * near, slope
        else:
            far = np.where(left, least("far_left"), least("far_right"))
            bent = np.minimum(near, self._bias.knee)
            bound, rate = -slope * bent - far * (near - bent), np.minimum(slope, far)
        return np.where(hidden, -np.inf, bound), np.where(near > 0, rate, 0.0)


def _sum_of_weights(rate: Floats, count: Floats) -> Floats:
    """Return the sum of e^(-rate t) over t = 0, ..., count - 1, or an upper bound."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        series = np.expm1(-rate * count) / np.expm1(-rate)
    return np.minimum(np.where(rate > 1e-12, series, count), count)


def needed_blocks(
    query: QueryTiles,
    sources: list[KeyBlocks],
    bias: BiasBounds,
    mask: Mask,
    share: float,
) -> list[NDArray[np.bool_]]:
    """Return the blocks of each source that must be read, (batch, key heads, blocks).

    All other blocks together have at most `share` of each query's weights.

    Args:
        query: the tiles of this rank.
        sources: the blocks of all ranks; none for this rank.
        bias: bounds of the bias.
        mask: the mask.
        share: the greatest share of a query's weights that may be left out; 0 for none.
    """
    seen = [visible_blocks(query, blocks, mask) for blocks in sources]
    batch, heads, _ = query.norms.shape
    key_heads = sources[0].norms.shape[1]
    wanted = [np.zeros((batch, key_heads, x.norms.shape[2]), np.bool_) for x in sources]
    for b in range(batch):
        any_tile = [_of_row(x, b).any(axis=0) for x in seen]
        for head in range(heads):
            needed = any_tile
            if share > 0.0 and bias.proven:
                worst = [
                    _log_shares(query, blocks, bias, visible, (b, head, source))
                    for source, (blocks, visible) in enumerate(zip(sources, seen, strict=True))
                ]
                needed = _needed(worst, share)
            for want, need in zip(wanted, needed, strict=True):
                want[b, head * key_heads // heads] |= need
    return wanted


def _log_shares(
    query: QueryTiles,
    blocks: KeyBlocks,
    bias: BiasBounds,
    visible: NDArray[np.bool_],
    row: tuple[int, int, int],
) -> Floats:
    """Return the logarithm of each block's greatest share of a query's weights."""
    batch, head, source = row
    heads, key_heads = query.norms.shape[1], blocks.norms.shape[1]
    norms = blocks.norms[batch, head * key_heads // heads].astype(np.float64)
    worst = np.full(norms.shape, -np.inf)
    size = max(1, CHUNK // max(len(norms), 1))
    for begin in range(0, query.norms.shape[2], size):
        tiles = slice(begin, begin + size)
        bound, count = bias.between(head, batch, tiles, query, blocks)
        scores = query.norms[batch, head, tiles, None] * norms[None]
        with np.errstate(invalid="ignore", over="ignore"):
            share = scores + bound + count + query.room[source, batch, head, tiles, None]
        # NaN comes from infinite scores and from missing lower bounds, and proves nothing.
        share = np.where(np.isnan(share), np.inf, share)
        share = np.where(_of_row(visible, batch)[tiles], share, -np.inf)
        worst = np.maximum(worst, share.max(axis=0, initial=-np.inf))
    return worst


def _needed(worst: list[Floats], share: float) -> list[NDArray[np.bool_]]:
    """Return all blocks except the lightest, which together have at most `share`."""
    every = np.concatenate(worst)
    order = np.argsort(every, kind="stable")
    with np.errstate(over="ignore"):
        total = np.cumsum(np.exp(np.minimum(every[order], 700.0)))
    keep = np.zeros(len(every), np.bool_)
    keep[order] = total > share * (1.0 - 2.0**-20)
    return np.split(keep, np.cumsum([len(x) for x in worst])[:-1])


def _of_row(array: NDArray[Any], batch: int) -> Any:
    """Return a row of an array (1 or batch, ...), whose single row counts for all."""
    return array[batch if len(array) > 1 else 0]


def _all_differ(positions: NDArray[Any], axis: int) -> NDArray[np.bool_]:
    """Return whether all positions >= 0 along the last axis differ."""
    ordered = np.sort(positions, axis=axis)
    same = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
    differ: NDArray[np.bool_] = ~same.any(axis=axis)
    return differ
