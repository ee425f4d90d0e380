"""Every derivative that torch takes of attention, for every bias, in every kind of call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import ntk_alibi as na
from attention_checks import UNIT
from conformance import BATCH, KEYS, QUERIES, WAYS, Case, Way, loss, model, tensors
from conformance_cases import CASES

Function = Callable[..., torch.Tensor]


def directions(sources: list[torch.Tensor]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [
        (0.2 * torch.rand(x.shape, generator=generator, dtype=torch.float64)).to(x.dtype)
        for x in sources
    ]


def along(f: Function, sources: list[torch.Tensor]) -> Function:
    """Return f along two lines through the sources, a function of their two coordinates."""
    first = directions(sources)

    def moved(at: torch.Tensor) -> torch.Tensor:
        pairs = zip(sources, first, strict=True)
        return f(*(x + at[0] * d * x + at[1] * d * d for x, d in pairs))

    return moved


def every(sources: list[torch.Tensor]) -> tuple[int, ...]:
    return tuple(range(len(sources)))


def two_samples(sources: list[torch.Tensor]) -> tuple[list[torch.Tensor], tuple[Any, ...]]:
    """Return inputs of two samples, and the parameters that they share, with vmap's in_dims."""
    inputs = [torch.stack([x, 0.5 * x]) for x in sources[:3]]
    return [*inputs, *sources[3:]], (0, 0, 0, *[None] * len(sources[3:]))


def duals(f: Function, sources: list[torch.Tensor]) -> Any:
    with forward_ad.dual_level():
        given = map(forward_ad.make_dual, sources, directions(sources))
        return forward_ad.unpack_dual(f(*given)).tangent


def recorded(sources: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x.clone().requires_grad_() for x in sources]


def to_the_third(f: Function, sources: list[torch.Tensor]) -> Any:
    """Return a gradient, the gradient of its size, and the next one, by autograd."""
    given, found = recorded(sources), []
    value = f(*given)
    for _ in range(3):
        gradients = torch.autograd.grad(value, given, create_graph=True)
        found += gradients
        value = sum(x.square().sum() for x in gradients)
    return found


def batched(f: Function, sources: list[torch.Tensor]) -> Any:
    given = recorded(sources)
    value = f(*given)
    return torch.autograd.grad(
        value, given, torch.tensor([1.0, 2.0], dtype=value.dtype), is_grads_batched=True
    )


def each_sample(f: Function, sources: list[torch.Tensor]) -> Any:
    given, in_dims = two_samples(sources)
    return vmap(grad(f, every(sources)), in_dims)(*given)


def of_all_samples(f: Function, sources: list[torch.Tensor]) -> Any:
    given, in_dims = two_samples(sources)
    return grad(lambda *x: vmap(f, in_dims)(*x).square().sum(), every(sources))(*given)


def at_zero(transform: Callable[[Function], Function]) -> Callable[..., Any]:
    return lambda f, s: transform(along(f, s))(torch.zeros(2, dtype=s[0].dtype))


#: Transforms of a scalar function, and how many derivatives, or squares, each takes.
TRANSFORMS: dict[str, tuple[Callable[..., Any], int]] = {
    "jvp": (lambda f, s: jvp(f, tuple(s), tuple(directions(s)))[1], 1),
    "dual tensors": (duals, 1),
    "grad": (lambda f, s: grad(f, every(s))(*s), 1),
    "vjp": (lambda f, s: vjp(f, *s)[1](torch.tensor(2.0, dtype=s[0].dtype)), 1),
    "vmap of grad": (each_sample, 1),
    "grad of vmap": (of_all_samples, 2),
    "batched gradients of autograd": (batched, 1),
    "jvp of grad": (lambda f, s: jvp(grad(f, every(s)), tuple(s), tuple(directions(s)))[1], 2),
    "hessian": (at_zero(hessian), 2),
    "jacrev of jacrev": (at_zero(lambda f: jacrev(jacrev(f))), 2),
    "jacfwd of jacfwd": (at_zero(lambda f: jacfwd(jacfwd(f))), 2),
    "jacrev of jacfwd": (at_zero(lambda f: jacrev(jacfwd(f))), 2),
    "three times autograd": (to_the_third, 3),
    "jacrev of hessian": (at_zero(lambda f: jacrev(hessian(f))), 3),
}

#: Roundings of one entry: a sum over keys, one over queries and rows, and some functions.
STEPS = 8 * (KEYS + BATCH * QUERIES)

#: One bias of each form that kernels know, with a kind of call; in `make test` by some transforms,
#: each of which takes two of them.
NAMES = [
    ("ALiBi", "plain"),
    ("ALiBi, own slopes and exempt", "RoPE, log n, a window, sinks and padding"),
    ("KerplePower", "packed, RoPE, log n, blocks and padding"),
    ("ForgetGates", "packed"),
    ("T5", "positions"),
    ("ALiBi", "dropout, packed, XPOS, log n"),
]
PAIRS = [(CASES[bias], WAYS[kind]) for bias, kind in NAMES]


def calls() -> Iterator[Any]:
    """Yield the calls of `make test`, and, marked as slow, each bias in each kind of call.

    The transforms take turns there: each bias meets each of them, and each kind of call nearly all.
    """
    transforms = [*TRANSFORMS]
    quick = [(*pair, x) for i, pair in enumerate(NAMES) for x in transforms[i % 3 :: 3]]
    turns = [
        (name, kind, transforms[(i + j) % len(transforms)])
        for i, (name, case) in enumerate(CASES.items())
        for j, kind in enumerate(k for k, way in WAYS.items() if way.refusal(case) is None)
    ]
    for name, kind, transform in dict.fromkeys(quick + turns):
        marks = () if (name, kind, transform) in quick else pytest.mark.slow
        at = f"{name}: {kind}: {transform}"
        yield pytest.param(CASES[name], WAYS[kind], transform, id=at, marks=marks)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("case", "way", "transform"), [*calls()])
def test_a_derivative_is_that_of_dense_attention(case: Case, way: Way, transform: str) -> None:
    derive, order = TRANSFORMS[transform]

    def ours(*sources: torch.Tensor) -> torch.Tensor:
        options = way.given(tensors=True)
        bias = case.make(*sources[3:])
        return loss(*na.attention(*sources[:3], bias, **options, return_logsumexp=True))

    wide = tensors(case, way, torch.float64)
    written = case.written(way.place, *wide[3:])  # reads masks, as `way.seen`: not in transforms
    fixed = case if case.shapes else case._replace(written=lambda *_: written)
    assert way.seen.ndim == 4

    def dense(*sources: torch.Tensor) -> torch.Tensor:
        return loss(*model(fixed, way, list(sources))[:2])

    exact = derive(dense, wide)
    for dtype, unit in ((torch.float64, 2.0**-53), (torch.float32, UNIT)):
        # Each derivative adds sums over keys, queries and rows of products of the sums before it.
        check(
            derive(ours, tensors(case, way, dtype)), exact, order * STEPS * unit, dtype, transform
        )
    if order < 3 and (case, way) in PAIRS:  # third derivatives are beyond float16's range
        for dtype, unit in ((torch.bfloat16, 2.0**-9), (torch.float16, 2.0**-12)):
            given = tensors(case, way, dtype)
            rounded = derive(dense, [x.double() for x in given])
            check(derive(ours, given), rounded, 8 * order * unit, dtype, transform)


def check(found: Any, exact: Any, most: float, *what: Any) -> None:
    """Check that results differ by at most a share of the largest entry, or of 1, and print it."""
    shares = [
        (mine.double() - theirs).abs().max() / (theirs.abs().max() + 1)
        for mine, theirs in zip(*map(leaves, (found, exact)), strict=True)
    ]
    share = torch.stack(shares).max()  # NaN if one is
    print(*what, f"{share:.0e}")
    assert share <= most


def leaves(results: Any) -> list[torch.Tensor]:
    if isinstance(results, torch.Tensor):
        return [results]
    return [leaf for x in results for leaf in leaves(x)]
