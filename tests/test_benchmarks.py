"""Tests that the benchmarks run, at small sizes, and that all candidates compute the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import (
    bloom,
    candidates,
    compiled,
    decode,
    gradient,
    long_memory,
    masks,
    memory,
    models,
    optional_peers,
    overhead,
    peak,
    prefill,
    prefill_results,
    problems,
    short,
)
from benchmarks.__main__ import main
from benchmarks.candidates import Candidate
from benchmarks.problems import Case

from ntk_alibi.cli import timing
from repository import ROOT

pytestmark = pytest.mark.slow  # of a program beside the package

PEERS = {candidate.runtime: candidate for candidate in optional_peers.OPTIONAL}
DTYPES = [torch.float32, torch.bfloat16]

#: float32: torch's rounding of positions up to 64. bfloat16: outputs are below 4 and have 8 bits.
TOLERANCES = {torch.float32: 64 * 2.0**-22, torch.bfloat16: 4 * 2.0**-8}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "REST", 0.0)
    monkeypatch.setattr(peak, "ROUNDS", 10_000)
    monkeypatch.setattr(peak, "READ_BYTES", 2**20)
    monkeypatch.setattr(overhead, "SECONDS_PER_TURN", 0.0)
    monkeypatch.setattr(overhead, "LENGTHS", (1, 16))
    monkeypatch.setattr(overhead, "THREADS", (1,))


def small(dtype: torch.dtype, *, threads: int = 1, length: int = 64) -> Case:
    return Case(length, 16, dtype, threads)


def error(candidate: Candidate, case: Case) -> float:
    problem = problems.build(case)
    return problems.error(problem, candidate.output(candidate.prepare(problem)(), problem))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("candidate", [*candidates.TORCH, *candidates.OURS], ids=lambda c: c.name)
def test_candidates_compute_the_same(candidate: Candidate, dtype: torch.dtype) -> None:
    # transformers rounds its bias to bfloat16.
    wrong = "eager" in candidate.name and dtype == torch.bfloat16
    assert error(candidate, small(dtype)) < (2.0 if wrong else TOLERANCES[dtype])


def test_onnx_runtime_computes_the_same() -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    assert error(PEERS["onnxruntime"], small(torch.float32)) < TOLERANCES[torch.float32]


def test_jax_computes_the_same() -> None:
    if not PEERS["jax"].importable():
        pytest.skip("jax is not installed")
    # jax runs in a separate process, since it warns about the forks of other tests.
    code = (
        "from tests.test_benchmarks import DTYPES, PEERS, error, small;"
        "print(*(error(PEERS['jax'], small(dtype)) for dtype in DTYPES))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    for dtype, number in zip(DTYPES, done.stdout.split(), strict=True):
        assert float(number) < TOLERANCES[dtype]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("dtype", DTYPES)
def test_flex_attention_computes_the_same(dtype: torch.dtype) -> None:
    case = small(dtype, length=128)
    assert error(PEERS["torch"], case) < TOLERANCES[dtype]


def test_real_inputs_are_those_of_the_model() -> None:
    problem = problems.build(replace(prefill.real()[1], length=40))
    assert problem.query.shape == (*problem.case.batch_and_heads, 40, problem.case.head_dim)
    assert problem.query.std() > 0.1
    assert not torch.equal(problem.query[0], problem.query[1])


MODEL = models.Part(("BLOOM-560m",), torch.float32, (16,))

#: Parts of the benchmarks at small sizes, each of which writes a table.
RUNS: dict[str, Callable[[], str]] = {
    "decode": lambda: decode.markdown(decode.measure(200, torch.bfloat16, 1)),
    "overhead": lambda: overhead.markdown(overhead.measure(1)),
    "memory": lambda: memory.markdown(memory.measure(1024)),
    "long memory": lambda: long_memory.run(1024),
    "gradient": lambda: gradient.run(1, lengths=(64,)),
    "models": lambda: models.run(1, 16, MODEL),
    "whole models": lambda: models.run(1, 16, replace(MODEL, whole=True)),
    "masks": lambda: masks.run(1, 128, 256),
    "compiled": lambda: compiled.run(1),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_part_writes_a_table(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (decode, models, masks, compiled):
        monkeypatch.setattr(module, "SECONDS_PER_TURN", 0.0, raising=False)
    monkeypatch.setattr(decode, "FLUSHED_NUMBERS", 1)
    monkeypatch.setattr(decode, "SECONDS_PER_WARM_TURN", 0.0)
    monkeypatch.setattr(memory, "CANDIDATES", [candidates.BASELINE])
    call = "a prompt: ours"
    monkeypatch.setattr(long_memory, "CALLS", {call: long_memory.CALLS[call]})
    monkeypatch.setattr(compiled, "LENGTHS", (40, 33))
    monkeypatch.delitem(compiled.CASES, "a new mask of pairs")
    monkeypatch.delitem(compiled.CASES["causal"], "FlexAttention")
    header, line, *rows = [x for x in RUNS[name]().split("\n") if x.startswith("|")]
    assert rows
    assert {row.count("|") for row in (line, *rows)} == {header.count("|")}
    torch.compiler.reset()


def test_all_calls_of_long_texts_run() -> None:
    for make_call in long_memory.CALLS.values():
        make_call(64)()


def test_prompts_become_a_table_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [candidates.BASELINE, *candidates.TORCH, *candidates.OURS]
    monkeypatch.setattr(prefill, "CANDIDATES", kept)
    monkeypatch.setattr(prefill, "SECONDS_PER_TURN", 0.0)
    cases = [small(dtype, length=length) for dtype in DTYPES for length in (32, 64)]
    results = json.loads(json.dumps(prefill.measure(cases, 1)))
    text = prefill_results.markdown(results)
    assert text.count("| L = 32 | L = 64 | error |") == 2
    for candidate in kept:
        assert text.count(f"\n| {candidate.name} | ") == 2
    prefill_results.draw(results, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_the_command_measures_and_shows_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def output(*options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["benchmarks", "attention", *options])
        main()
        return capsys.readouterr().out

    results = tmp_path / "folder/results.json"
    options = ["--rounds", "1", "--results", str(results)]
    text = output("--only", "machine,over", *options)
    assert list(json.loads(results.read_text())) == ["machine", "overhead"]
    assert output("--measured", *options) == text


def test_bloom_is_the_same_model_everywhere() -> None:
    stock, patched = (
        bloom.block_call(name, 96, torch.float32)() for name in (bloom.STOCK, bloom.PATCHED)
    )
    torch.testing.assert_close(patched[0], stock[0], rtol=0, atol=1e-4)
    assert bloom.generate(bloom.make_model(1), 20, 3)().shape == (1, 23)


@pytest.mark.parametrize("name", models.PARTS["models"].names)
def test_patched_models_are_the_same_models(name: str) -> None:
    stock, patched = (
        models.forward(name, models.make(name, state), 40)()
        for state in (models.STOCK, models.PATCHED)
    )
    torch.testing.assert_close(patched[0], stock[0], rtol=0, atol=1e-4)


def test_masks_compute_the_same() -> None:
    for name, mask in masks.masks(300).items():
        found = {x: y() for x, y in masks.candidates(300, 300, mask).items()}
        exact = found.pop(masks.SDPA)
        if name not in ("all pairs", "causal"):
            del found[masks.BASELINE]
        for output in found.values():
            torch.testing.assert_close(output, exact, rtol=1e-4, atol=1e-5)
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_peers_of_the_benchmark_of_graphs_compute_the_same() -> None:
    inputs = [torch.randn(1, compiled.HEADS, 70, 16) for _ in range(3)]
    for peers in compiled.CASES.values():
        ours, *others = (attend(*inputs, prepare(70)) for attend, prepare in peers.values())
        for output in others:
            torch.testing.assert_close(output, ours, rtol=1e-4, atol=1e-5)


def test_bloom_in_ctranslate2_has_the_same_logits() -> None:
    pytest.importorskip("ctranslate2")
    model = bloom.make_model(2)
    with bloom.converted(model) as peer:
        logits = np.array(bloom.peer_forward(peer, 64)())
        (generated,) = bloom.peer_generate(peer, 20, 3)()
    expected = bloom.forward(model, 64)()
    np.testing.assert_allclose(logits, expected.logits.numpy(), atol=1e-4)
    assert len(generated.sequences_ids[0]) == 3


def test_short_texts_are_timed_stock_and_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short, "SECONDS_PER_TURN", 0.0)
    monkeypatch.setattr(short, "TOKENS", 2)
    for name in ("T5-small", "Baichuan-13B, 1 of 40 layers, 8 of 40 heads"):
        assert float(short._of_decoder(short.DECODERS[name], torch.float32, 1, 4, 1)) > 0.0
    assert float(short._of_encoder("DNABERT-2", 1, torch.float32, (2, 8), 1)) > 0.0
