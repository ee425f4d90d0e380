"""Conformance of biases: any bias with a `kernel_bias`, in every kind of call.

A `Case` is a bias and its dense form; a `Way` is a kind of call. `model` is dense attention by
torch in float64, whose autograd gives the expected gradients.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import gradient_checks
import ntk_alibi as na
from attention_checks import UNIT, Expected, check_against, expected, inputs, random, visible

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, DIM = 2, 4, 2, 24, 70, 8
LENGTHS = {"B": BATCH, "H": HEADS, "Q": QUERIES, "K": KEYS}

#: Error of float64 as a share of the error of float32: the ratio of their units, times KEYS, since
#: prefix sums of that many float64 gates have the same precision as the gates.
WIDE = KEYS * 2.0**-29


class Place(NamedTuple):
    """Positions of a call's queries and keys, as tensors.

    Attributes:
        queries, keys: positions (1 or batch, length).
        real: mask of the real keys, (batch, keys), or None.
        given: whether the call has positions of the queries.
        same_segment: mask of keys in each query's segment, (batch, queries, keys), or None.
        columns: the columns of the keys at the queries' tokens, (1 or batch, queries).
    """

    queries: torch.Tensor
    keys: torch.Tensor
    real: torch.Tensor | None
    given: bool
    same_segment: torch.Tensor | None
    columns: torch.Tensor

    @property
    def distance(self) -> torch.Tensor:
        """The distances of queries and keys, (1 or batch, 1, queries, keys)."""
        return (self.queries[:, None, :, None] - self.keys[:, None, None]).double()


class Case(NamedTuple):
    """A bias and its dense form.

    Attributes:
        make: returns the bias for its parameters, which are all arrays or all tensors.
        written: returns the dense form in float64 for a place and the parameters; it broadcasts to
            (batch, heads, queries, keys), and -inf hides keys.
        shapes: shapes of the parameters, values from 0.1 to 1.1; letters as in LENGTHS.
        causal: whether the bias is for causal attention only.
        at_the_end: whether the bias is for queries that are the last keys only.
    """

    make: Callable[..., Any]
    written: Callable[..., torch.Tensor]
    shapes: tuple[tuple[Any, ...], ...] = ()
    causal: bool = False
    at_the_end: bool = False

    def parameters(self, queries: int) -> list[NDArray[np.float32]]:
        """Return random parameters."""
        lengths = {**LENGTHS, "Q": queries}
        shapes = [[lengths.get(n, n) for n in shape] for shape in self.shapes]
        values = np.random.default_rng(5)
        return [(0.1 + values.random(shape)).astype(np.float32) for shape in shapes]


@dataclass(frozen=True, eq=False)
class Way:
    """A kind of call: options of `attention`, and the number of queries."""

    options: dict[str, Any]
    queries: int = QUERIES

    def given(self, *, tensors: bool) -> dict[str, Any]:
        """Return the options with masks and positions as arrays or as tensors."""
        return {
            name: torch.from_numpy(x) if tensors and isinstance(x, np.ndarray) else x
            for name, x in self.options.items()
        }

    @cached_property
    def place(self) -> Place:
        """The positions of queries and keys."""
        keys = self.options.get("key_positions", np.arange(KEYS))
        first = 0 if self.options.get("align") == "start" else KEYS - self.queries
        columns = np.arange(first, first + self.queries)
        queries = self.options.get("query_positions", keys[..., columns])
        real, same_segment, segments = self.options.get("key_padding_mask"), None, self.segments
        if segments is not None:
            same_segment = torch.from_numpy(segments[0][:, :, None] == segments[1][:, None])
            queries, keys = na.reference.text_positions(*reversed(segments))
            begins = same_segment.int().argmax(-1).numpy()
            columns = np.maximum(begins + queries, 0)  # some texts of queries have no keys
        return Place(
            *(torch.from_numpy(np.atleast_2d(x)) for x in (queries, keys)),
            None if real is None else torch.from_numpy(real),
            any(name in self.options for name in ("query_positions", "key_positions", "align")),
            same_segment,
            torch.from_numpy(np.atleast_2d(columns)),
        )

    @property
    def segments(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Segment ids of queries and keys, (batch, length), or None without packed segments."""
        if "segment_ids" not in self.options:
            return None
        keys = np.broadcast_to(self.options["segment_ids"], (BATCH, KEYS))
        queries = self.options.get("query_segment_ids", keys[:, KEYS - self.queries :])
        return np.broadcast_to(queries, (BATCH, self.queries)), keys

    @property
    def dropped(self) -> dict[str, Any]:
        """The options of dropout, none without it."""
        return {name: self.options[name] for name in ("dropout", "seed") if name in self.options}

    @cached_property
    def seen(self) -> NDArray[np.bool_]:
        """The mask of visible pairs, (1 or batch, 1, queries, keys)."""
        names = ("causal", "window", "causal_block", "sink")
        rule = {name: self.options[name] for name in names if name in self.options}
        mask, place = self.options.get("key_padding_mask"), self.place
        if self.segments is not None:
            rule["query_segment_ids"], rule["segment_ids"] = self.segments
        return visible(place.queries.numpy(), place.keys.numpy(), **rule, mask=mask)

    def refusal(self, case: Case) -> str | None:
        """Return the error message of this call with a bias that it does not support, else None."""
        if case.causal and not self.options.get("causal", True):
            return "bias must cover both sides"
        placed = "query_positions" in self.options or "align" in self.options
        if case.at_the_end and placed:
            return "query_positions must be None and align 'end'"
        if case.at_the_end and "query_segment_ids" in self.options:
            return "query_segment_ids must not give a segment more queries than keys"
        return None

    def arrays(self) -> list[NDArray[np.float32]]:
        """Return query, key and value."""
        return inputs(BATCH, HEADS, KEY_HEADS, self.queries, KEYS, DIM)


PADDING = np.arange(KEYS) >= np.array([[0], [55]])
GAPS = np.arange(KEYS) + np.arange(KEYS) // 9
TEXTS = np.repeat([[3, 7, 0, 1], [5, 2, 8, 4]], [30, 21, 4, 15, 1, 47, 21, 1]).reshape(2, KEYS)
SHUFFLED = np.random.default_rng(3).permutation(GAPS)[:QUERIES]
XPOS = na.XPOS(DIM, scale_base=2.0)

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
    "XPOS": Way({"rotary": XPOS}),
    "XPOS, a window and sinks": Way({"rotary": XPOS, "window": 9, "sink": 3}),
    "XPOS, blocks and padding": Way(
        {"rotary": XPOS, "causal_block": 8, "key_padding_mask": PADDING}
    ),
    "XPOS and positions": Way(
        {"rotary": XPOS, "query_positions": np.sort(SHUFFLED), "key_positions": GAPS}
    ),
    "log n": Way({"log_n": 8}),
    "packed": Way({"segment_ids": TEXTS}),
    "packed in other columns, on both sides, a window and sinks": Way(
        {
            "segment_ids": TEXTS[0],
            "query_segment_ids": np.repeat([[1, 7, 9], [3, 0, 1]], [9, 12, 3, 20, 2, 2]).reshape(
                2, 24
            ),
            "causal": False,
            "window": 9,
            "sink": 3,
        }
    ),
    "packed, RoPE, log n, blocks and padding": Way(
        {
            "segment_ids": TEXTS,
            "rotary": na.RoPE(DIM),
            "log_n": 8,
            "causal_block": 8,
            "key_padding_mask": np.arange(KEYS) % 31 > [[0], [5]],
        }
    ),
    "dropout, padding, a window and sinks": Way(
        {"dropout": 0.5, "seed": 2**63 + 12, "key_padding_mask": PADDING, "window": 20, "sink": 3}
    ),
    "dropout, packed, XPOS, log n": Way(
        {"dropout": 0.1, "seed": 13, "segment_ids": TEXTS, "rotary": XPOS, "log_n": 8}
    ),
    "packed, XPOS": Way({"segment_ids": TEXTS, "rotary": XPOS}),
    "RoPE, log n, a window, sinks and padding": Way(
        {"rotary": na.RoPE(DIM), "log_n": 8, "window": 20, "sink": 3, "key_padding_mask": PADDING}
    ),
}


class Model(NamedTuple):
    """Dense attention in float64; the bias is -inf for hidden keys."""

    output: torch.Tensor
    logsumexp: torch.Tensor
    bias: torch.Tensor
    scores: torch.Tensor


def model(case: Case, way: Way, sources: list[torch.Tensor]) -> Model:
    """Compute attention by its formula, from query, key, value and the bias's parameters."""
    query, key, value = (x.repeat_interleave(HEADS // x.shape[1], 1) for x in sources[:3])
    seen = torch.from_numpy(way.seen)
    values = case.written(way.place, *sources[3:])
    bias = torch.where(seen, values, -torch.inf).expand(*query.shape[:3], KEYS)
    scores = _scale(way)[..., None] * _products(way, query, key)
    scores = torch.where(seen, scores, 0.0)
    hidden = bias.isneginf()
    some = ~hidden.all(-1)
    every = torch.where(some[..., None], scores + bias, 0.0)
    logsumexp = every.logsumexp(-1)
    weights = (every - logsumexp[..., None]).exp() * some[..., None]
    if way.dropped:
        factors = na.reference.dropout_factors(tuple(weights.shape), **way.dropped)
        weights = weights * torch.from_numpy(factors)
    return Model(weights @ value, torch.where(some, logsumexp, -torch.inf), bias, scores)


def _scale(way: Way) -> torch.Tensor:
    """Return the scale of the products, (1 or batch, 1, 1 or queries)."""
    scale = 1 / math.sqrt(DIM)
    if "log_n" not in way.options:
        return torch.full((1, 1, 1), scale, dtype=torch.float64)
    return scale * torch.from_numpy(na.reference.log_n_factors(way.seen, way.options["log_n"]))


def _products(way: Way, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return q.k = sum_m Re[q_m conj(k_m) (zeta_m^(1/B) e^(i theta_m))^(i - j)] of all pairs."""
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


def arrays(case: Case, way: Way) -> list[NDArray[np.float32]]:
    """Return query, key, value and the bias's parameters as arrays."""
    return [*way.arrays(), *case.parameters(way.queries)]


def tensors(
    case: Case, way: Way, dtype: torch.dtype = torch.float32, *, grad: bool = False
) -> list[torch.Tensor]:
    """Return query, key, value and the bias's parameters as tensors."""
    return [torch.from_numpy(x).to(dtype).requires_grad_(grad) for x in arrays(case, way)]


class Expectation:
    """Results of the model for a bias and a kind of call, with bounds on the errors of others."""

    def __init__(self, case: Case, way: Way) -> None:
        self._case, self._way = case, way
        self._sources = tensors(case, way, torch.float64, grad=True)
        self._model = model(case, way, self._sources)
        self._bias = self._model.bias.detach().numpy()
        self._scale = float(_scale(way).max())
        turned = "rotary" in way.options or "log_n" in way.options
        self._scores = self._model.scores.detach().numpy() if turned else None

    @cached_property
    def _expected(self) -> Expected:
        return expected(
            *self._way.arrays(), self._bias, self._scale, scores=self._scores, **self._way.dropped
        )

    def check(self, *results: Any) -> None:
        """Check that each (output, logsumexp) is the model's within the bounds of `expected`."""
        what = self._expected
        wide = what._replace(
            output_error=WIDE * what.output_error, logsumexp_error=WIDE * what.logsumexp_error
        )
        for result in results:
            values = [np.asarray(x.detach() if torch.is_tensor(x) else x) for x in result]
            check_against(wide if values[0].dtype == np.float64 else what, values)

    def check_gradients(self, *results: Any) -> None:
        """Check that gradients of `loss` in all sources equal torch's in float64.

        The gradient of a parameter is the sum of ds_ij dbias_ij over all pairs. Kernels sum ds, or
        ds times the distance, over some pairs in float32, as in `check_linear`; torch sums over
        broadcast axes, with at most one addition for each row and query.
        """
        exact = torch.autograd.grad(loss(*self._model[:2]), self._sources, retain_graph=True)
        rotated = None if self._scores is None else (self._scores, [x.numpy() for x in exact[:3]])
        what = gradient_checks.expected(
            self._way.arrays(), self._bias, *_incoming(self._model.output), self._scale,
            rotated=rotated, **self._way.dropped,
        )  # fmt: skip
        steps = UNIT * (80 + KEYS / 16 + BATCH * self._way.queries)
        of_pairs = torch.from_numpy(what.pairs.errors + steps * what.pairs.sizes)
        # The core's gradients of prefix sums of gates are float32 sums over all keys.
        of_sums = torch.from_numpy(2 * UNIT * (KEYS + 2) * what.pairs.sizes.sum(axis=(2, 3)))
        errors = [torch.from_numpy(x) for x in what.errors]
        for index, gradient in enumerate(exact[3:], 3):
            errors.append(self._through_bias(index, of_pairs) + 2 * UNIT * gradient.abs())
            if self._case.at_the_end:
                errors[-1] += of_sums[..., None].sum_to_size(*gradient.shape[:2], 1)
        for result in results:
            for mine, theirs, error in zip(result, exact, errors, strict=True):
                share = WIDE if mine.dtype == torch.float64 else 1.0
                assert ((mine.double() - theirs).abs() <= share * error).all()

    def _through_bias(self, index: int, errors: torch.Tensor) -> torch.Tensor:
        """Sum the errors of all pairs times the size of the bias's derivative in a source.

        The values of a head, and of a row where rows have their own, reach its own pairs alone. So
        one derivative in the direction of the n-th value of all heads has the derivatives of each.
        """
        place, seen = self._way.place, torch.from_numpy(~np.isneginf(self._bias))
        parameters = [x.detach() for x in self._sources[3:]]
        parameter, shape = parameters[index - 3], self._case.shapes[index - 3]
        axes = (2, 3) if shape[0] == "B" else (0, 2, 3)

        def written(parameter: torch.Tensor) -> torch.Tensor:
            others = [*parameters[: index - 3], parameter, *parameters[index - 2 :]]
            return torch.where(seen, self._case.written(place, *others), 0.0)

        def summed(number: torch.Tensor) -> torch.Tensor:
            direction = number.reshape(of_head).expand_as(parameter)
            derivative = torch.func.jvp(written, (parameter,), (direction,))[1]
            return (errors * derivative.abs()).sum(axes)

        of_head = parameter.shape[shape.index("H") + 1 :]
        with warnings.catch_warnings():  # torch's forward mode calls deprecated functions
            warnings.simplefilter("ignore", DeprecationWarning)
            sums = torch.func.vmap(summed)(torch.eye(of_head.numel()).double())
        return sums.movedim(0, -1).reshape(parameter.shape)


def loss(output: torch.Tensor, logsumexp: torch.Tensor) -> torch.Tensor:
    """Return a scalar whose gradients with respect to output and logsumexp are random."""
    do, dl = (torch.from_numpy(x) for x in _incoming(output))
    some = torch.where(logsumexp.isneginf(), 0.0, logsumexp)
    return (output * do).sum() + (some * dl).sum()


def _incoming(output: torch.Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return random(20, *output.shape), random(21, *output.shape[:3])
