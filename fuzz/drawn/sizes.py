"""Shapes of calls: mostly tiny, now and then across the sizes of the kernels' tiles and blocks."""

from __future__ import annotations

from typing import NamedTuple

from fuzz.draw import Draw

#: Around the vector widths, tiles of 16 to 64 queries, blocks of 64 keys, and larger blocks.
EDGES = tuple(n + i for n in (16, 32, 64, 128, 256, 512) for i in (-1, 0, 1))
DIMS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 80, 96, 127, 128, 129, 255, 256)

#: Products of query and key channels in one call at most, so that a case takes milliseconds.
MOST_PRODUCTS = 3_000_000


class Sizes(NamedTuple):
    """The shape of a call."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int

    @property
    def pairs(self) -> tuple[int, int, int, int]:
        """The shape of the matrix of all pairs."""
        return self.batch, self.heads, self.queries, self.keys

    @staticmethod
    def drawn(draw: Draw, *, cheaper: float = 1.0) -> Sizes:
        """Draw sizes with at most MOST_PRODUCTS / cheaper products."""
        batch, kv_heads = draw.integer(1, 3), draw.integer(1, 3)
        heads = kv_heads * draw.weighted({1: 4, 2: 2, 3: 1, 4: 1})
        queries, keys, dim = LENGTHS[draw.weighted(WEIGHTS)](draw)
        while batch * heads * queries * keys * max(dim, 8) > MOST_PRODUCTS / cheaper:
            if batch > 1:
                batch = 1
            elif heads > 1:
                heads = kv_heads = 1
            elif dim > 16:
                dim = 16 - dim % 2
            else:
                queries, keys = queries // 2 + 1, keys // 2 + 1
        return Sizes(batch, heads, kv_heads, queries, keys, dim)


def _tiny(draw: Draw) -> tuple[int, int, int]:
    return draw.integer(1, 6), draw.integer(1, 20), draw.integer(1, 10)


def _middling(draw: Draw) -> tuple[int, int, int]:
    return draw.integer(1, 70), draw.integer(1, 200), draw.one_of(DIMS)


def _edge(draw: Draw) -> tuple[int, int, int]:
    return draw.one_of(EDGES[:12]), draw.one_of(EDGES), draw.one_of(DIMS)


def _decoding(draw: Draw) -> tuple[int, int, int]:
    return draw.integer(1, 2), draw.integer(400, 1600), draw.one_of(DIMS)


def _parts(draw: Draw) -> tuple[int, int, int]:
    """Draw one or two queries, for which the kernels split the keys into parts of 8192."""
    return draw.integer(1, 2), draw.integer(8100, 17000), draw.integer(1, 8)


def _empty(draw: Draw) -> tuple[int, int, int]:
    return draw.one_of(((0, 3, 4), (2, 0, 4), (0, 0, 1)))


LENGTHS = {
    "tiny": _tiny,
    "middling": _middling,
    "edge": _edge,
    "decoding": _decoding,
    "parts": _parts,
    "empty": _empty,
}
WEIGHTS = {"tiny": 88, "middling": 8, "edge": 1, "decoding": 1, "parts": 0.1, "empty": 1}
