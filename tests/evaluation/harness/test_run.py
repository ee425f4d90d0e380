"""The harness with our tasks, RULER and LongBench: metadata, packages, tokenizer, data."""

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

from commands import search_tasks_in
from ntk_alibi import _installed
from ntk_alibi.cli import main
from ntk_alibi.evaluation.harness import run as harness
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

    The harness searches RULER's tasks only; `test_processes` searches all.
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


LINES = ["ntk_alibi_lines"]


PROSE = ["lengths", "windows", "bins", "text", "context"]


@pytest.mark.parametrize(
    ("task", "keys"),
    [
        ("ntk_alibi_lines", ["lengths", "records", "questions", "seed", "split"]),
        ("ntk_alibi_lines_generated", ["lengths", "records", "seed", "split"]),
        ("ntk_alibi_retrieval", ["lengths", "records", "questions", "seed", "split"]),
        ("ntk_alibi_prose", [*PROSE, "stride", "split"]),
        ("ntk_alibi_prose_sliding", [*PROSE, "split"]),
        ("longeval", ["data"]),
        ("piqa", None),
    ],
)
def test_the_keys_of_a_task_are_what_its_function_reads(task: str, keys: list[str] | None) -> None:
    assert harness.metadata_keys(task) == keys


def test_tags_match_the_tasks() -> None:
    texts = [
        path.read_text().replace("!function ", "") for path in harness.tasks_folder().glob("_*")
    ]
    assert {yaml.safe_load(text)["tag"] for text in texts} == set(harness.TAGS)


@pytest.mark.parametrize(
    ("tasks", "given", "message"),
    [
        (LINES, {"length": [512]}, "got 'length': did you mean lengths?"),
        (LINES, {"foo": 1}, "got 'foo'"),
        (LINES, {"windows": 1}, "got 'windows'"),
        (["ntk_alibi_lines_generated"], {"questions": 2}, "got 'questions'"),
        (["ntk_alibi_prose_sliding"], {"stride": 2}, "got 'stride'"),
        (["longeval_lines_200"], {"dat": "x"}, "got 'dat': did you mean data?"),
        (["longeval"], {"dat": "x"}, "got 'dat': did you mean data?"),
        (["ntk_alibi_l*"], {"record": 1}, "got 'record': did you mean records?"),
    ],
)
def test_keys_that_no_task_reads_are_refused(
    tasks: list[str], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match="metadata of these tasks must have keys of") as error:
        harness.check_metadata(tasks, given)
    assert message in str(error.value)
    words = [f"{key}={value}" for key, value in given.items()]
    with pytest.raises(ValueError, match="metadata of these tasks must have keys of"):
        harness.main(["--model", "ntk_alibi", "--tasks", ",".join(tasks), "--metadata", *words])


@pytest.mark.parametrize(
    ("tasks", "given"),
    [
        (LINES, {"tokenizer": "x", "pretrained": "y", "seed": 1}),
        ([*LINES, "ntk_alibi_prose"], {"records": 1, "windows": 2}),
        (["niah_single_1"], {"max_seq_lengths": [512], "x": 1}),
        ([*LINES, "niah_single_1"], {"max_seq_lengths": [512], "lengths": [512]}),
        (["a-file.yaml"], {"x": 1}),
        ([], {"x": 1}),
    ],
)
def test_other_keys_are_taken(tasks: list[str], given: dict[str, Any]) -> None:
    harness.check_metadata(tasks, given)
