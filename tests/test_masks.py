"""All implementations of the mask rule agree with the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ntk_alibi as na
from ntk_alibi.inspection import weights
from ntk_alibi.masks import Cut, Mask, Problem


@st.composite
def drawn_masks(draw: st.DrawFn) -> tuple[dict[str, Any], Any, Any, Any]:
    """Draw options of a mask, positions of queries and keys, and a padding mask."""
    causal = draw(st.booleans())
    rule = {
        "causal": causal,
        "window": draw(st.none() | st.integers(1, 40)),
        "causal_block": draw(st.none() | st.integers(1, 20)) if causal else None,
        "sink": 0,
    }
    if rule["window"] or rule["causal_block"]:
        rule["sink"] = draw(st.sampled_from((0, 1, 4, 30, 100)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    queries, keys = draw(st.integers(1, 30)), draw(st.integers(1, 70))
    most = draw(st.sampled_from((1, 20, 90)))
    at_queries, at_keys = (random.integers(0, most, n) for n in (queries, keys))
    real = (random.random((1, keys)) < draw(st.sampled_from((0.0, 0.5, 1.0)))).astype(np.int64)
    return rule, at_queries, at_keys, real


@given(drawn=drawn_masks())
def test_masks_and_kernels_see_the_keys_of_the_reference(drawn: Any) -> None:
    rule, queries, keys, real = drawn
    mask = Mask.checked(**rule)
    of_positions = na.reference.visible(queries, keys, **rule)
    seen = na.reference.visible(queries, keys, real, **rule)
    np.testing.assert_array_equal(seen, of_positions[None] & (real[:, None] == 1))
    np.testing.assert_array_equal(mask.visible(queries, keys), of_positions)
    rows = queries[None], keys[None]
    np.testing.assert_array_equal(mask.visible_count(*rows), of_positions.sum(-1)[None])
    np.testing.assert_array_equal(mask.visible_count(*rows, real), seen.sum(-1))
    tensors = [torch.from_numpy(x) for x in rows]
    np.testing.assert_array_equal(mask.visible(*tensors)[0], of_positions)
    np.testing.assert_array_equal(
        mask.visible_count(*tensors, torch.from_numpy(real)), seen.sum(-1)
    )
    found = weights(
        len(queries), len(keys), query_positions=queries, key_positions=keys,
        key_padding_mask=real, **rule,
    )  # fmt: skip
    np.testing.assert_array_equal(found > 0, seen)


@given(drawn=drawn_masks())
def test_masks_of_columns_are_those_of_their_positions(drawn: Any) -> None:
    """The kernels know that columns are in order, and skip keys by it."""
    rule, queries, keys, _ = drawn
    count, length = len(queries), max(len(queries), len(keys))
    seen = na.reference.visible(np.arange(length - count, length), np.arange(length), **rule)
    np.testing.assert_array_equal(weights(count, length, **rule)[0] > 0, seen)


@given(drawn=drawn_masks())
def test_every_distance_that_is_seen_is_within_the_bounds(drawn: Any) -> None:
    rule, queries, keys, _ = drawn
    mask = Mask.checked(**rule)
    distances = queries[:, None] - keys
    least, most = mask.bounded(int(distances.min()), int(distances.max()))
    distance = distances[na.reference.visible(queries, keys, **rule)]
    assert ((least <= distance) & (distance <= most)).all()
    assert Mask.from_integers(*mask.to_integers()) == mask


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({}, "1111..."),
        ({"causal": False}, "1111111"),
        ({"window": 2}, "..11..."),
        ({"window": 2, "causal": False}, "..111.."),
        ({"window": 2, "sink": 1}, "1.11..."),
        ({"window": 2, "sink": 1, "causal": False}, "1.111.."),
        ({"window": 2, "sink": 7, "causal": False}, "11111.."),
        ({"sink": 7}, "1111..."),
        ({"causal_block": 1}, "..11..."),
        ({"causal_block": 2}, "1111..."),
        ({"causal_block": 1, "sink": 1}, "1.11..."),
        ({"causal_block": 3, "window": 3}, ".111..."),
        ({"key_padding_mask": [0, 1, 1, 0, 1, 1, 1]}, ".11...."),
    ],
    ids=str,
)
def test_the_reference_sees_what_the_words_say(options: dict[str, Any], seen: str) -> None:
    """The expected masks are written by hand for the query at position 3 of 7 keys."""
    (row,) = na.reference.visible([3], range(7), **options)
    assert "".join("1" if sees else "." for sees in row) == seen


@st.composite
def drawn_problems(draw: st.DrawFn) -> Problem:
    """Draw a problem of two rows, with or without padding and positions."""
    rule, _, _, _ = draw(drawn_masks())
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    queries, keys = draw(st.integers(1, 20)), draw(st.integers(1, 40))
    real = at_queries = at_keys = None
    if draw(st.booleans()):
        real = (random.random((2, keys)) < draw(st.sampled_from((0.5, 0.9)))).astype(np.uint8)
    if draw(st.booleans()):
        at_queries = random.integers(0, 50, (draw(st.sampled_from((1, 2))), queries))
        if draw(st.booleans()):
            at_keys = random.integers(0, 50, (draw(st.sampled_from((1, 2))), keys))
    shape = (2, 3, queries, keys)
    return Problem.checked(shape, Mask.checked(**rule), real, at_queries, at_keys)


def seen_pairs(problem: Problem) -> Any:
    """Return which keys each query of a problem sees, (1 or batch, queries, keys)."""
    seen = problem.mask.visible(*problem.positions())
    padding = problem.key_padding_mask
    return seen if padding is None else seen & (padding[:, None] == 1)


@given(problem=drawn_problems(), data=st.data())
def test_a_part_has_the_positions_and_sees_the_pairs_of_the_whole(
    problem: Problem, data: st.DataObject
) -> None:
    places = []
    for count in problem.shape[2:]:
        begin = data.draw(st.integers(0, count - 1))
        places.append(slice(begin, data.draw(st.integers(begin + 1, count))))
    part = problem.cut(Cut(queries=places[0], keys=places[1]))
    assert part.shape == (2, 3, *(at.stop - at.start for at in places))
    for own, whole, at in zip(part.positions(), problem.positions(), places, strict=True):
        np.testing.assert_array_equal(own, whole[:, at])
    pairs = seen_pairs(problem)[:, places[0], places[1]]
    np.testing.assert_array_equal(seen_pairs(part), pairs)
    queries, keys = part.positions()
    distances = np.broadcast_to(queries[:, :, None] - keys[:, None], pairs.shape)[pairs]
    least, most = part.distances()
    assert ((least <= distances) & (distances <= most)).all()
    np.testing.assert_array_equal(part.visible_count().max(), pairs.sum(-1).max())
