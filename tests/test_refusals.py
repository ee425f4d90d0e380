"""Wrong arguments: one table and one property of all errors, then sentences that are features.

An error is one line, which begins with the argument's name, and says what was expected and what
came.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from fuzz.drawn.wrong_arguments import FUNCTIONS, Function
from fuzz.wrong_values import HOSTILE
from torch._dynamo.exc import Unsupported

import ntk_alibi as na
from refusals import LONGEST, check_line
from refused import (
    FLEX,
    HEADS,
    KEY,
    KEYS,
    NESTED,
    PAIRS,
    QUERY,
    REFUSED,
    SWAPPED,
    TENSORS,
    Forgetful,
    of,
    score_mod,
)


@pytest.mark.parametrize(
    ("function", "given", "argument", "error"),
    [
        pytest.param(function, right | wrong, argument, error, id=f"{name}: {argument} {i}.{j}")
        for name, (function, right, rows) in REFUSED.items()
        for i, (argument, error, *wrongs) in enumerate(rows)
        for j, wrong in enumerate(wrongs)
    ],
)
def test_a_contradiction_is_refused(
    function: Any, given: dict[str, Any], argument: str, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        function(**given)
    check_line(caught.value, argument)
    assert plt.get_fignums() == []


def of_tensors(attention: Function) -> list[Function]:
    """Return attention of tensors that torch records, which has other ways of computing."""
    inputs = ("query", "key", "value")
    wrong = {name: values for name, values in attention.wrong.items() if name not in inputs}
    return [
        replace(
            attention,
            name=f"attention of {dtype}",
            right={
                x: torch.tensor(attention.right[x], dtype=dtype, requires_grad=True) for x in inputs
            },
            wrong=wrong,
        )
        for dtype in (torch.float32, torch.float64)
    ]


@pytest.mark.parametrize("function", [*FUNCTIONS, *of_tensors(FUNCTIONS[0])], ids=lambda x: x.name)
def test_a_wrong_value_is_refused(function: Function) -> None:
    function.call(**function.right)
    for argument, values in function.wrong.items():
        for value in values:
            with pytest.raises((TypeError, ValueError)) as caught:
                function.call(**function.right | {argument: value})
            check_line(caught.value, argument, *function.also.get(argument, ()))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda x: x.name)
def test_a_hostile_value_is_taken_or_gets_a_line(function: Function) -> None:
    """Such as integers of 5,000 digits, and what describes itself in several lines."""
    for argument, value in itertools.product(function.wrong, HOSTILE):
        line = "taken"
        try:
            function.call(**function.right | {argument: value})
        except (TypeError, ValueError) as error:
            line = str(error)
        assert line.isprintable()
        assert len(line) <= LONGEST


#: Sentences that say what to write, which are features, and what gets them.
ADVICE: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    r"call self.define\(num_heads=": (na.attention, of(QUERY, KEY, bias=Forgetful())),
    "pass na.DistanceFunction": (na.attention, of(QUERY, KEY, bias=score_mod)),
    r"pass ALiBi\(num_heads, NTK\(": (na.attention, of(QUERY, KEY, bias=na.NTK(4.0))),
    r"pass query.swapaxes\(1, 2\)": (na.attention, of(SWAPPED, SWAPPED, bias=na.ALiBi(4))),
    r"to_padded_tensor\(0\) .* pass segment_ids": (na.attention, of(NESTED, NESTED)),
    r"pass create_mask\(mask.mask_mod": (na.attention, of(*TENSORS, mask=FLEX)),
    "pass padding as key_padding_mask": (na.attention, of(QUERY, KEY, mask=PAIRS[0, 0])),
    "pass an array to add as bias": (na.attention, of(QUERY, KEY, mask=PAIRS.astype("f4"))),
    "'is_causal': pass causal, which is": (na.attention, of(QUERY, KEY, is_causal=True)),
    r"pass window, .* window_size\[0\] \+ 1": (na.attention, of(QUERY, KEY, window_size=(2, 0))),
    "unexpected keyword argument 'softcaps'$": (na.attention, of(QUERY, KEY, softcaps=1.0)),
    r'did you mean NTK\(4\), or "ntk:4"': (na.alibi_slopes, {"num_heads": 8, "scaling": 4.0}),
}


@pytest.mark.parametrize("advice", ADVICE)
def test_an_error_says_what_to_write(advice: str) -> None:
    function, given = ADVICE[advice]
    with pytest.raises((TypeError, ValueError), match=advice):
        function(**given)


FIVE = torch.ones(1, HEADS, KEYS, 8)
OWN = type("Own", (na.DynamicNTK,), {})(2.0, 2)
TABLE = na.DistanceTable(abs(np.arange(-8.0, 9))[None].repeat(HEADS, 0), -8)

#: Biases that no graph can hold, and what the error says to pass.
TRACED = {
    "pass a DistanceTable": (na.DistanceFunction(np.abs, HEADS), TABLE),
    r"slopes=na.alibi_slopes\(...\)": (
        na.ALiBi(HEADS, OWN), na.ALiBi(HEADS, slopes=na.alibi_slopes(HEADS, OWN, [KEYS]))
    ),
}  # fmt: skip


@pytest.mark.needs("torch >= 2.12", "before, attention breaks a graph")
@pytest.mark.parametrize("advice", TRACED)
def test_in_a_graph_what_the_error_says_gives_the_same(advice: str) -> None:
    def attend(bias: Any, at: Any) -> Any:
        return na.attention(FIVE, FIVE, FIVE, bias, key_positions=at, query_positions=at)

    torch.compiler.reset()
    compiled, at = torch.compile(attend, backend="eager", fullgraph=True), torch.arange(KEYS)
    refused, taken = TRACED[advice]
    with pytest.raises((ValueError, Unsupported), match=advice):
        compiled(refused, at)
    torch.testing.assert_close(compiled(taken, at), attend(refused, at))
