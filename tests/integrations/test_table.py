"""The table of patches (`patch_table.py`): each pair of its entries, and slowly each three."""

from __future__ import annotations

import functools
import gc
import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from patch_table import COLUMNS, DECODERS, LONG_WAYS, QUICK, WAYS, Row, covering
from patched_calls import (
    CLOSE,
    GRADIENTS_CLOSE,
    call,
    of_oracle,
    results,
)
from table_families import FAMILIES, STATIC_NEEDS, shared_model

WHOLE_BIAS = pytest.mark.needs("transformers >= 5.18", "Switch has a bias in its first layer alone")

PAIRS = covering(2, {**COLUMNS, "family": QUICK})


@pytest.mark.parametrize(
    "family", [pytest.param(x, marks=WHOLE_BIAS if x == "switch" else ()) for x in FAMILIES]
)
@pytest.mark.parametrize("padding", COLUMNS["padding"])
def test_an_oracle_of_nothing_is_the_model_itself(family: str, padding: str) -> None:
    plain = {"scaling": "plain", "option": "none", "form": "fused", "door": "patch"}
    row, model = (
        {"family": family, "way": "call", "padding": padding, **plain},
        shared_model(family),
    )
    with torch.no_grad():
        stock = [x.double() for x in call(row, model)]
        compare(row, of_oracle(row, model), stock)


def parameter(row: Row) -> Any:
    static = (row["family"], row["way"], row["padding"]) == ("bloom", "generate, static", "none")
    marks = pytest.mark.needs(*STATIC_NEEDS) if static else ()
    return pytest.param(row, id=" | ".join(row.values()), marks=marks)


def check(row: Row) -> None:
    compare(row, *results(row))


def compare(row: Row, found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected) > 0
    close = GRADIENTS_CLOSE if "gradients" in row["way"] or "checkpoints" in row["way"] else CLOSE
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **close)


@pytest.mark.parametrize("row", [parameter(row) for row in PAIRS])
def test_a_pair(row: Row) -> None:
    check(row)


@functools.cache
def rows_of(kind: str) -> dict[tuple[str, str], list[Row]]:
    """Return rows in which each three entries meet, or each two with ways that take long."""
    rows = defaultdict(list)
    long_ones = {**COLUMNS, "way": LONG_WAYS, "family": (*QUICK, *DECODERS[3:])}
    many = covering(3, COLUMNS) if kind == "threes" else covering(2, long_ones)
    for row in many:
        rows[row["family"], row["way"]].append(row)
    return rows


def check_all(rows: list[Row], check: Callable[[Row], None]) -> None:
    """Name the rows that fail."""
    failed = []
    for row in rows:
        try:
            check(row)
        except Exception as error:
            failed.append(f"{' | '.join(row.values())}: {str(error).strip()[:150]!r}")
    assert not failed, "\n".join(failed)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "way"), [*itertools.product(FAMILIES, WAYS)])
def test_threes(family: str, way: str) -> None:
    check_all(rows_of("threes")[family, way], check)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "way"),
    [
        *itertools.product(QUICK, ["compiled"]),
        *itertools.product(DECODERS, ["exported"]),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_long_ways(family: str, way: str) -> None:
    gc.collect()
    gc.freeze()  # transformers collects garbage for each batch: among all tests, for seconds
    check_all(rows_of("pairs")[family, way], check)
