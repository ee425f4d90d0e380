"""Length studies: cells, resumption, summaries, tables and figures."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import ntk_alibi as na
from commands import search_tasks_in
from ntk_alibi.cli import main
from ntk_alibi.evaluation.comparing import length_study
from ntk_alibi.evaluation.comparing.intervals import ratio_standard_error
from ntk_alibi.evaluation.comparing.plan import Plan
from ntk_alibi.evaluation.comparing.summary import DEPTH_BINS, Summary, read_summary
from ntk_alibi.evaluation.harness import datasets
from ntk_alibi.evaluation.harness import run as harness
from ntk_alibi.evaluation.harness.model import StretchedLM
from ntk_alibi.evaluation.records import corpus
from ntk_alibi.evaluation.report.tables import study_tables
from ntk_alibi.methods import parse_method
from ntk_alibi.models import load

pytestmark = pytest.mark.slow  # needs the evaluation harness

PLAN = Plan(
    256,
    methods=("original", "ntk:2", "interpolation:2", "interpolation:4"),
    multiples=(1, 2),
    line_records=2,
    line_questions=2,
    topic_records=2,
    topic_questions=2,
    prose_windows=2,
)


@pytest.fixture(scope="module")
def summary(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    model, tokenizer, _ = load(tiny_checkpoint)
    path = tmp_path_factory.mktemp("study") / "answers"
    return length_study.evaluate(model, tokenizer, PLAN, path, quiet=True)


def test_every_cell_is_there(summary: Summary) -> None:
    cells = summary.retrieval
    assert len(cells[["task", "method", "multiple"]].drop_duplicates()) == len(cells) == 2 * 4 * 2
    assert (cells["cases"] == 4).all()
    ordered = cells[["low", "accuracy", "high"]].assign(least=0.0, most=1.0)
    assert (
        ordered[["least", "low", "accuracy", "high", "most"]].diff(axis=1).iloc[:, 1:] >= 0
    ).all(axis=None)
    assert len(summary.perplexity) == 4 * 4
    assert len(summary.by_depth) == 2 * 4 * 2 * DEPTH_BINS
    for name in ("by_distance", "by_depth"):
        assert getattr(summary, name).groupby("method")["cases"].sum()["ntk:2"] == 16
    assert summary.settings["ntk:2"]["scaling"] == {"alibi_type": "ntk", "factor": 2.0}


def test_perplexity_is_paired_with_the_first_method(summary: Summary) -> None:
    by_method = {
        name: cells.to_dict("records") for name, cells in summary.perplexity.groupby("method")
    }
    for i, first in enumerate(by_method["original"]):
        assert (first["difference"], first["half_width"]) == (0.0, 0.0)
        for name in PLAN.methods:
            entry = by_method[name][i]
            assert entry["nats"] - first["nats"] == pytest.approx(entry["difference"], abs=1e-9)
            assert (entry["begin"], entry["end"]) == (i / 2, (i + 1) / 2)


def test_an_interrupted_study_resumes(
    tiny_checkpoint: Path, tmp_path: Path, summary: Summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer, _ = load(tiny_checkpoint)
    batches, answer_batch = [], StretchedLM.answer_batch

    def stop_after_ten(self: StretchedLM, batch: list[Any]) -> Any:
        batches.append(1)
        if len(batches) == 11:
            raise KeyboardInterrupt
        return answer_batch(self, batch)

    monkeypatch.setattr(StretchedLM, "answer_batch", stop_after_ten)
    with pytest.raises(KeyboardInterrupt):
        length_study.evaluate(model, tokenizer, PLAN, tmp_path, quiet=True)
    resumed = length_study.evaluate(model, tokenizer, PLAN, tmp_path, quiet=True)
    assert same(resumed, summary)
    # 8 records and 2 windows for each method; the interrupted pass runs twice.
    assert len(batches) == 1 + (8 + 2) * 4
    again = length_study.evaluate(model, tokenizer, PLAN, tmp_path, quiet=True)
    assert same(again, summary)
    assert len(batches) == 1 + (8 + 2) * 4
    length_study.evaluate(
        model, tokenizer, replace(PLAN, seed=1, prose_windows=0), tmp_path, quiet=True
    )
    assert len(batches) == 1 + (8 + 2) * 4 + 8 * 4


def test_an_error_leaves_no_patch(tiny_checkpoint: Path, tmp_path: Path) -> None:
    model, tokenizer, _ = load(tiny_checkpoint)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(harness, "answer", lambda *_: {}["a mistake"])
        with pytest.raises(KeyError, match="a mistake"):
            length_study.evaluate(model, tokenizer, PLAN, tmp_path, quiet=True)
    assert not na.patched(model)


def same(one: Summary, other: Summary) -> bool:
    return json.loads(one.to_json()) == json.loads(other.to_json())


def test_answers_of_other_weights_are_not_taken(tiny_checkpoint: Path) -> None:
    model, tokenizer, _ = load(tiny_checkpoint)
    lm = StretchedLM(model, tokenizer=tokenizer, quiet=True)
    before = lm.digest
    lm.stretch(parse_method("ntk:4", 64))
    assert lm.digest != before
    lm.stretch(parse_method("original", 64))
    assert lm.digest == before
    with torch.no_grad():
        model.transformer.ln_f.bias += 0.5
    assert lm.digest != before


def test_a_command_gives_the_row_again(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command runs through the harness's command line."""
    model, tokenizer, _ = load(tiny_checkpoint)
    plan = replace(PLAN, methods=("original", "ntk:2"))
    name = tiny_checkpoint.as_posix()  # shlex reads `\\` as a quote
    found = length_study.evaluate(model, tokenizer, plan, tmp_path / "a", quiet=True, name=name)
    command = shlex.split(found.commands["ntk:2"]["lines"])
    assert command[:2] == ["ntk-alibi", "lm-eval"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    search_tasks_in(tmp_path, monkeypatch)
    main([*command[1:], "--output_path", str(tmp_path / "out.json")])
    (path,) = tmp_path.glob("out*.json")
    results = json.loads(path.read_text())
    cells = found.retrieval.set_index(["task", "method", "multiple"])["accuracy"]
    for multiple in (1, 2):
        accuracy = results["results"]["ntk_alibi_lines"][f"accuracy_{256 * multiple},none"]
        assert accuracy == cells["lines", "ntk:2", multiple]
    assert results["config"]["method"] == "ntk:2"
    assert results["config"]["versions"] == found.settings["ntk:2"]["versions"]


def test_nats_agree_with_transformers(tiny_checkpoint: Path, tmp_path: Path) -> None:
    model, tokenizer, _ = load(tiny_checkpoint)
    plan = replace(PLAN, methods=("original",), line_records=0, topic_records=0, prose_windows=1)
    found = length_study.evaluate(model, tokenizer, plan, tmp_path, quiet=True)
    (document,) = datasets.prose([512], windows=1, bins=4, tokenizer=tokenizer)["test"]
    tokens = torch.tensor([tokenizer(document["text"])["input_ids"]])
    with torch.no_grad():
        logits = model(tokens).logits[0, :-1]
    expected = F.cross_entropy(logits, tokens[0, 1:], reduction="none")
    parts = [float(part.mean()) for part in expected.double().tensor_split(4)]
    np.testing.assert_allclose(found.perplexity["nats"], parts, rtol=1e-5)


def test_too_little_prose_is_an_error() -> None:
    with pytest.raises(ValueError, match="prose must hold 3 windows of 5 tokens, got 2"):
        corpus.prose_windows(lambda texts: [[1] * 7 for _ in texts], [["a", "b"]], 5, 3)


def test_a_window_of_prose_is_from_one_text() -> None:
    texts = [["aaa", "bb"], ["cccc"], ["ddddddd"]]
    windows = corpus.prose_windows(lambda x: [[ord(c) for c in t] for t in x], texts, 3, 4)
    assert ["".join(map(chr, w)) for w in windows] == ["aaa", "ccc", "ddd", "ddd"]


def test_windows_of_prose_follow_each_other_and_nothing_else_is_encoded() -> None:
    paragraphs = [f"{number:03d}" for number in range(200)]
    asked: list[str] = []

    def encode(texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return [[ord(c) for c in text] for text in texts]

    windows = corpus.prose_windows(encode, [paragraphs], 7, 20)
    assert "".join(chr(c) for w in windows for c in w) == "".join(paragraphs)[:140]
    assert len(asked) < 100


def test_a_ratio_has_the_standard_error_of_its_clusters() -> None:
    # clusters of equal size: the error of the mean of their shares
    shares = np.array([0.5, 1.0, 0.75, 0.25])
    error = shares.std(ddof=1) / 2
    assert ratio_standard_error(4 * shares, [4] * 4) == pytest.approx(error, rel=1e-12)


def test_the_harness_shows_standard_errors(tiny_checkpoint: Path) -> None:
    from lm_eval.evaluator import evaluate
    from lm_eval.utils import make_table

    lm = StretchedLM(str(tiny_checkpoint), quiet=True)
    made_from = {
        "lengths": [200, 300],
        "records": 3,
        "windows": 2,
        "pretrained": str(tiny_checkpoint),
    }
    names = ["ntk_alibi_lines", "ntk_alibi_prose", "ntk_alibi_lines_generated"]
    with harness.quiet():
        results = evaluate(lm, {"tasks": harness.load_tasks(names, made_from)})
    prose_row = results["results"]["ntk_alibi_prose"]
    assert prose_row["perplexity_stderr,none"] == pytest.approx(
        prose_row["perplexity,none"] * prose_row["nats_stderr,none"], rel=1e-12
    )
    assert prose_row["nats_stderr,none"] > 0
    assert "N/A" not in make_table(results)


def test_one_record_has_no_standard_error() -> None:
    assert datasets.ratio_error([[3, 4], [0, 0]]) == "N/A"
    assert datasets.perplexity_error([[3.0, 4]]) == "N/A"


def test_short_records_have_fewer_questions() -> None:
    """A record has at most one question for 64 tokens, and as many at each length."""
    for multiples, questions in (((0.25, 1), 8), ((1, 4), 32), ((4,), 32), ((0.001,), 1)):
        assert Plan(2048, multiples=multiples).tasks["lines"]["questions"] == questions
    tasks = Plan(2048, multiples=(0.25,), line_records=1).tasks
    (document,) = datasets.retrieval("lines", **tasks["lines"])["test"]
    assert len(document["begins"]) == 8


def test_notebooks_show_a_summary_as_tables(summary: Summary) -> None:
    shown = summary._repr_html_()
    page = ElementTree.fromstring(f"<div>{shown}</div>")
    tables = page.findall("table")
    assert len(tables) == len(study_tables(summary)) == 7
    assert [row.findtext("td") for row in tables[0].findall("tbody/tr")] == [
        *("original", "ntk:2", "interpolation:2", "interpolation:4")
    ]


def test_a_stored_summary_is_the_same(summary: Summary, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(summary.to_json())
    assert same(read_summary(tmp_path / "study.json"), summary)


def test_lengths_take_the_place_of_multiples() -> None:
    plan = replace(PLAN, lengths=(300, 513))
    assert plan.token_lengths == plan.tasks["lines"]["lengths"] == [300, 513]
    assert replace(plan, train_length=513).multiples == (300 / 513, 1.0)


def test_a_command_makes_the_records_of_the_study() -> None:
    plan = Plan(256, multiples=(1, 2), line_records=2, topic_records=0, prose_windows=0)
    documents = list(datasets.retrieval("lines", **plan.tasks["lines"])["test"])
    assert [document["length"] for document in documents] == [256, 256, 512, 512]
    command = length_study.commands(plan, "nano-bloom")["original"]["lines"]
    metadata = json.loads(shlex.split(command)[-1])
    assert list(datasets.retrieval("lines", **metadata)["test"]) == documents
