"""Every bias of the package, and its dense form by the formula of its docstring, for autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from fuzz.oracle.bias_cases import BIAS_CASES
from transformers.models.t5.modeling_t5 import T5Attention

import ntk_alibi as na
from conformance import HEADS, KEYS, Case, Place

#: Number of distances of a table, enough for all kinds of calls.
REACH = 90


def heads(x: torch.Tensor) -> torch.Tensor:
    """Expand parameters (heads,), (batch, heads) or (batch, heads, queries) to all pairs."""
    if x.ndim == 1:
        return x[None, :, None, None]
    return x[..., None, None] if x.ndim == 2 else x[..., None]


def linear(place: Place, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return -left d for keys behind, right d for keys ahead; infinity hides a side."""
    d, left, right = place.distance, heads(left), heads(right)
    return torch.where(d > 0, -left * d, torch.where(d < 0, right * d, 0.0))


def constant(slopes: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(slopes, np.float64))


def standard(scaling: Any = None) -> Any:
    """Return a function for the dense form on both sides with standard, scaled slopes."""

    def written(place: Place) -> torch.Tensor:
        tokens = _tokens(scaling, place)
        if place.same_segment is not None and tokens is not None:
            slopes = constant(na.alibi_slopes(HEADS, scaling, tokens.ravel()))
            slopes = slopes.unflatten(0, tokens.shape).transpose(1, 2)
        else:
            slopes = constant(na.alibi_slopes(HEADS, scaling, tokens))
        return linear(place, slopes, slopes)

    return written


def _tokens(scaling: Any, place: Place) -> Any:
    """Count the real tokens of each row or query's segment, for a dynamic scaling."""
    if not getattr(scaling, "dynamic", False):
        return None
    real = torch.ones(1, KEYS, dtype=torch.bool) if place.real is None else place.real.bool()
    if place.same_segment is not None:
        return (place.same_segment & real[:, None]).sum(2).numpy()
    return real.sum(1).numpy()


def own(place: Place, slopes: torch.Tensor) -> torch.Tensor:
    return linear(place, slopes, slopes)


def halves(place: Place) -> torch.Tensor:
    few, none = constant(na.alibi_slopes(HEADS // 2)), torch.full((HEADS // 2,), torch.inf)
    return linear(place, torch.cat([few, none]), torch.cat([none, few]))


def exempted(place: Place, array: torch.Tensor, count: int, other: Any = 0.0) -> torch.Tensor:
    """Replace values if the query or the key is at a position below a count."""
    near = (place.queries[:, None, :, None] < count) | (place.keys[:, None, None] < count)
    return torch.where(near, torch.where(place.distance == 0, 0.0, other), array)


def little(
    place: Place, first: torch.Tensor, left: torch.Tensor, right: torch.Tensor
) -> torch.Tensor:
    return exempted(place, linear(place, left, right), 1, -heads(first))


def of_case(name: str) -> Case:
    """Return the case of a bias with parameters per head, from the fuzzer's cases."""
    case = BIAS_CASES[name]

    def make(*array: Any) -> Any:
        return getattr(na, name)(**case.options, **dict(zip(case.parameters, array, strict=True)))

    def written(place: Place, *array: torch.Tensor) -> torch.Tensor:
        return case.formula(place.distance, *map(heads, array), **case.options)

    return Case(make, written, (("H",),) * len(case.parameters))


def buckets(bidirectional: bool) -> Any:
    def written(place: Place, values: torch.Tensor) -> torch.Tensor:
        bucket = T5Attention._relative_position_bucket(-place.distance.long(), bidirectional)
        return values[:, bucket[:, 0]].transpose(0, 1)

    return written


def tabled(begin: int) -> Any:
    def written(place: Place, table: torch.Tensor) -> torch.Tensor:
        index = (place.distance[:, 0].long() - begin).clamp(min=0)
        return table[:, index].transpose(0, 1)

    return written


def of_distance(x: Any) -> na.DistanceFunction:
    def function(d: Any) -> Any:
        curve = np.hypot(d, 3.0)
        return -x[:, None] * (torch.from_numpy(curve).to(x.device) if torch.is_tensor(x) else curve)

    return na.DistanceFunction(function, HEADS)


def gated(place: Place, gates: torch.Tensor) -> torch.Tensor:
    """Return sums of the gates of real tokens after the key, up to the query."""
    if place.real is not None:
        gates = torch.where(place.real[:, None], gates, 0.0)
    columns = torch.arange(KEYS)
    between = (columns[:, None] < columns) & (columns <= place.columns[..., None, None])
    rows = torch.broadcast_shapes(gates.shape[:1], between.shape[:1])
    between = between.expand(*rows, -1, -1, -1)
    return -torch.einsum("bhk,bijk->bhij", gates.expand(*rows, -1, -1), between.double())


def alibi(scaling: Any = None, **options: Any) -> Any:
    return lambda *slopes: na.ALiBi(HEADS, scaling, **options, **_slopes(slopes))


def _slopes(slopes: Any) -> dict[str, Any]:
    return {"slopes": slopes if len(slopes) > 1 else slopes[0]} if slopes else {}


_DYNAMIC = na.DynamicNTK(2.0, 32)

#: What all forget gates have.
GATES: Any = {"causal": True, "at_the_end": True}

CASES = {
    "ALiBi": Case(alibi(), standard(), causal=True),
    "ALiBi, NTK": Case(alibi(na.NTK(4.0)), standard(na.NTK(4.0)), causal=True),
    "ALiBi, interpolated, symmetric": Case(
        alibi(na.Interpolation(3.0), sides="symmetric"), standard(na.Interpolation(3.0))
    ),
    "ALiBi, dynamic": Case(alibi(_DYNAMIC, sides="symmetric"), standard(_DYNAMIC)),
    "ALiBi, symmetric": Case(alibi(sides="symmetric"), standard()),
    "ALiBi, halves": Case(alibi(sides="halves"), halves),
    "ALiBi, exempt": Case(
        alibi(exempt=5), lambda place: exempted(place, standard()(place), 5), causal=True
    ),
    "ALiBi, slopes of heads": Case(alibi(), own, (("H",),), causal=True),
    "ALiBi, slopes of rows": Case(alibi(sides="symmetric"), own, (("B", "H"),)),
    "ALiBi, slopes of queries": Case(alibi(sides="symmetric"), own, (("B", "H", "Q"),)),
    "ALiBi, slopes of two sides": Case(
        alibi(sides="two_slopes"), linear, (("B", "H", "Q"), ("H",))
    ),
    "ALiBi, own slopes and exempt": Case(
        alibi(sides="symmetric", exempt=5),
        lambda place, x: exempted(place, own(place, x), 5),
        (("B", "H"),),
    ),
    "BiALiBi": Case(na.BiALiBi, little, (("H",),) * 3),
    **{name: of_case(name) for name in BIAS_CASES},
    "T5": Case(na.T5, buckets(True), (("H", 32),)),
    "T5, causal": Case(lambda x: na.T5(x, False), buckets(False), (("H", 32),), causal=True),
    "DistanceTable": Case(
        lambda x: na.DistanceTable(x, -REACH), tabled(-REACH), (("H", 2 * REACH),)
    ),
    "DistanceTable, causal": Case(na.DistanceTable, tabled(0), (("H", REACH),), causal=True),
    "DistanceFunction": Case(
        of_distance, lambda p, x: -heads(x) * (p.distance**2 + 9).sqrt(), (("H",),)
    ),
    "ForgetGates": Case(lambda x: na.ForgetGates(-x), gated, (("B", "H", "K"),), **GATES),
    "ForgetGates of all rows": Case(lambda x: na.ForgetGates(-x), gated, ((1, "H", "K"),), **GATES),
}
