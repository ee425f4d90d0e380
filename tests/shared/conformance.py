"""What must hold for any bias: one form, `kernel_bias`, and every way to attend.

A `Case` is a bias with its numbers written out; a `Way` is a kind of call. `model` is attention of
all pairs in float64 by torch, whose autograd gives the gradients to compare with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import gradient_checks
import ntk_alibi as na
from attention_checks import UNIT, check_against, expected, inputs, random, visible

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, DIM = 2, 4, 2, 24, 70, 8
LENGTHS = {"B": BATCH, "H": HEADS, "Q": QUERIES, "K": KEYS}

#: float64 as a share of float32, by their units. Its numbers may come of as many sums as there are
#: keys, which float32's are free of: they are summed in float64.
WIDE = KEYS * 2.0**-29


class Place(NamedTuple):
    """Where a call's queries and keys are, as tensors.

    Attributes:
        queries, keys: positions (1 or batch, length).
        real: which keys are real, (batch, keys), or None.
        given: whether positions of the queries were given.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    real: torch.Tensor | None
    given: bool

    @property
    def distance(self) -> torch.Tensor:
        """From query to key, (1 or batch, 1, queries, keys)."""
        return (self.queries[:, None, :, None] - self.keys[:, None, None]).double()


class Case(NamedTuple):
    """A bias and what it means.

    Attributes:
        make: returns it, of its parameters, which are all arrays or all tensors.
        written: its numbers in float64, that broadcast to (batch, heads, queries, keys), of a place
            and the parameters; -inf hides.
        shapes: of the parameters, numbers from 0.1 to 1.1; letters are those of LENGTHS.
        causal: whether it is for causal attention only.
        at_the_end: whether it is for queries that are the last keys only.
        traced: whether torch.compile takes it.
    """

    make: Callable[..., Any]
    written: Callable[..., torch.Tensor]
    shapes: tuple[tuple[Any, ...], ...] = ()
    causal: bool = False
    at_the_end: bool = False
    traced: bool = True

    def parameters(self, queries: int) -> list[NDArray[np.float32]]:
        """Numbers for its parameters."""
        lengths = {**LENGTHS, "Q": queries}
        shapes = [[lengths.get(n, n) for n in shape] for shape in self.shapes]
        numbers = np.random.default_rng(5)
        return [(0.1 + numbers.random(shape)).astype(np.float32) for shape in shapes]


class Way(NamedTuple):
    """A kind of call: options of `attention`, and the number of queries."""

    options: dict[str, Any]
    queries: int = QUERIES

    def given(self, tensors: bool = False) -> dict[str, Any]:
        """Options with masks and positions as arrays or as tensors."""
        return {
            name: torch.from_numpy(x) if tensors and isinstance(x, np.ndarray) else x
            for name, x in self.options.items()
        }

    @property
    def place(self) -> Place:
        """Where its queries and keys are."""
        keys = self.options.get("key_positions", np.arange(KEYS))
        first = 0 if self.options.get("align") == "start" else KEYS - self.queries
        queries = self.options.get("query_positions", keys[..., first : first + self.queries])
        real = self.options.get("key_padding_mask")
        return Place(
            *(torch.from_numpy(np.atleast_2d(x)) for x in (queries, keys)),
            None if real is None else torch.from_numpy(real),
            any(name in self.options for name in ("query_positions", "key_positions", "align")),
        )

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Which keys each query sees, (1 or batch, 1, queries, keys)."""
        names = ("causal", "window", "causal_block", "sink")
        rule = {name: self.options[name] for name in names if name in self.options}
        mask, place = self.options.get("key_padding_mask"), self.place
        return visible(place.queries.numpy(), place.keys.numpy(), **rule, mask=mask)

    def refusal(self, case: Case) -> str | None:
        """What the sentence says that refuses a bias, if this is not for it."""
        if case.causal and not self.options.get("causal", True):
            return "causal must be True for a bias of causal sides"
        placed = "query_positions" in self.options or "align" in self.options
        if case.at_the_end and placed:
            return "query_positions must be None and align 'end'"
        return None

    def arrays(self) -> list[NDArray[np.float32]]:
        """Query, key and value."""
        return inputs(BATCH, HEADS, KEY_HEADS, self.queries, KEYS, DIM)


PADDING = np.arange(KEYS) >= np.array([[0], [55]])
GAPS = np.arange(KEYS) + np.arange(KEYS) // 9
SHUFFLED = np.random.default_rng(3).permutation(GAPS)[:QUERIES]

WAYS = {
    "plain": Way({}),
    "both sides": Way({"causal": False}),
    "a window": Way({"window": 9}),
    "a window and sinks on both sides": Way({"causal": False, "window": 9, "sink": 3}),
    "blocks and sinks": Way({"causal_block": 8, "sink": 2}),
    "padding": Way({"key_padding_mask": PADDING}),
    "positions": Way({"query_positions": SHUFFLED, "key_positions": GAPS}),
    "positions of keys": Way({"key_positions": GAPS, "causal_block": 16}),
    "beside the first keys": Way({"align": "start", "causal": False}),
    "one query": Way({}, queries=1),
    "one query, a window and sinks": Way({"window": 9, "sink": 3}, queries=1),
    "RoPE": Way({"rotary": na.RoPE(DIM)}),
    "RoPE on both sides": Way({"rotary": na.RoPE(DIM), "causal": False}),
    "XPOS": Way({"rotary": na.XPOS(DIM, scale_base=2.0)}),
    "XPOS, a window and sinks": Way(
        {"rotary": na.XPOS(DIM, scale_base=2.0), "window": 9, "sink": 3}
    ),
    "XPOS, blocks and padding": Way(
        {"rotary": na.XPOS(DIM, scale_base=2.0), "causal_block": 8, "key_padding_mask": PADDING}
    ),
    "XPOS and positions": Way(
        {
            "rotary": na.XPOS(DIM, scale_base=2.0),
            "query_positions": np.sort(SHUFFLED),
            "key_positions": GAPS,
        }
    ),
    "log n": Way({"log_n": 8}),
    "RoPE, log n, a window, sinks and padding": Way(
        {
            "rotary": na.RoPE(DIM),
            "log_n": 8,
            "window": 20,
            "sink": 3,
            "key_padding_mask": PADDING,
        }
    ),
}


class Model(NamedTuple):
    """Attention of all pairs in float64; the bias is -inf where a key is not seen."""

    output: torch.Tensor
    logsumexp: torch.Tensor
    bias: torch.Tensor
    scores: torch.Tensor


def model(case: Case, way: Way, sources: list[torch.Tensor]) -> Model:
    """Attention by the words of its docstring, of query, key, value and the bias's parameters."""
    query, key, value = (x.repeat_interleave(HEADS // x.shape[1], 1) for x in sources[:3])
    seen = torch.from_numpy(way.seen)
    numbers = case.written(way.place, *sources[3:])
    bias = torch.where(seen, numbers, -torch.inf).expand(*query.shape[:3], KEYS)
    scores = _scale(way)[..., None] * _products(way, query, key)
    scores = torch.where(seen, scores, 0.0)
    hidden = bias.isneginf()
    some = ~hidden.all(-1)
    every = torch.where(some[..., None], scores + bias, 0.0)
    logsumexp = every.logsumexp(-1)
    weights = (every - logsumexp[..., None]).exp() * some[..., None]
    return Model(weights @ value, torch.where(some, logsumexp, -torch.inf), bias, scores)


def _scale(way: Way) -> torch.Tensor:
    """Scale of the products, (1 or batch, 1, 1 or queries)."""
    scale = 1 / math.sqrt(DIM)
    if "log_n" not in way.options:
        return torch.full((1, 1, 1), scale, dtype=torch.float64)
    return scale * torch.from_numpy(na.reference.log_n_factors(way.seen, way.options["log_n"]))


def _products(way: Way, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """q.k of all pairs: sum_m Re[q_m conj(k_m) (zeta_m^(1/B) e^(i theta_m))^(i - j)]."""
    rotary: Any = way.options.get("rotary")
    if rotary is None:
        return query @ key.mT
    q, k = (torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) for x in (query, key))
    distance, share = way.place.distance[..., None], 2 * torch.arange(DIM // 2) / DIM
    power = torch.exp(1j * distance * rotary.base ** -share.double())
    if isinstance(rotary, na.XPOS):
        zeta = (share.double() + rotary.gamma) / (1 + rotary.gamma)
        power = power * zeta ** (distance.clamp(min=0.0) / rotary.scale_base)
    return (q[:, :, :, None] * k.conj()[:, :, None] * power).real.sum(-1)


# Values
# --------------------------------------------------------------------------------------------------


def check_values(case: Case, way: Way, result: Any) -> None:
    """That output and logsumexp are those of the model, by the bounds of `expected`."""
    wide = result[0].dtype in (np.float64, torch.float64)
    arrays, sources = way.arrays(), _wide(case, way)
    with torch.no_grad():
        means = model(case, way, sources)
    factor = float(_scale(way).max())
    scores = None
    if "rotary" in way.options or "log_n" in way.options:
        scores = means.scores.numpy()
    what = expected(*arrays, means.bias.numpy(), factor, scores=scores)
    if wide:
        what = what._replace(
            output_error=WIDE * what.output_error, logsumexp_error=WIDE * what.logsumexp_error
        )
    check_against(what, [np.asarray(x.detach() if torch.is_tensor(x) else x) for x in result])


def attend(case: Case, way: Way, sources: list[Any], bias: Any = None) -> Any:
    """Output and logsumexp of query, key, value and the bias's parameters, arrays or tensors."""
    tensors = torch.is_tensor(sources[0])
    bias = case.make(*sources[3:]) if bias is None else bias
    return na.attention(*sources[:3], bias, **way.given(tensors), return_logsumexp=True)


def numbers(case: Case, way: Way) -> list[NDArray[np.float32]]:
    """Query, key, value and the bias's parameters."""
    return [*way.arrays(), *case.parameters(way.queries)]


def tensors(case: Case, way: Way, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Query, key, value and the bias's parameters, as tensors."""
    return [torch.from_numpy(x).to(dtype) for x in numbers(case, way)]


def _wide(case: Case, way: Way) -> list[torch.Tensor]:
    return tensors(case, way, torch.float64)


# Gradients
# --------------------------------------------------------------------------------------------------


def loss(output: torch.Tensor, logsumexp: torch.Tensor) -> torch.Tensor:
    """A number whose gradient in both is known: random ones."""
    do, dl = _incoming(output)
    some = torch.where(logsumexp.isneginf(), 0.0, logsumexp)
    return (output * torch.from_numpy(do)).sum() + (some * torch.from_numpy(dl)).sum()


def _incoming(output: torch.Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return random(20, *output.shape), random(21, *output.shape[:3])


def check_gradients(case: Case, way: Way, found: Any, dtype: torch.dtype) -> None:
    """That gradients of query, key, value and parameters are those of torch in float64.

    Of a parameter it is the sum of ds_ij dbias_ij over all pairs. Kernels sum ds, or ds times the
    distance, over some pairs in float32, as `check_linear` says, and torch sums over what is
    broadcast: by one addition for each row and query at most.
    """
    sources = [x.requires_grad_() for x in _wide(case, way)]
    means = model(case, way, sources)
    exact = torch.autograd.grad(loss(means.output, means.logsumexp), sources)
    rotates = "rotary" in way.options or "log_n" in way.options
    what = gradient_checks.expected(
        way.arrays(),
        means.bias.detach().numpy(),
        *_incoming(means.output),
        float(_scale(way).max()),
        rotated=(means.scores.detach().numpy(), [x.numpy() for x in exact[:3]])
        if rotates
        else None,
    )
    share = WIDE if dtype == torch.float64 else 1.0
    for mine, theirs, error in zip(found[:3], exact[:3], what.errors, strict=True):
        assert mine.dtype == dtype
        assert (np.abs(mine.double() - theirs).numpy() <= share * error).all()
    pairs = what.pairs
    steps = UNIT * (80 + KEYS / 16 + BATCH * way.queries)
    errors = torch.from_numpy(pairs.errors + steps * pairs.sizes)
    for index, (mine, theirs) in enumerate(zip(found[3:], exact[3:], strict=True)):
        assert mine.dtype == dtype
        error = _summed(case, way, sources[3:], index, errors) + 2 * UNIT * theirs.abs()
        assert ((mine.double() - theirs).abs() <= share * error).all()


def _summed(
    case: Case, way: Way, parameters: list[torch.Tensor], index: int, errors: torch.Tensor
) -> torch.Tensor:
    """Errors of all pairs times the size of the bias's derivative in a parameter, summed."""
    seen = torch.from_numpy(way.seen)

    def written(parameter: torch.Tensor) -> torch.Tensor:
        others = [*parameters[:index], parameter, *parameters[index + 1 :]]
        bias = case.written(way.place, *(x.detach() for x in others[:index]), *others[index:])
        return torch.where(seen & ~bias.isneginf(), bias, 0.0)

    slopes = torch.func.jacfwd(written)(parameters[index].detach()).detach().abs()
    slopes = slopes.expand(*errors.shape, *parameters[index].shape)
    return torch.tensordot(errors, slopes, dims=4)
