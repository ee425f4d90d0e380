"""The fuzzer: some of it, that it finds what is wrong, and that it shares no code."""

from __future__ import annotations

import ast
import copy
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzz.case import Case, drawn_case
from fuzz.drawn.biases import ANYWHERE
from fuzz.drawn.biases import FORGET_GATES as GATES
from fuzz.drawn.biases import OVER_DISTANCE as OVER
from fuzz.drawn.wrong_arguments import FUNCTIONS, Function
from fuzz.kinds import KINDS
from fuzz.worker import prepare

import ntk_alibi as na
from ntk_alibi.biases import BiasObject
from repository import ROOT

#: Cases within which a defect of every call must be found.
SOON = 40

attention = na.attention


@pytest.fixture(autouse=True)
def as_a_worker() -> Iterator[None]:
    before = torch.get_num_threads()
    prepare()
    yield
    torch.set_num_threads(before)
    na.set_num_threads(0)


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fuzz", *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_random_cases_find_nothing() -> None:
    """The seed is a new one each time; it is in the output, and in each report."""
    done = run("--minutes", "0.15")
    assert done.returncode == 0, done.stdout + done.stderr
    assert run("--kind", "slopes", "--kind", "merge", "--seed", "5").stdout == "right\nright\n"


@pytest.mark.parametrize("kind", KINDS)
def test_cases_of_every_kind_are_right(isa: str, kind: str) -> None:
    """A case takes some milliseconds; a campaign draws kinds as often, in proportion."""
    often, _ = KINDS[kind]
    reports = (Case(kind, seed).run() for seed in range(math.ceil(40 * often)))
    assert next(filter(None, reports), None) is None


def test_negative_slopes_and_far_keys_are_right() -> None:
    """The greatest bias is then not the one of the nearest key, from which kernels count."""
    assert Case("far", 625036198139).run() is None


def test_every_public_bias_and_function_is_drawn() -> None:
    """A new bias needs a case in fuzz/oracle/bias_cases.py, or functions in fuzz/drawn."""
    biases = {name for name in na.__all__ if isinstance(getattr(na, name), type(na.ALiBi))}
    biases = {name for name in biases if issubclass(getattr(na, name), BiasObject)}
    assert {"ALiBi", "T5"} <= biases <= {name.split("(")[0] for name in ANYWHERE | OVER | GATES}
    called = {function.name for function in FUNCTIONS}
    assert biases | {"attention", "merge", "alibi_slopes", "build_alibi_tensor"} <= called


def test_a_case_is_the_same_each_time() -> None:
    assert drawn_case(7, list(KINDS)) == drawn_case(7, list(KINDS))
    assert Case("slopes", 5).run() is Case("merge", 5).run() is None


def changed(change: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[..., Any]:
    """Return attention with another output and logsumexp."""

    def wrong(*arguments: Any, **options: Any) -> Any:
        results = attention(*arguments, **options)
        if not options.get("return_logsumexp"):
            return results
        return (*change(*results[:2]), *results[2:])

    return wrong


def with_positive_bias(query: Any, key: Any, value: Any, bias: Any = None, **options: Any) -> Any:
    if isinstance(bias, np.ndarray):
        bias = np.where(np.isneginf(bias), bias, -bias)
    return attention(query, key, value, bias, **options)


def without(name: str, instead: Any) -> Callable[..., Any]:
    """Return attention that does not know an option."""

    def wrong(*arguments: Any, **options: Any) -> Any:
        if name in options:
            options[name] = instead
        return attention(*arguments, **options)

    return wrong


def with_masks_by_address() -> Callable[..., Any]:
    """Return attention that finds a mask again by the address of its memory."""
    kept: dict[int, Any] = {}

    def wrong(*arguments: Any, **options: Any) -> Any:
        mask = options["mask"].mask if hasattr(options["mask"], "mask") else options["mask"]
        address = mask.data_ptr() if isinstance(mask, torch.Tensor) else mask.ctypes.data
        options["mask"] = kept.setdefault(address, copy.deepcopy(mask))
        return attention(*arguments, **options)

    return wrong


@pytest.mark.parametrize(
    ("kind", "wrong", "cases"),
    [
        ("forward", changed(lambda output, log: (output * 1.02, log)), SOON),
        ("forward", changed(lambda output, log: (output, log + 1e-3)), SOON),
        ("forward", changed(lambda output, log: (output + float("nan"), log)), SOON),
        ("forward", changed(lambda output, log: (output[:, :, ::1] * 0, log)), SOON),
        ("forward", with_positive_bias, 10 * SOON),
        ("forward", without("window", None), 10 * SOON),
        ("forward", without("key_padding_mask", None), 10 * SOON),
        ("certificate", without("skip_tolerance", 0.999), 10 * SOON),
        ("gradient", without("scale", 0.3), 10 * SOON),
        ("changed-mask", with_masks_by_address(), SOON),
    ],
)
def test_a_defect_is_found(
    kind: str, wrong: Any, cases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(na, "attention", wrong)
    report = next(filter(None, (Case(kind, seed).run() for seed in range(cases))), None)
    assert report is not None
    assert f"python -m fuzz --kind {kind} --seed " in report


def test_a_refusal_without_the_name_and_another_error_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for error in (KeyError("query"), ValueError("something is wrong")):

        def refuse(error: Exception = error, **_: Any) -> None:
            raise error

        functions = sys.modules["fuzz.kinds.arguments"]
        monkeypatch.setattr(functions, "FUNCTIONS", [_function(refuse)])
        report = Case("bad-argument", 1).run()
        assert report is not None
        assert repr(error) in report


def _function(call: Callable[..., Any]) -> Any:
    return Function("refuse", call, {}, {"query": (3,)})


@pytest.mark.slow
def test_a_process_that_dies_is_reported_with_its_case(tmp_path: Path) -> None:
    """The campaign goes on after it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, fuzz.kinds\n"
        "def die(draw):\n"
        "    die.cases += 1\n"
        "    if die.cases == 3: os.abort()\n"
        "die.cases = 0\n"
        "fuzz.kinds.KINDS = {'forward': (1, die)}\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    isas = len(na.info()["isas"])
    done = run("--cases", str(4 * isas), "--seed", "100", PYTHONPATH=path)
    assert done.returncode == 1
    assert done.stdout.count("the process died with status -6") == isas
    for seed in range(100 + 2 * isas, 100 + 3 * isas):
        assert f"python -m fuzz --kind forward --seed {seed}\n" in done.stdout


def modules_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_oracle_shares_nothing_with_the_package() -> None:
    for path in (ROOT / "fuzz/oracle").rglob("*.py"):
        assert not any(x.startswith("ntk_alibi") for x in modules_of(path)), path
