"""Any bias goes with every way to attend: those of the package, and those of strangers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import UNIT
from conformance import KEYS, WAYS, Case, Expectation, Way, arrays, attend, loss, tensors
from conformance_cases import CASES, heads
from ntk_alibi.biases import BiasObject, KernelBias, parameter

# Biases of a stranger, who knows the docstring of KernelBias
# --------------------------------------------------------------------------------------------------


class PerKey(BiasObject):
    """A number for each key and head."""

    def __init__(self, values: Any) -> None:
        self._set(values=values, num_heads=len(values), sides="symmetric")

    def kernel_bias(self, problem: Any, like: Any = None) -> KernelBias:
        return KernelBias(dense=parameter(self.values, like)[None, :, None])


class Stairs(BiasObject):
    """A step down at each square: strengths (heads,) times the whole part of |d|^1/2."""

    def __init__(self, strengths: Any) -> None:
        self._set(strengths=strengths, num_heads=len(strengths), sides="symmetric")

    def kernel_bias(self, problem: Any, like: Any = None) -> KernelBias:
        first, last = problem.distances()
        steps = np.floor(np.sqrt(np.abs(np.arange(first, last + 1))))
        table = -parameter(self.strengths, like)[:, None] * parameter(steps, like)
        return KernelBias(table=table, table_begin=first)


FOREIGN = {
    "a number for each key": Case(PerKey, lambda place, x: x[None, :, None], (("H", "K"),)),
    "stairs": Case(Stairs, lambda p, x: -heads(x) * p.distance.abs().sqrt().floor(), (("H",),)),
}
BIASES = CASES | FOREIGN

EVERY = [
    pytest.param(BIASES[bias], WAYS[way], id=f"{bias}: {way}")
    for bias in BIASES
    for way in WAYS
    if WAYS[way].refusal(BIASES[bias]) is None
]
REFUSED = [
    pytest.param(BIASES[bias], WAYS[way], id=f"{bias}: {way}")
    for bias in BIASES
    for way in WAYS
    if WAYS[way].refusal(BIASES[bias]) is not None
]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Calls are small: threads would wait for each other for longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    na.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    na.set_num_threads(0)


# Every way to attend
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "way"), EVERY)
def test_arrays_and_tensors_are_the_reference(case: Case, way: Way) -> None:
    Expectation(case, way).check(
        attend(case, way, arrays(case, way)),
        attend(case, way, tensors(case, way)),
        attend(case, way, tensors(case, way, torch.float64)),
    )


@pytest.mark.parametrize(("case", "way"), EVERY)
def test_gradients_are_those_of_torch_in_float64(case: Case, way: Way) -> None:
    results, gradients = [], []
    for dtype in (torch.float32, torch.float64):
        sources = tensors(case, way, dtype, grad=True)
        results.append(attend(case, way, sources))
        gradients.append(torch.autograd.grad(loss(*results[-1]), sources))
        assert all(x.dtype == dtype for x in gradients[-1])
    what = Expectation(case, way)
    what.check(*results)
    what.check_gradients(*gradients)


@pytest.mark.parametrize(("case", "way"), REFUSED)
def test_what_is_not_for_a_bias_is_refused_with_a_sentence(case: Case, way: Way) -> None:
    for sources in (
        arrays(case, way),
        tensors(case, way),
        tensors(case, way, torch.float64),
        tensors(case, way, grad=True),
    ):
        with pytest.raises(ValueError, match=way.refusal(case)):
            attend(case, way, sources)


# vmap, compile
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "way"), EVERY)
def test_mapped_over_a_batch_of_batches_it_is_one_call_after_the_other(
    case: Case, way: Way
) -> None:
    bias = case.make(*tensors(case, way)[3:])

    def mapped(*sources: torch.Tensor) -> Any:
        return attend(case, way, list(sources), bias)

    sources = tensors(case, way)[:3]
    several = torch.vmap(mapped)(*(torch.stack([2 * x, x]) for x in sources))
    Expectation(case, way).check([x[1] for x in several])


COMPILED = ("plain", "a window and sinks on both sides", "padding", "RoPE", "XPOS", "log n")
QUICK = ("ALiBi", "KerplePower", "ForgetGates", "a number for each key", "stairs")


def compiled_calls() -> Iterator[Any]:
    for bias, case in BIASES.items():
        for way in COMPILED:
            if WAYS[way].refusal(case) is None:
                quick = bias in QUICK and way in ("plain", "RoPE")
                marks = () if quick else pytest.mark.slow
                yield pytest.param(case, WAYS[way], id=f"{bias}: {way}", marks=marks)


@pytest.mark.parametrize(("case", "way"), [*compiled_calls()])
def test_compiled_it_has_the_same_values_and_gradients(case: Case, way: Way) -> None:
    """A bias without parameters is made before, any other in the traced function."""
    torch.compiler.reset()
    bias = None if case.shapes else case.make()

    def attending(*sources: torch.Tensor) -> Any:
        return attend(case, way, list(sources), bias)

    compiled = torch.compile(attending, fullgraph=True, backend="aot_eager")
    sources = tensors(case, way, grad=True)
    if not case.traced:
        with pytest.raises(Exception, match="where torch traces"):
            compiled(*sources)
        return
    result = compiled(*sources)
    what = Expectation(case, way)
    what.check(result)
    what.check_gradients(torch.autograd.grad(loss(*result), sources))


# What else a bias can do
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


@pytest.mark.parametrize("name", BIASES)
def test_a_bias_is_a_value(name: str) -> None:
    """Equal to another of the same numbers, and to no other."""
    case = BIASES[name]
    if not case.shapes:
        return
    for make in (np.copy, torch.tensor):
        numbers = [make(x) for x in case.parameters(3)]
        bias, same = case.make(*numbers), case.make(*(make(x) for x in numbers))
        assert bias == same
        assert hash(bias) == hash(same)
        for i in range(len(numbers)):
            others = [2 * x if i == j else x for j, x in enumerate(numbers)]
            assert bias != case.make(*others)


@pytest.mark.parametrize("name", BIASES)
def test_a_notebook_shows_a_picture_or_nothing(name: str) -> None:
    case, way = BIASES[name], WAYS["plain"]
    for parameters in (arrays(case, way)[3:], tensors(case, way, grad=True)[3:]):
        shown = case.make(*parameters)._repr_html_()
        assert shown is None or shown.startswith("<div>")
        assert (shown is None) == (name in WITHOUT_PICTURE)


#: Biases that are no function of distance.
WITHOUT_PICTURE = ("ForgetGates", "ForgetGates of all rows", "a number for each key")
