"""Tests that the benchmarks run, at small sizes, and that all candidates compute the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import (
    attention,
    bloom,
    candidates,
    compiled,
    cores,
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
    real,
    short,
)
from benchmarks.__main__ import main
from benchmarks.candidates import Candidate
from benchmarks.problems import Case

import ntk_alibi as na
from ntk_alibi.cli import timing
from ntk_alibi.evaluation.report import markdown
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
    problem = problems.build(Case(40, 16, torch.float32, 1, na.NTK(4.0), real=True))
    assert problem.query.shape == (*problem.case.batch_and_heads, 40, problem.case.head_dim)
    assert problem.query.std() > 0.1
    assert not torch.equal(problem.query[0], problem.query[1])


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


def test_decoding_becomes_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "FLUSHED_NUMBERS", 1)
    monkeypatch.setattr(decode, "SECONDS_PER_WARM_TURN", 0.0)
    result = decode.measure(200, torch.bfloat16, 1)
    assert max(result["errors"].values()) < TOLERANCES[torch.bfloat16]
    assert "| ours, every key | " in decode.markdown(result)


def test_overhead_and_memory_become_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "| its core alone | " in overhead.markdown(overhead.measure(1))
    monkeypatch.setattr(memory, "CANDIDATES", [candidates.BASELINE])
    result = memory.measure(1024)
    assert result["bytes"][candidates.BASELINE.name] > 2**20  # the output alone has 4 MiB
    assert candidates.BASELINE.name in memory.markdown(result)


def test_the_memory_of_long_texts_becomes_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls run; one is measured, in a process of its own."""
    for make_call in long_memory.CALLS.values():
        make_call(64)()
    name = "a prompt: ours"
    monkeypatch.setattr(long_memory, "CALLS", {name: long_memory.CALLS[name]})
    text = long_memory.run(1024)
    assert text.count("\n| ") == 2 + len(long_memory.CALLS)
    *_, row = text.splitlines()
    assert row.startswith(f"| {name} | ")
    assert float(row.split("|")[2]) > 4.0  # the output alone has 4 MiB


@pytest.mark.parametrize("threads", [1, 2])
def test_peaks_are_measured_where_there_is_a_probe(threads: int) -> None:
    assert peak.read_probe()(threads) > 0
    for probe in (peak.fma_probe(), peak.bf16_dot_probe()):
        assert probe(threads) >= 0


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "short,prefil-"], "no part begins with 'prefil-'"),
        (["--write", "--results", "other.json"], "--results must not replace"),
    ],
)
def test_the_command_refuses(
    options: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "attention", *options])
    with pytest.raises(SystemExit):
        main()
    assert message in capsys.readouterr().err


def test_the_document_has_a_place_for_each_part(tmp_path: Path) -> None:
    copy = shutil.copy(ROOT / "benchmarks/results/tables.md", tmp_path)
    for name in [*attention.PARTS, "picture"]:
        markdown.replace_section(Path(copy), f"attention-{name}", "text")
    markdown.replace_section(Path(copy), "long-memory", "text")
    with pytest.raises(ValueError, match="must hold the markers"):
        markdown.replace_section(Path(copy), "attention-of-cats", "text")


def test_gradients_have_a_table() -> None:
    text = gradient.run(1, lengths=(64,))
    assert text.count("\n| ") == 7  # header, separator and five candidates


def test_bloom_is_the_same_model_everywhere() -> None:
    stock, patched = (
        bloom.block_call(name, 96, torch.float32)() for name in (bloom.STOCK, bloom.PATCHED)
    )
    torch.testing.assert_close(patched[0], stock[0], rtol=0, atol=1e-4)
    assert bloom.generate(bloom.make_model(1), 20, 3)().shape == (1, 23)


def test_a_core_has_one_row_for_each_set_of_instructions() -> None:
    header = cores.header()
    first = [["old core, avx2, 1", *[""] * (len(header) - 1)], ["this, avx2, 2", *header[1:]]]
    text = cores.merged("", first)
    again = cores.merged(text, [["this, avx2, 2", *["0.5"] * (len(header) - 1)]])
    assert again.splitlines()[2] == text.splitlines()[2]
    assert again.splitlines()[3:] == ["| this, avx2, 2 | " + "0.5 | " * (len(header) - 2) + "0.5 |"]


def test_time_of_a_block_is_shared_out() -> None:
    linear, attention, rest = bloom.shares_of_time(
        bloom.block_call(bloom.PATCHED, 96, torch.float32)
    )
    assert linear + attention + rest == pytest.approx(1.0)
    assert min(linear, attention, rest) > 0.0


def test_the_parts_of_a_checkpoint_become_its_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as packed:
        packed.writestr("model/config.json", "{}")
    content = (tmp_path / "whole.zip").read_bytes()
    parts = [tmp_path / f"part.zip.00{number}" for number in range(3)]
    for number, part in enumerate(parts):
        part.write_bytes(content[number * 50 : (number + 1) * 50 if number < 2 else None])
    real.unpack(parts, tmp_path / "unpacked")
    assert [path.name for path in (tmp_path / "unpacked").iterdir()] == ["config.json"]


@pytest.mark.parametrize("name", models.PARTS["models"].names)
def test_patched_models_are_the_same_models(name: str) -> None:
    stock, patched = (
        models.forward(name, models.make(name, state), 40)()
        for state in (models.STOCK, models.PATCHED)
    )
    torch.testing.assert_close(patched[0], stock[0], rtol=0, atol=1e-4)


def test_models_become_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "SECONDS_PER_TURN", 0.0)
    # Enough for the stock model's 4 matrices of 16 heads and 16 tokens, but not for 32.
    monkeypatch.setattr(models, "_free_memory", lambda: 200_000)
    part = models.Part(("BLOOM-560m",), torch.float32, (16, 32, 64))
    rows = [row.split(" | ") for row in models.run(1, 32, part).split("\n")[-2:]]
    assert [row[0] for row in rows] == ["| BLOOM-560m, 16", "| BLOOM-560m, 32"]
    assert min(float(cell) for cell in rows[0][1:4]) > 0
    stock, patched, ratio = rows[1][1:4]
    assert (stock, ratio) == ("", "")
    assert float(patched) > 0


@pytest.mark.slow
def test_masks_become_a_table_and_all_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "SECONDS_PER_TURN", 0.0)
    rows = masks.run(1, 128, 256).split("\n")[-6:]
    assert all(float(cell) > 0 for row in rows for cell in row.strip("| ").split(" | ")[1:])
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


@pytest.mark.slow
def test_graphs_become_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "SECONDS_PER_TURN", 0.0)
    monkeypatch.setattr(compiled, "LENGTHS", (40, 33, 50))
    monkeypatch.delitem(compiled.CASES, "a new mask of pairs")
    monkeypatch.delitem(compiled.CASES["causal"], "FlexAttention")
    rows = [row.strip("| ").split(" | ") for row in compiled.run(1).split("\n")[-2:]]
    assert [row[3] for row in rows] == ["2", "2"]
    torch.compiler.reset()


def test_a_table_of_whole_models_counts_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "SECONDS_PER_TURN", 0.0)
    layers = {"T5-base, encoder": "12 x 64, 3 of 12 layers"}
    part = models.Part(tuple(layers), torch.bfloat16, (16,), whole=True)
    text = models.run(1, 16, part)
    assert f"{part.names[0]}: {layers[part.names[0]]}." in text
    weights, cache = text.split("\n")[-1].split(" | ")[-2:]
    parameters = 12 * (4 * 768**2 + 2 * 768 * 3072 + 2 * 768) + 32 * 12 + 768
    assert (int(weights), cache) == (round(2 * parameters / 1e6), " |")


def test_bloom_in_ctranslate2_has_the_same_logits() -> None:
    pytest.importorskip("ctranslate2")
    model = bloom.make_model(2)
    with bloom.converted(model) as peer:
        logits = np.array(bloom.peer_forward(peer, 64)())
        (generated,) = bloom.peer_generate(peer, 20, 3)()
    expected = bloom.forward(model, 64)()
    np.testing.assert_allclose(logits, expected.logits.numpy(), atol=1e-4)
    assert len(generated.sequences_ids[0]) == 3


def test_the_gpu_benchmark_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    monkeypatch.setattr(sys, "argv", ["benchmarks", "gpu"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "needs a CUDA device" in capsys.readouterr().err


def test_short_texts_are_timed_stock_and_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short, "SECONDS_PER_TURN", 0.0)
    monkeypatch.setattr(short, "TOKENS", 2)
    for name in ("T5-small", "Baichuan-13B, 1 of 40 layers, 8 of 40 heads"):
        assert float(short._of_decoder(short.DECODERS[name], torch.float32, 1, 4, 1)) > 0.0
    assert float(short._of_encoder("DNABERT-2", 1, torch.float32, (2, 8), 1)) > 0.0
