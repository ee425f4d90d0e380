"""Length studies: cells, resumption, summaries, tables and figures."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import ntk_alibi as na
from ntk_alibi.evaluation.comparing import length_study
from ntk_alibi.evaluation.comparing.plan import Plan
from ntk_alibi.evaluation.comparing.store import AnswerStore
from ntk_alibi.evaluation.comparing.summary import DEPTH_BINS, Summary, read_summary
from ntk_alibi.evaluation.records import corpus, record
from ntk_alibi.evaluation.records.longeval import Lines
from ntk_alibi.evaluation.report.tables import study_tables
from ntk_alibi.models import load

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
    assert "NTK(factor=2.0)" in summary.settings["patches"]["ntk:2"]


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
    read, answered = [], record.answered

    def stop_at_the_eleventh(model: Any, case: record.Case) -> list[bool]:
        read.append(1)
        if len(read) == 11:
            raise KeyboardInterrupt
        return answered(model, case)

    monkeypatch.setattr(record, "answered", stop_at_the_eleventh)
    with pytest.raises(KeyboardInterrupt):
        length_study.evaluate(model, tokenizer, PLAN, tmp_path, quiet=True)
    assert not na.patched(model)
    for _ in range(2):
        resumed = length_study.evaluate(model, tokenizer, PLAN, tmp_path, quiet=True)
        assert same(resumed, summary)
        # 8 records for each of 4 methods; the interrupted pass runs twice.
        assert len(read) == 1 + 8 * 4


KILLED = """
import os, signal, sys
from test_length_study import PLAN
from ntk_alibi.evaluation.comparing import length_study, store
from ntk_alibi.models import load
add = store.AnswerStore.add
def add_nine(self, *answer):
    add(self, *answer)
    if len(self) == 9:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
store.AnswerStore.add = add_nine
model, tokenizer, _ = load(sys.argv[1])
length_study.evaluate(model, tokenizer, PLAN, sys.argv[2], quiet=True)
"""


def test_a_killed_study_gives_the_same_json(
    tiny_checkpoint: Path, tmp_path: Path, summary: Summary
) -> None:
    """The last line is cut off, too, as a full disk leaves it."""
    command = [sys.executable, "-c", KILLED, str(tiny_checkpoint), str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parent, env=environment())
    assert done.returncode not in (0, 1)
    path = tmp_path / "answers.jsonl"
    content = path.read_bytes()
    assert content.count(b"\n") == 1 + 9
    path.write_bytes(content[:-5])
    model, tokenizer, _ = load(tiny_checkpoint)
    resumed = length_study.evaluate(model, tokenizer, PLAN, tmp_path, quiet=True)
    assert resumed.to_json() == summary.to_json()


def environment() -> dict[str, str]:
    """Return the environment of a process that imports the modules that tests share."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}


def test_answers_of_another_study_are_refused_by_what_differs(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    model: Any
    model, tokenizer, _ = load(tiny_checkpoint)
    plan = replace(PLAN, methods=("original",), topic_records=0, prose_windows=0)
    length_study.evaluate(model, tokenizer, plan, tmp_path, quiet=True)

    def refused(message: str, plan: Plan = plan, **options: Any) -> None:
        with pytest.raises(ValueError, match=r"^path must be a folder of answers of this") as error:
            length_study.evaluate(model, tokenizer, plan, tmp_path, quiet=True, **options)
        assert message in str(error.value)

    refused("seed 2026 in place of 1", replace(plan, seed=1))
    refused('methods ["original"] in place of ["ntk:2"]', replace(plan, methods=("ntk:2",)))
    refused("original", wrap=lambda _: na.NTK(2.0))  # another patch by the same name
    with torch.no_grad():
        model.transformer.ln_f.bias[0] += 0.5
    refused("weights ")


def test_a_damaged_store_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    model, tokenizer, _ = load(tiny_checkpoint)
    for content in (b"[]\n", b"not JSON\n", b'{"plan": {}}\n{"method": 1}\n'):
        (tmp_path / "answers.jsonl").write_bytes(content)
        with pytest.raises(ValueError, match=r"answers.jsonl' must be a file of answers; remove"):
            length_study.evaluate(model, tokenizer, PLAN, tmp_path, quiet=True)


def test_a_limit_of_time_leaves_the_longest_texts_out(tiny_checkpoint: Path) -> None:
    """By a clock on which a pass takes a second for 256 tokens, and 4 for 512."""
    model, tokenizer, _ = load(tiny_checkpoint)
    plan = replace(PLAN, methods=("original", "ntk:2"), topic_records=0, prose_windows=0)
    study = length_study.prepare(model, tokenizer, replace(plan, multiples=(1, 2, 4)))
    now = [0.0]

    def answered(_: Any, case: record.Case) -> list[bool]:
        now[0] += round(len(case.tokens) / 256) ** 2
        return [True] * len(case.answers)

    def lengths(seconds: float) -> list[int]:
        now[0], store = 0.0, AnswerStore(None, {})
        readings = length_study.read(model, study, store, seconds=seconds)
        return [text.length for _, text in readings]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(record, "answered", answered)
        patched.setattr("time.monotonic", lambda: now[0])
        assert lengths(0.0) == []
        assert lengths(4.5) == [256] * 4
        assert lengths(13.0) == [256] * 4 + [512] * 2
        assert lengths(200.0) == [256] * 4 + [512] * 4 + [1024] * 4


def test_what_is_named_twice_is_read_once(tiny_checkpoint: Path) -> None:
    model, tokenizer, _ = load(tiny_checkpoint)
    methods = ("original", "ntk:2", "ntk:2")
    plan = replace(PLAN, methods=methods, lengths=(256, 256), topic_records=0, prose_windows=0)
    cells = length_study.evaluate(model, tokenizer, plan, quiet=True).retrieval
    assert cells["method"].tolist() == ["original", "ntk:2"]
    assert cells["cases"].tolist() == [4, 4]


def test_an_error_leaves_no_patch(tiny_checkpoint: Path) -> None:
    model, tokenizer, _ = load(tiny_checkpoint)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(record, "answered", lambda *_: dict[str, Any]()["a mistake"])
        with pytest.raises(KeyError, match="a mistake"):
            length_study.evaluate(model, tokenizer, PLAN, quiet=True)
    assert not na.patched(model)


def same(one: Summary, other: Summary) -> bool:
    return one.to_json() == other.to_json()


def test_nats_agree_with_transformers(tiny_checkpoint: Path, tmp_path: Path) -> None:
    model, tokenizer, _ = load(tiny_checkpoint)
    plan = replace(PLAN, methods=("original",), line_records=0, topic_records=0, prose_windows=1)
    found = length_study.evaluate(model, tokenizer, plan, tmp_path, quiet=True)
    (window,) = corpus.prose_windows(record.encoder(tokenizer), corpus.held_out_texts(), 512, 1)
    tokens = torch.from_numpy(window)[None]
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


def test_short_records_have_fewer_questions() -> None:
    """A record has at most one question for 64 tokens, and as many at each length."""
    for multiples, questions in (((0.25, 1), 8), ((1, 4), 32), ((4,), 32), ((0.001,), 1)):
        assert Plan(2048, multiples=multiples).records["lines"] == (8, questions)


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
    assert plan.token_lengths == [300, 513]
    assert replace(plan, train_length=513).multiples == (300 / 513, 1.0)


def test_answers_agree_with_greedy_decoding() -> None:
    """The stretched model generates the answers to the questions one by one."""
    model, tokenizer, length = load()
    case = Lines(6).case(record.encoder(tokenizer), length, np.random.default_rng(3))
    with na.patch(model, "ntk:2"):
        for (begin, end), right in zip(case.answers, record.answered(model, case), strict=True):
            prompt = torch.from_numpy(case.tokens[:begin])[None]
            tokens = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=end - begin,
                do_sample=False,
            )
            assert (tokens[0, begin:].numpy() == case.tokens[begin:end]).all() == right
