"""Conformance of all biases in every kind of call: the package's biases, and foreign ones."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fuzz.oracle.bias_cases import BIAS_CASES

import ntk_alibi as na
from attention_checks import UNIT
from conformance import (
    HEADS,
    KEYS,
    WAYS,
    Case,
    Expectation,
    Place,
    Way,
    arrays,
    loss,
    tensors,
)
from conformance_cases import CASES, heads
from ntk_alibi.biases import BiasObject, KernelBias, parameter


def attend(case: Case, way: Way, sources: list[Any], bias: Any = None) -> Any:
    """Call attention with query, key, value and the bias's parameters, arrays or tensors."""
    bias = case.make(*sources[3:]) if bias is None else bias
    options = way.given(tensors=torch.is_tensor(sources[0]))
    return na.attention(*sources[:3], bias, **options, return_logsumexp=True)


# Foreign biases, written by the docstring of KernelBias alone
# --------------------------------------------------------------------------------------------------


class PerKey(BiasObject):
    """A bias with a value per key and head."""

    def __init__(self, values: Any) -> None:
        self.define(values=values, num_heads=len(values), sides="symmetric")

    def kernel_bias(self, problem: Any, like: Any = None) -> KernelBias:
        return KernelBias(dense=parameter(self.values, like)[None, :, None])


class Stairs(BiasObject):
    """A bias with a step down at each square: strengths (heads,) times floor(|d|^1/2)."""

    def __init__(self, strengths: Any) -> None:
        self.define(strengths=strengths, num_heads=len(strengths), sides="symmetric")

    def kernel_bias(self, problem: Any, like: Any = None) -> KernelBias:
        first, last = problem.distances()
        steps = np.floor(np.sqrt(np.abs(np.arange(first, last + 1))))
        table = -parameter(self.strengths, like)[:, None] * parameter(steps, like)
        return KernelBias(table=table, table_begin=first)


class Heights(BiasObject):
    """A bias by differences of heights, which are prefix sums (rows, heads, keys) of any sign."""

    def __init__(self, heights: Any) -> None:
        self.define(heights=heights, num_heads=heights.shape[1], sides="symmetric")

    @property
    def rows(self) -> int:
        return len(self.heights)

    def kernel_bias(self, problem: Any, like: Any = None) -> KernelBias:
        return KernelBias(sums=parameter(self.heights, like, widest=True))


def climbed(place: Place, heights: torch.Tensor) -> torch.Tensor:
    columns = place.columns[:, None].expand(len(heights), HEADS, -1)
    return heights.gather(2, columns)[..., None] - heights[..., None, :]


FOREIGN = {
    "a number for each key": Case(PerKey, lambda place, x: x[None, :, None], (("H", "K"),)),
    "stairs": Case(Stairs, lambda p, x: -heads(x) * p.distance.abs().sqrt().floor(), (("H",),)),
    "heights": Case(Heights, climbed, (("B", "H", "K"),), at_the_end=True),
}
BIASES = CASES | FOREIGN

#: One bias of each form that kernels know. They meet every kind of call in `make test`, and every
#: bias meets two of them.
ONE_OF_EACH = ("ALiBi", "KerplePower", "ForgetGates", "a number for each key", "stairs")
TWO_WAYS = ("plain", "packed, RoPE, log n, blocks and padding")


def calls(*, every: bool) -> list[Any]:
    """Return these calls, or, marked as slow, all others, too."""
    named = [(f"{bias}: {way}", bias, way) for bias in BIASES for way in WAYS]
    few = {name for name, bias, way in named if bias in ONE_OF_EACH or way in TWO_WAYS}
    return [
        pytest.param(
            BIASES[bias], WAYS[way], id=name, marks=() if name in few else pytest.mark.slow
        )
        for name, bias, way in named
        if WAYS[way].refusal(BIASES[bias]) is None and (every or name in few)
    ]


REFUSED = [
    pytest.param(BIASES[bias], WAYS[way], id=f"{bias}: {way}")
    for bias in BIASES
    for way in WAYS
    if WAYS[way].refusal(BIASES[bias]) is not None
]


pytestmark = pytest.mark.usefixtures("one_thread")

# Every kind of call
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "way"), calls(every=True))
def test_values_and_gradients_are_those_of_torch_in_float64(case: Case, way: Way) -> None:
    what = Expectation(case, way)
    what.check(attend(case, way, arrays(case, way)))
    gradients = []
    for dtype in (torch.float32, torch.float64):
        what.check(attend(case, way, tensors(case, way, dtype)))
        sources = tensors(case, way, dtype, grad=True)
        result = attend(case, way, sources)
        what.check(result)
        gradients.append(torch.autograd.grad(loss(*result), sources))
        assert all(x.dtype == dtype for x in gradients[-1])
    what.check_gradients(*gradients)


@pytest.mark.parametrize(("case", "way"), REFUSED)
def test_unsupported_calls_raise_an_error(case: Case, way: Way) -> None:
    for sources in (
        arrays(case, way),
        tensors(case, way),
        tensors(case, way, torch.float64),
        tensors(case, way, grad=True),
    ):
        with pytest.raises(ValueError, match=way.refusal(case)):
            attend(case, way, sources)


def test_every_bias_has_a_case() -> None:
    biases = {name for name in na.__all__ if isinstance(getattr(na, name), type(BiasObject))}
    biases = {name for name in biases if issubclass(getattr(na, name), BiasObject)}
    assert {"ALiBi", "T5"} <= biases <= {name.split(",")[0] for name in CASES}


@pytest.mark.parametrize("name", BIAS_CASES)
def test_a_bias_with_parameters_per_head_equals_its_reference(name: str) -> None:
    """`na.reference` has its formula under its name in snake case, with its parameters."""
    case = BIAS_CASES[name]
    array = [0.1 + np.random.default_rng(6).random(HEADS) for _ in case.parameters]
    array = [x.astype(np.float32).astype(np.float64) for x in array]
    for queries, keys in ((60, 90), (60, 7), (1, 1), (0, 5), (5, 0)):
        ours = BIASES[name].make(*array).tensor(queries, keys)
        theirs = reference_of(name)(na.reference.distances(queries, keys), *array, case.options)
        assert (ours.shape, ours.dtype) == ((1, HEADS, queries, keys), np.float32)
        # tables are float64 and rounded once; the error of a power or a cosine is far below
        np.testing.assert_allclose(ours[0], theirs, rtol=2.0**-24 * 1.001, atol=1e-12)


def reference_of(name: str) -> Any:
    """Return a function of distances, parameters and options."""
    if name == "Sandwich":  # its reference is the product of embeddings over 8h/H
        return _sandwich
    function = getattr(na.reference, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    if name == "BAM":
        return lambda *arguments: function(*arguments[:-1], 1e-5)
    return lambda *arguments: function(*arguments[:-1], **arguments[-1])


def _sandwich(distance: Any, lambdas: Any, options: dict[str, Any]) -> Any:
    dimension = options["dimension"]
    products = na.reference.sandwich(distance.reshape(-1), [0.0], HEADS, dimension)[..., 0]
    ratios = 8.0 * np.arange(1, HEADS + 1)[:, None] / HEADS
    waves = (products * ratios - dimension / 2).reshape(HEADS, *distance.shape)
    return lambdas[:, None, None] * waves


# vmap, compile
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "way"), calls(every=False))
def test_mapped_over_a_batch_of_batches_it_is_one_call_after_the_other(
    case: Case, way: Way
) -> None:
    bias = case.make(*tensors(case, way)[3:])

    def mapped(*sources: torch.Tensor) -> Any:
        return attend(case, way, list(sources), bias)

    sources = tensors(case, way)[:3]
    several = torch.vmap(mapped)(*(torch.stack([2 * x, x]) for x in sources))
    Expectation(case, way).check([x[1] for x in several])


#: Ways that are traced: the first with every bias, all with one bias of each form.
COMPILED = (
    "plain", "RoPE", "a window and sinks on both sides", "padding", "XPOS", "log n", "packed",
)  # fmt: skip
QUICK = ("ALiBi: plain", "ForgetGates: plain", "KerplePower: RoPE")


def compiled_calls() -> Iterator[Any]:
    for bias, case in BIASES.items():
        for way in COMPILED if bias in ONE_OF_EACH else COMPILED[:1]:
            if WAYS[way].refusal(case) is None:
                name = f"{bias}: {way}"
                if name in ("KerplePower: packed", "stairs: packed"):  # tables need positions
                    continue
                marks = () if name in QUICK else pytest.mark.slow
                yield pytest.param(case, WAYS[way], id=name, marks=marks)


@pytest.mark.needs("torch >= 2.12", "Dynamo of older ones reads no arrays of a bias")
@pytest.mark.parametrize(("case", "way"), [*compiled_calls()])
def test_compiled_it_has_the_same_values_and_gradients(case: Case, way: Way) -> None:
    """A bias without parameters is made before tracing, any other in the traced function."""
    torch.compiler.reset()
    bias = None if case.shapes else case.make()

    def attending(*sources: torch.Tensor) -> Any:
        return attend(case, way, list(sources), bias)

    compiled = torch.compile(attending, fullgraph=True, backend="aot_eager")
    sources = tensors(case, way, grad=True)
    result = compiled(*sources)
    what = Expectation(case, way)
    what.check(result)
    what.check_gradients(torch.autograd.grad(loss(*result), sources))


# Other features of biases
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BIASES)
def test_tensor_is_the_numbers_written_out(name: str) -> None:
    case, way = BIASES[name], WAYS["plain"]
    written = case.written(way.place, *tensors(case, way, torch.float64)[3:]).numpy()
    if case.causal:
        written = np.where(way.seen, written, -np.inf)
    for parameters in (arrays(case, way)[3:], tensors(case, way)[3:]):
        dense = np.asarray(case.make(*parameters).tensor(way.queries, KEYS), np.float64)
        shape = np.broadcast_shapes(written.shape, (1, *dense.shape[1:]))
        np.testing.assert_allclose(dense, np.broadcast_to(written, shape), rtol=4 * UNIT)


@pytest.mark.parametrize("name", [x for x in BIASES if x != "DistanceFunction"])
def test_a_bias_is_a_value(name: str) -> None:
    """Biases are equal if and only if their values are."""
    case = BIASES[name]
    for make in (np.copy, torch.tensor):
        array = [make(x) for x in case.parameters(3)]
        bias = case.make(*array)
        same = case.make(*(make(x) for x in case.parameters(3)))
        for other in (same, copy.deepcopy(bias), pickle.loads(pickle.dumps(bias))):
            assert other == bias
            assert hash(other) == hash(bias)
            assert repr(other) == repr(bias)
        for i in range(len(array)):
            others = [x / 2 if i == j else x for j, x in enumerate(array)]
            assert bias != case.make(*others)
    assert bias not in [one.make(*one.parameters(3)) for x, one in BIASES.items() if x != name]
    assert bias != repr(bias)
    assert type(bias).__name__ in repr(bias)
    with pytest.raises(AttributeError, match="cannot assign"):
        bias.num_heads = 9
