"""RULER's tasks of the harness: packages, tokenizer, prompts and lengths."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import lm_eval.tasks
import numpy as np
import pytest

from harness_tasks import search_tasks_in
from ntk_alibi import _installed
from ntk_alibi.evaluation.comparing.task_comparison import by_length, load_known, summary_of
from ntk_alibi.evaluation.harness import run as harness
from ntk_alibi.models import nano_bloom_path


@pytest.mark.parametrize("module", ["niah_utils", "cwe_utils"])
def test_a_missing_package_names_its_extra(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness gives advice of its own for one of them, and none for the other."""
    monkeypatch.setitem(sys.modules, "wonderwords", None)
    for name in (module, "prepare_niah"):
        monkeypatch.delitem(sys.modules, f"lm_eval.tasks.ruler.{name}", raising=False)
    message = r"a task needs wonderwords: pip install 'ntk-alibi\[ruler\]'"
    with pytest.raises(ModuleNotFoundError, match=message), _installed.needed_by("a task"):
        import_module(f"lm_eval.tasks.ruler.{module}")


def test_other_errors_of_imports_stay() -> None:
    message = "No module named 'nothing_like_it'"
    with pytest.raises(ModuleNotFoundError, match=message), _installed.needed_by("a task"):
        import_module("nothing_like_it")
    with pytest.raises(ImportError, match="cannot import name"), _installed.needed_by("a task"):
        from json import nothing_like_it  # type: ignore[attr-defined]  # noqa: F401


EMBEDDED = {"tokenizer": str(nano_bloom_path())}
RULER = ["--tasks", "niah_single_1"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "ntk_alibi", *RULER],
        ["-M", "ntk_alibi", "-a", "pretrained=nano-bloom,scaling=ntk:4", *RULER],
        ["--model", "ntk_alibi", "--model_args", '{"pretrained": "nano-bloom"}', *RULER],
        ["--model=ntk_alibi", *RULER, "--metadata", '{"max_seq_lengths": [512]}'],
        ["run", "--model", "ntk_alibi", *RULER, "--metadata", "max_seq_lengths=[512]", "x=1"],
    ],
)
def test_tasks_get_the_tokenizer_of_the_embedded_model(arguments: list[str]) -> None:
    assert harness.with_tokenizer(arguments) == [
        *arguments,
        *harness.metadata_argument(EMBEDDED),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "hf", *RULER],
        ["--model", "ntk_alibi", "--model_args", "pretrained=bigscience/bloom-560m", *RULER],
        ["--model", "ntk_alibi", "--model_args", "tokenizer=gpt2", *RULER],
        ["--model", "ntk_alibi", *RULER, "--metadata", "tokenizer=gpt2"],
        ["--model", "ntk_alibi", *RULER, "--config", "own.yaml"],
        ["ls", "tasks"],
    ],
)
def test_other_arguments_stay_as_they_are(arguments: list[str]) -> None:
    assert harness.with_tokenizer(arguments) == arguments


def test_a_folder_called_nano_bloom_has_its_own_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nano-bloom").mkdir()
    assert harness.with_tokenizer_of("nano-bloom", {}) == {"tokenizer": "nano-bloom"}
    assert harness.with_tokenizer_of("nano-bloom", {"tokenizer": "own"}) == {"tokenizer": "own"}


def test_a_length_without_prompts_is_no_score() -> None:
    """RULER puts -1 where it has no score."""
    samples = [
        {"metrics": ["4096", "2048"], "4096": -1.0, "2048": 0.5},
        {"metrics": ["4096", "2048"], "4096": -1.0, "2048": 1.0},
        {"metrics": ["4096"], "4096": 0.0},
    ]
    parts = by_length("ruler_vt", samples)
    found = {name: summary_of(part) for name, part in parts.items()}
    assert {name: (row["value"], row["cases"]) for name, row in found.items()} == {
        "ruler_vt, 2048 tokens": (0.75, 2),
        "ruler_vt, 4096 tokens": (0.0, 1),
    }
    others = [{"metrics": ["acc"], "acc": 1.0}]
    assert by_length("piqa", others) == {"piqa": others}


@pytest.mark.slow
def test_ruler_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command draws and scores prompts; loaded tasks have the same prompts."""
    for package in ("nltk", "wonderwords"):
        pytest.importorskip(package, reason="RULER needs pip install 'ntk-alibi[ruler]'")
    metadata = {"max_seq_lengths": [512, 768]}
    command = [sys.executable, "-m", "ntk_alibi.cli", "lm-eval", "--model", "ntk_alibi"]
    command += [*RULER, "--limit", "2", "--log_samples", "--output_path", "out"]
    done = subprocess.run(
        [*command, *harness.metadata_argument(metadata)],
        **{"cwd": tmp_path, "capture_output": True, "text": True},
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    (results,) = (tmp_path / "out/nano-bloom").glob("results*.json")
    scores = json.loads(results.read_text())["results"]["niah_single_1"]
    assert 0 <= scores["512,none"] <= 1
    (logged,) = (tmp_path / "out/nano-bloom").glob("samples_niah_single_1*.jsonl")
    samples = [json.loads(line) for line in logged.read_text().splitlines()]
    ruler = Path(lm_eval.tasks.__file__).parent / "ruler"
    search_tasks_in(ruler, monkeypatch)  # the command has searched all
    states = random.getstate(), np.random.get_state()[2]
    task = load_known(["niah_single_1"], metadata, "nano-bloom")["tasks"]["niah_single_1"]
    assert (random.getstate(), np.random.get_state()[2]) == states
    documents = list(task.eval_docs)
    assert [sample["doc"] for sample in samples] == documents[:2]
    assert {document["max_length"] for document in documents} == {512, 768}
    assert all(document["length"] <= document["max_length"] for document in documents)
