"""Biases as tensors: mapped over their parameters, cast, traced, on other devices and aligned.

Values, gradients, compiled calls and mapped queries of every bias are in
tests/biases/test_conformance.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import R1, R2, inputs
from conformance import WAYS, tensors
from conformance_cases import CASES
from ntk_alibi.biases.base import to_kernel_bias
from ntk_alibi.biases.distance import DistanceBias
from ntk_alibi.fused.gradients import attention_gradients
from ntk_alibi.fused.tensors import operator
from ntk_alibi.masks import EVERYTHING, Problem

PLAIN = WAYS["plain"]
LEARNED = [name for name, case in CASES.items() if case.shapes]


@pytest.mark.parametrize("name", LEARNED)
def test_cast(name: str) -> None:
    sources = tensors(CASES[name], PLAIN, grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        output = na.attention(*sources[:3], CASES[name].make(*sources[3:]))
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert all(x.grad is not None and x.grad.dtype == torch.float32 for x in sources)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LEARNED)
def test_mapped_over_parameters(name: str, dtype: torch.dtype) -> None:
    """Several biases for the same queries and keys: values of a mapped tensor cannot be read."""
    sources, make = tensors(CASES[name], PLAIN), CASES[name].make
    several = [torch.stack([x, 0.5 * x]) for x in sources[3:]]
    rows = [x.to(dtype) for x in sources[:3]]
    mapped = torch.vmap(lambda *own: na.attention(*rows, make(*own)))(*several)
    for result, own in zip(mapped, zip(*several, strict=True), strict=True):
        torch.testing.assert_close(result, na.attention(*rows, make(*own)))


@pytest.mark.parametrize("name", ["DistanceTable", "ForgetGates", "BiALiBi"])
def test_operator_registrations(name: str) -> None:
    query, key, value, *parameters = tensors(CASES[name], PLAIN, grad=True)
    problem = Problem((*query.shape[:3], key.shape[2]))
    form = to_kernel_bias(CASES[name].make(*parameters), problem, query)
    optional = (getattr(form, name, None) for name in operator.OPTIONAL_TENSORS)
    rule = (form.table_begin, form.exempt, EVERYTHING.to_integers(), True, 0.3, 0.0, [])
    arguments = (query, key, value, *optional, *rule)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(operator._attention, arguments, test_utils=checks)


@pytest.mark.parametrize("name", [x for x in LEARNED if x != "DistanceFunction"])  # needs values
def test_other_devices_take_torchs_own_operations(name: str) -> None:
    sources = tensors(CASES[name], PLAIN)
    rows = [x.to("meta") for x in sources[:3]]
    for device in ("cpu", "meta"):
        bias = CASES[name].make(*(x.to(device) for x in sources[3:]))
        assert na.attention(*rows, bias).device.type == "meta"


def test_gradients_of_numpy_arrays() -> None:
    rows = inputs(1, 3, 3, 40, 60, 8)
    first, left, right = np.random.default_rng(2).random((3, 3))
    for bias in (na.KerplePower(R1, R2), na.BiALiBi(first, left, right)):
        results = na.attention(*rows, bias, causal=False, return_logsumexp=True)
        do, dl = (np.random.default_rng(9).standard_normal(x.shape) for x in results)
        gradients = attention_gradients(
            *rows, *results, do.astype(np.float32), dl.astype(np.float32), bias,
            bias_gradient=True, causal=False,
        )  # fmt: skip
        *_, ds = na.reference.attention_gradients(*rows, bias.tensor(40, 60), do, dl)
        tolerance = 1e-4 * np.abs(ds).sum(axis=(2, 3)).max()
        if isinstance(bias, DistanceBias):
            assert gradients.table is not None
            index = np.arange(20, 60)[:, None] - np.arange(60)
            for d in (-39, -3, 0, 17, 59):
                mine = gradients.table[:, d - gradients.table_begin]
                assert np.abs(mine - ds[0, :, index == d].sum(axis=0)).max() < tolerance
        else:
            assert gradients.first is not None
            mine = gradients.first.sum(axis=2)
            assert np.abs(mine + ds[:, :, :, 0].sum(axis=2)).max() < tolerance
