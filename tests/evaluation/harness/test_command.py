"""The harness's command line with our model on RULER and LongBench: packages, tokenizer, data."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import lm_eval.tasks
import pytest
import yaml
from lm_eval._cli import HarnessCLI

from commands import error_of, search_tasks_in
from ntk_alibi import _installed
from ntk_alibi.cli import main
from ntk_alibi.evaluation.harness import command as harness
from ntk_alibi.evaluation.harness.model import StretchedLM
from ntk_alibi.models import nano_bloom_path

pytestmark = pytest.mark.slow  # needs the evaluation harness


@pytest.mark.parametrize("module", ["niah_utils", "cwe_utils"])
def test_a_missing_package_names_the_extra_of_the_harness(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness gives advice of its own for one of them, and none for the other."""
    monkeypatch.setitem(sys.modules, "wonderwords", None)
    for name in (module, "prepare_niah"):
        monkeypatch.delitem(sys.modules, f"lm_eval.tasks.ruler.{name}", raising=False)
    message = r"pip install 'lm_eval\[ruler\]'"
    with pytest.raises(ImportError, match=message), harness._harness_errors():
        import_module(f"lm_eval.tasks.ruler.{module}")


def test_other_errors_of_imports_stay() -> None:
    message = "No module named 'nothing_like_it'"
    with pytest.raises(ModuleNotFoundError, match=message), _installed.needed_by("a task"):
        import_module("nothing_like_it")
    with pytest.raises(ImportError, match="cannot import name"), _installed.needed_by("a task"):
        from json import nothing_like_it  # type: ignore[attr-defined]  # noqa: F401


RULER = ["--tasks", "niah_single_1"]


def prepared(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the options that the harness's command line gets for a run."""
    found: list[Any] = []
    monkeypatch.setattr(HarnessCLI, "execute", lambda self, options: found.append(options))
    harness.main(arguments)
    return vars(found[0])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "ntk_alibi", *RULER],
        ["-M", "ntk_alibi", "-a", "pretrained=nano-bloom,method=ntk:4", *RULER],
        ["--model", "ntk_alibi", "--model_args", '{"pretrained": "nano-bloom"}', *RULER],
        ["--model=ntk_alibi", *RULER, "--metadata", '{"max_seq_lengths": [512]}'],
        ["run", "--model", "ntk_alibi", *RULER, "--metadata", "max_seq_lengths=[512]", "x=1"],
    ],
)
def test_tasks_get_the_tokenizer_of_the_embedded_model(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = prepared(arguments, monkeypatch)
    assert options["metadata"]["tokenizer"] == str(nano_bloom_path())
    if "--metadata" in arguments:
        assert options["metadata"]["max_seq_lengths"] == [512]
    assert options["include_path"] == str(harness.tasks_folder())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "hf", *RULER],
        ["--model", "ntk_alibi", "--model_args", "pretrained=bigscience/bloom-560m", *RULER],
        ["--model", "ntk_alibi", "--model_args", "tokenizer=gpt2", *RULER],
        ["--model", "ntk_alibi", *RULER, "--metadata", "tokenizer=gpt2"],
        ["--model", "ntk_alibi", *RULER, "--config", "own.yaml"],
        ["--model", "ntk_alibi", *RULER, "--include_path", "mine", "--metadata", "tokenizer=a"],
        ["ls", "tasks"],
    ],
)
def test_other_arguments_stay_as_they_are(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = prepared(arguments, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "argv", ["lm-eval", *arguments])
        expected = vars(HarnessCLI().parse_args())
    if "ls" not in arguments and "--include_path" not in arguments:
        expected["include_path"] = str(harness.tasks_folder())
    assert {**options, "func": None} == {**expected, "func": None}


def test_a_folder_called_nano_bloom_has_its_own_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nano-bloom").mkdir()
    options = prepared(["--model", "ntk_alibi", "-a", "pretrained=nano-bloom", *RULER], monkeypatch)
    assert options["metadata"] == {"tokenizer": "nano-bloom"}


def test_ruler_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command draws and scores prompts.

    The harness searches RULER's tasks only.
    """
    for package in ("nltk", "wonderwords"):
        pytest.importorskip(package, reason="RULER needs pip install 'lm_eval[ruler]'")
    search_tasks_in(Path(lm_eval.tasks.__file__).parent / "ruler", monkeypatch)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    metadata = {"max_seq_lengths": [512, 768]}
    command = ["lm-eval", "--model", "ntk_alibi", *RULER, "--limit", "2"]
    command += ["--log_samples", "--output_path", "out", "--metadata", json.dumps(metadata)]
    main(command)
    (results,) = (tmp_path / "out/nano-bloom").glob("results*.json")
    scores = json.loads(results.read_text())["results"]["niah_single_1"]
    assert 0 <= scores["512,none"] <= 1
    (logged,) = (tmp_path / "out/nano-bloom").glob("samples_niah_single_1*.jsonl")
    samples = [json.loads(line) for line in logged.read_text().splitlines()]
    assert len(samples) == 2
    assert all(sample["doc"]["length"] <= sample["doc"]["max_length"] <= 768 for sample in samples)


THEIRS = Path(lm_eval.tasks.__file__).parent / "longbench"

QUESTION = {
    "context": "Question: Who wrote it?\nType: Individual\n" * 20,
    "question": "Question: How far is it?\nType:",
    "answers": ["Distance, linear measure"],
    "all_classes": ["Individual", "Distance, linear measure"],
}


@pytest.mark.filterwarnings("ignore:.*generation flags")
def test_longbench_on_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness's own task, whose data are on the hub, reads a file by four lines of YAML."""
    pytest.importorskip("jieba", reason="LongBench needs pip install 'lm_eval[longbench]'")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    Path("trec.jsonl").write_text(f"{json.dumps(QUESTION)}\n" * 2)
    own = {"include": str(THEIRS / "trec.yaml"), "dataset_path": "json", "dataset_name": None}
    own["dataset_kwargs"] = {"data_files": {"test": str(tmp_path / "trec.jsonl")}}
    Path("mine").mkdir()
    Path("mine/trec.yaml").write_text(yaml.safe_dump(own))
    search_tasks_in(THEIRS, monkeypatch)
    command = ["lm-eval", "--model", "ntk_alibi", "--tasks", "longbench_trec"]
    command += ["--include_path", "mine", "--log_samples", "--output_path", "out"]
    main(command)
    (results,) = Path("out/nano-bloom").glob("results*.json")
    stored = json.loads(results.read_text())
    assert stored["config"]["method"] == "original"
    (logged,) = Path("out/nano-bloom").glob("samples_longbench_trec*.jsonl")
    samples = [json.loads(line) for line in logged.read_text().splitlines()]
    assert len(samples) == 2
    scores = [sample["score"] for sample in samples]
    assert stored["results"]["longbench_trec"]["score,none"] == sum(scores) / 2
    assert samples[0]["arguments"]["gen_args_0"]["arg_0"].endswith(QUESTION["question"])


def test_data_that_cannot_be_reached_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an OSError, which the command prints as one sentence."""
    pytest.importorskip("jieba", reason="LongBench needs pip install 'lm_eval[longbench]'")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    search_tasks_in(THEIRS, monkeypatch)
    with pytest.raises(OSError, match=r"^Couldn't reach 'Xnhyacinth/LongBench'"):
        harness.main(["--model", "ntk_alibi", "--tasks", "longbench_trec"])


def test_a_damaged_store_of_answers_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    search_tasks_in(tmp_path, monkeypatch)
    Path("lines_200.jsonl").write_text(json.dumps({"prompt": "a", "expected_number": 1}))
    Path("answers_rank0.db").write_bytes(b"not a database" * 100)
    command = ["lm-eval", "--model", "ntk_alibi", "--tasks", "longeval_lines_200"]
    command += ["--metadata", "data=.", "--use_cache", "answers"]
    assert "answers_rank0.db' must be a file of answers; remove it" in error_of(command, capsys)


def test_a_store_has_answers_of_one_model_and_method(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    search_tasks_in(tmp_path, monkeypatch)
    Path("lines_200.jsonl").write_text(json.dumps({"prompt": "a is 1", "expected_number": 1}))
    generated: list[int] = []
    answer = StretchedLM.generate_until
    monkeypatch.setattr(
        StretchedLM,
        "generate_until",
        lambda self, requests, **options: (
            generated.append(len(requests)) or answer(self, requests, **options)
        ),
    )

    def run(settings: str) -> None:
        words = ["--model_args", f"pretrained={tiny_checkpoint},{settings}", "--metadata", "data=."]
        words += ["--tasks", "longeval_lines_200", "--use_cache", "answers"]
        harness.main(["--model", "ntk_alibi", *words])

    for _ in range(2):
        run("method=ntk:4")
        assert sum(generated) == 1
    for settings in ("method=ntk:2", "method=ntk:4:logn=1", "method=ntk:4,dtype=bfloat16"):
        with pytest.raises(ValueError, match="use_cache must be a file of answers of this model"):
            run(settings)
