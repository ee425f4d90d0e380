"""Conformance of all scalings: the package's, and foreign ones."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from fuzz.oracle.scaling_cases import SCALING_CASES
from numpy.typing import NDArray

import ntk_alibi as na
from attention_checks import check, inputs, visible
from ntk_alibi.inspection import bias_by_distance
from ntk_alibi.scaling import DYNAMIC_TYPES, STATIC_TYPES
from ntk_alibi.scaling.base import StaticScaling

HEADS, QUERIES, KEYS, ROWS = 4, 30, 45, 2
PADDING = np.arange(KEYS) >= np.array([[0], [11]])

#: Token counts of each row.
REAL = PADDING.sum(axis=1)


class OnlyFlatHeads:
    """A foreign scaling with one method: the flatter half of the heads sees twice as far."""

    def scale_exponents(self, exponents: Any, lengths: Any = None) -> Any:
        return exponents + (exponents > np.median(exponents))


class WithoutHash(OnlyFlatHeads):
    """A foreign scaling with equality and therefore without a hash."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WithoutHash)


class ByTheText:
    """A foreign scaling that depends on the length of the text: m / n."""

    dynamic = True

    def scale_exponents(self, exponents: Any, lengths: Any = None) -> Any:
        return exponents + np.log2(lengths)[:, None]


@dataclass(frozen=True)
class SquareRoot(StaticScaling):
    """A subclass of the package's base class, with other weights: t = (e / e_max)^1/2."""

    alibi_type: ClassVar[str] = "square root"

    def _weights(self, exponents: Any) -> Any:
        return np.sqrt(exponents / exponents.max())


class Case(NamedTuple):
    """A scaling, and its expected slopes (heads,) or (rows, heads)."""

    scaling: Any
    slopes: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    lengths: Any = None


def of_case(name: str) -> Case:
    """Return the case of a scaling, whose slopes equal `na.reference`'s.

    FlatHeads and DynamicFlatHeads have the reference `flat_heads_slopes(slopes, factor, share)`.
    """
    case = SCALING_CASES[name]
    scaling = getattr(na, name)(**case.right)
    own = {"share": 0.25} if "Flat" in name else {}
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removeprefix("Dynamic")).lower()
    words = words.replace("interpolation", "interpolated")
    scaled = partial(getattr(na.reference, f"{words}_slopes"), **own)
    if not case.dynamic:
        return Case(scaling, lambda m: scaled(m, scaling.factor))

    def slopes(m: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.stack([scaled(m, na.reference.dynamic_factor(2.0, n, 20)) for n in REAL])

    return Case(scaling, slopes, REAL)


CASES = {
    "stranger": Case(OnlyFlatHeads(), lambda m: m / [1, 1, 2, 2]),
    "stranger without hash": Case(WithoutHash(), lambda m: m / [1, 1, 2, 2]),
    "dynamic stranger": Case(ByTheText(), lambda m: m / REAL[:, None], REAL),
    "subclass": Case(SquareRoot(4.0), lambda m: m / 4.0 ** np.sqrt(-np.log2(m) / 8)),
    **{name: of_case(name) for name in SCALING_CASES},
}
PACKAGED = [case.scaling for case in CASES.values() if hasattr(case.scaling, "alibi_type")]
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


pytestmark = pytest.mark.usefixtures("one_thread")


def written(case: Case) -> NDArray[np.float64]:
    """Return the slopes for all pairs, (1 or rows, heads, 1, 1)."""
    return np.atleast_2d(case.slopes(na.reference.alibi_slopes(HEADS)))[..., None, None]


def test_every_scaling_has_a_case() -> None:
    scalings = {name for name in na.__all__ if hasattr(getattr(na, name), "alibi_type")}
    assert scalings == SCALING_CASES.keys()


@pytest.mark.parametrize("name", SCALING_CASES)
def test_a_scaling_is_a_value_with_a_config(name: str) -> None:
    scaling = getattr(na, name)(**SCALING_CASES[name].right)
    assert pickle.loads(pickle.dumps(scaling)) == scaling
    assert eval(repr(scaling), vars(na)) == scaling
    assert hash(scaling) == hash(pickle.loads(pickle.dumps(scaling)))
    assert na.scaling_from_config(scaling.to_config()) == scaling


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
    dense_bias = np.where(seen, -written(case) * np.abs(q[:, None] - k), -np.inf)
    check(*sources, dense_bias, na.attention(*sources, bias, **options))
    for grad in (False, True):
        tensors = [torch.tensor(x, requires_grad=grad) for x in sources]
        options["key_padding_mask"] = torch.from_numpy(PADDING)
        result = na.attention(*tensors, bias, **options)
        check(*sources, dense_bias, [x.detach().numpy() for x in result])
    wide = na.attention(*(x.double() for x in tensors), bias, **options)
    check(*sources, dense_bias, [wide[0].detach().float().numpy(), wide[1].detach().numpy()])


@EVERY
def test_a_bias_tensor_has_its_slopes(case: Case) -> None:
    bias = na.ALiBi(HEADS, case.scaling, sides="symmetric")
    lengths = None if case.lengths is None else REAL
    dense = bias.tensor(QUERIES, KEYS, lengths=lengths)
    distance = np.abs(na.reference.distances(QUERIES, KEYS))
    np.testing.assert_allclose(dense, -written(case) * distance, rtol=2.0**-23 + 2.0**-48)


@EVERY
def test_a_bias_of_any_scaling_can_be_inspected(case: Case) -> None:
    assert bias_by_distance(na.ALiBi(HEADS, case.scaling), 5, length=20).shape == (HEADS, 5)


@pytest.mark.parametrize("name", ["stranger", "dynamic stranger", "subclass"])
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


@pytest.mark.needs("torch >= 2.12", "Dynamo of older ones reads no arrays of a bias")
@pytest.mark.parametrize(
    "scaling",
    [
        na.NTK(4.0), na.DynamicNTK(2.0, 20), OnlyFlatHeads(), OwnWeights(4.0),
        *(pytest.param(x, marks=pytest.mark.slow) for x in PACKAGED),
    ],
    ids=lambda x: type(x).__name__,
)  # fmt: skip
def test_compiled_attention_has_its_slopes_or_is_refused(scaling: Any) -> None:
    """Tracing knows the package's scalings; others need explicit slopes."""
    torch.compiler.reset()
    bias = na.ALiBi(HEADS, scaling)
    sources = [torch.from_numpy(x) for x in inputs(1, HEADS, 2, QUERIES, KEYS, 8)]
    compiled = torch.compile(na.attention, fullgraph=True, backend="aot_eager")
    if type(scaling) in (*STATIC_TYPES.values(), *DYNAMIC_TYPES.values()):
        torch.testing.assert_close(compiled(*sources, bias), na.attention(*sources, bias))
        return
    with pytest.raises(Exception, match=r"raised exception ValueError.*where torch traces"):
        compiled(*sources, bias)
