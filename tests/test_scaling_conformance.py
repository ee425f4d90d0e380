"""Conformance of all scalings: those of the package, and foreign ones."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import ntk_alibi as na
from attention_checks import check, inputs, visible
from ntk_alibi.inspection import bias_by_distance
from ntk_alibi.scaling import STATIC_TYPES
from ntk_alibi.scaling.base import StaticScaling

HEADS, QUERIES, KEYS, ROWS = 4, 30, 45, 2
PADDING = np.arange(KEYS) >= np.array([[0], [11]])

#: Numbers of tokens: of each row, and of the prefix that ends with each query.
REAL = PADDING.sum(axis=1)
PREFIXES = PADDING.cumsum(axis=1)[:, KEYS - QUERIES :]


class OnlyFlatHeads:
    """A foreign scaling with one method: the flatter half of the heads sees twice as far."""

    def scale_exponents(self, exponents: Any, lengths: Any = None) -> Any:
        return exponents + (exponents > np.median(exponents))


class WithoutHash(OnlyFlatHeads):
    """A foreign scaling with equality and therefore without a hash."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WithoutHash)


class ByTheRow:
    """A foreign scaling that depends on the length of the row: m / n."""

    per = "sequence"

    def scale_exponents(self, exponents: Any, lengths: Any = None) -> Any:
        return exponents + np.log2(lengths)[:, None]


class ByTheQuery:
    """A foreign scaling that depends on the length of each query's prefix: m / max(n, 1)."""

    per = "query"

    def scale_exponents(self, exponents: Any, lengths: Any = None) -> Any:
        return exponents[:, None] + np.log2(np.maximum(lengths, 1))[:, None]


@dataclass(frozen=True)
class SquareRoot(StaticScaling):
    """A subclass of the package's base class, with other weights: t = (e / e_max)^1/2."""

    alibi_type: ClassVar[str] = "square root"

    def _weights(self, exponents: Any) -> Any:
        return np.sqrt(exponents / exponents.max())


class Case(NamedTuple):
    """A scaling, and its expected slopes (heads,), (rows, heads) or (rows, heads, queries)."""

    scaling: Any
    slopes: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    lengths: Any = None


CASES = {
    "stranger": Case(OnlyFlatHeads(), lambda m: m / [1, 1, 2, 2]),
    "stranger without hash": Case(WithoutHash(), lambda m: m / [1, 1, 2, 2]),
    "stranger per row": Case(ByTheRow(), lambda m: m / REAL[:, None], REAL),
    "stranger per query": Case(
        ByTheQuery(), lambda m: m[:, None] / np.maximum(PREFIXES, 1)[:, None], PREFIXES
    ),
    "subclass": Case(SquareRoot(4.0), lambda m: m / 4.0 ** np.sqrt(-np.log2(m) / 8)),
    "interpolation": Case(na.Interpolation(3.0), lambda m: m / 3.0),
    "NTK": Case(na.NTK(4.0), lambda m: na.reference.ntk_slopes(m, 4.0)),
    "flat heads": Case(
        na.FlatHeads(8.0, 0.5), lambda m: na.reference.flat_heads_slopes(m, 8.0, 0.5)
    ),
    "max bias": Case(na.MaxBias(4.0), lambda m: na.reference.max_bias_slopes(m, 4.0)),
    "dynamic flat heads": Case(
        na.DynamicFlatHeads(2.0, 20),
        lambda m: np.stack(
            [
                [
                    na.reference.flat_heads_slopes(m, na.reference.dynamic_factor(2.0, n, 20), 0.25)
                    for n in row
                ]
                for row in PREFIXES
            ]
        ).swapaxes(1, 2),
        PREFIXES,
    ),
    "dynamic NTK": Case(
        na.DynamicNTK(2.0, 20),
        lambda m: np.array(
            [na.reference.ntk_slopes(m, na.reference.dynamic_factor(2.0, n, 20)) for n in REAL]
        ),
        REAL,
    ),
    "dynamic interpolation per query": Case(
        na.DynamicInterpolation(2.0, 20, per="query"),
        lambda m: m[:, None] / np.maximum(2.0 * PREFIXES / 20, 1.0)[:, None],
        PREFIXES,
    ),
}
SHOWN = [case.scaling for case in CASES.values() if hasattr(case.scaling, "_repr_html_")]
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


pytestmark = pytest.mark.usefixtures("one_thread")


def written(case: Case) -> NDArray[np.float64]:
    """Return the slopes for all pairs, (1 or rows, heads, 1 or queries, 1)."""
    slopes = case.slopes(na.reference.alibi_slopes(HEADS))
    axes = {1: (None, slice(None), None, None), 2: (..., None, None), 3: (..., None)}
    return slopes[axes[slopes.ndim]]


@EVERY
def test_it_gives_slopes(case: Case) -> None:
    assert isinstance(case.scaling, na.Scaling)
    found = na.alibi_slopes(HEADS, case.scaling, case.lengths)
    # one rounding to float32, and some units of float64
    np.testing.assert_allclose(
        found, case.slopes(na.reference.alibi_slopes(HEADS)), rtol=2.0**-24 + 2.0**-48
    )


@EVERY
@pytest.mark.parametrize("sides", ["causal", "symmetric"])
def test_attention_has_its_slopes_with_arrays_and_tensors(case: Case, sides: Any) -> None:
    sources = inputs(ROWS, HEADS, 2, QUERIES, KEYS, 8)
    bias = na.ALiBi(HEADS, case.scaling, sides=sides)
    options = {"causal": sides == "causal", "key_padding_mask": PADDING, "return_logsumexp": True}
    q, k = np.arange(KEYS - QUERIES, KEYS), np.arange(KEYS)
    seen = visible(q, k, causal=sides == "causal", mask=PADDING)
    meant = np.where(seen, -written(case) * np.abs(q[:, None] - k), -np.inf)
    check(*sources, meant, na.attention(*sources, bias, **options))
    for grad in (False, True):
        tensors = [torch.tensor(x, requires_grad=grad) for x in sources]
        options["key_padding_mask"] = torch.from_numpy(PADDING)
        result = na.attention(*tensors, bias, **options)
        check(*sources, meant, [x.detach().numpy() for x in result])
    wide = na.attention(*(x.double() for x in tensors), bias, **options)
    check(*sources, meant, [wide[0].detach().float().numpy(), wide[1].detach().numpy()])


@EVERY
def test_a_bias_tensor_has_its_slopes(case: Case) -> None:
    bias = na.ALiBi(HEADS, case.scaling, sides="symmetric")
    lengths = None if case.lengths is None else REAL
    dense = bias.tensor(QUERIES, KEYS, lengths=lengths)
    distance = np.abs(na.reference.distances(QUERIES, KEYS))
    np.testing.assert_allclose(dense, -written(case) * distance, rtol=2.0**-23 + 2.0**-48)


@EVERY
def test_a_bias_of_any_scaling_has_a_picture(case: Case) -> None:
    bias = na.ALiBi(HEADS, case.scaling)
    shown = bias._repr_html_()
    assert shown is not None
    assert "slope behind" in shown
    assert bias_by_distance(bias, 5, length=20).shape == (HEADS, 5)


@pytest.mark.parametrize("scaling", SHOWN, ids=lambda x: type(x).__name__)
def test_a_scaling_of_the_packages_base_has_a_picture(scaling: Any) -> None:
    shown = scaling._repr_html_()
    assert shown is not None
    assert "<svg" in shown
    assert html.escape(repr(scaling)) in shown


def test_a_picture_shows_the_slopes_of_a_subclass() -> None:
    """The picture has the scaled slopes of 16 heads."""
    shown = SquareRoot(4.0)._repr_html_()
    assert shown is not None
    for slope in na.alibi_slopes(16, SquareRoot(4.0)):
        assert f">{slope:.4g}<" in shown


@pytest.mark.parametrize("name", ["stranger", "stranger per row", "subclass"])
def test_a_bias_for_a_model_has_its_slopes(name: str) -> None:
    case = CASES[name]
    found = na.build_alibi_tensor(PADDING, HEADS, np.float32, case.scaling)
    slopes = np.broadcast_to(case.slopes(na.reference.alibi_slopes(HEADS)), (ROWS, HEADS))
    np.testing.assert_allclose(
        found, na.reference.build_alibi_tensor(PADDING, slopes), rtol=2.0**-23 + 2.0**-48
    )


class OwnWeights(na.NTK):
    """A subclass of a named scaling, with other weights."""

    _weights = staticmethod(np.ones_like)


@pytest.mark.parametrize(
    "scaling", [*SHOWN, OnlyFlatHeads(), OwnWeights(4.0)], ids=lambda x: type(x).__name__
)
def test_compiled_attention_has_its_slopes_or_is_refused(scaling: Any) -> None:
    """Tracing knows the package's two static scalings; other scalings need explicit slopes."""
    torch.compiler.reset()
    bias = na.ALiBi(HEADS, scaling)
    sources = [torch.from_numpy(x) for x in inputs(1, HEADS, 2, QUERIES, KEYS, 8)]
    compiled = torch.compile(na.attention, fullgraph=True, backend="aot_eager")
    if type(scaling) in STATIC_TYPES.values():
        torch.testing.assert_close(compiled(*sources, bias), na.attention(*sources, bias))
        return
    with pytest.raises(Exception, match=r"raised exception ValueError.*where torch traces"):
        compiled(*sources, bias)
