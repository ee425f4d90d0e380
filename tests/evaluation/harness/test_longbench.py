"""LongBench's tasks on local files, with the harness's prompts and scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ntk_alibi.evaluation.harness import run as harness
from ntk_alibi.evaluation.harness.local_files import documents
from ntk_alibi.evaluation.harness.model import StretchedLM

pytest.importorskip("jieba", reason="the harness's LongBench needs ntk-alibi[longbench]")

TREC = {
    "input": "Question: How far is it?\nType:",
    "context": "Question: Who wrote it?\nType: Individual\n" * 20,
    "answers": ["Distance, linear measure"],
    "all_classes": ["Individual", "Distance, linear measure"],
    "length": 99,
    "dataset": "trec",
    "language": "en",
    "_id": "made by hand",
}
QA = {**TREC, "input": "Who made the earth?", "answers": ["God"], "all_classes": None}


def task(folder: Path, name: str, entries: list[dict[str, Any]]) -> Any:
    (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, entries)) + "\n")
    with harness.quiet():
        loaded = harness.load_tasks([f"longbench_{name}_local"], {"data": str(folder)})
    return loaded["tasks"][f"longbench_{name}_local"]


def test_trec_is_scored_by_class(tmp_path: Path) -> None:
    trec = task(tmp_path, "trec", [TREC])
    document = trec.eval_docs[0]
    prompt = trec.doc_to_text(document)
    assert prompt.startswith("Please determine the type of the question below.")
    assert prompt.endswith("Question: How far is it?\nType:")
    right = trec.process_results(document, [" Distance, linear measure"])
    assert right["score"] == 1
    assert trec.process_results(document, [" Individual"])["score"] == 0
    assert trec.config.generation_kwargs["until"] == ["\n"]


def test_questions_are_scored_by_words(tmp_path: Path) -> None:
    questions = task(tmp_path, "multifieldqa_en", [QA])
    document = questions.eval_docs[0]
    assert questions.doc_to_text(document).endswith("Question: Who made the earth?\nAnswer:")
    # One of the two words is right: precision 1/2, recall 1.
    assert questions.process_results(document, ["God himself"])["score"] == pytest.approx(2 / 3)


@pytest.mark.filterwarnings("ignore:.*generation flags")
def test_prompts_lose_their_middle(tiny_checkpoint: Path, tmp_path: Path) -> None:
    trec = task(tmp_path, "trec", [TREC, TREC])
    lm = StretchedLM(str(tiny_checkpoint), quiet=True, max_length=164, scaling="ntk:4")
    seen = []
    generate = lm.model.generate
    lm.model.generate = lambda **options: seen.append(options) or generate(**options)
    results = harness.answer(lm, {"tasks": {"trec": trec}})
    assert 0 <= results["results"]["trec"]["score,none"] <= 1
    tokens = lm.tok_encode(trec.doc_to_text(trec.eval_docs[0]))
    assert (
        seen[0]["input_ids"][0].tolist() == tokens[:50] + tokens[-50:]
    )  # 164 tokens minus 64 to generate


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must hold at least one case"):
        task(tmp_path, "trec", [])
    with pytest.raises(ValueError, match="data must be given"):
        harness.load_tasks(["longbench_trec_local"], {})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1]", "expected an object"),
        ("{", "Expecting property name"),
        ("{}", "key 'context' is missing"),
        (json.dumps(TREC | {"context": 1}), "context must be a string"),
        (json.dumps(TREC | {"answers": []}), "answers must be a list of strings"),
        (json.dumps(TREC | {"all_classes": "x"}), "all_classes must be a list of strings"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "trec.jsonl").write_text(f"{json.dumps(TREC)}\n\n{line}\n")
    with pytest.raises(ValueError, match=f"trec.jsonl, line 3: no case of .*: {reason}"):
        documents("trec", str(tmp_path))
