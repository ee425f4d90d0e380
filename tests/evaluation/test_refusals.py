"""Plans, records, models and answers that are refused, and their errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ntk_alibi as na
from ntk_alibi.evaluation import score_lines, score_topics
from ntk_alibi.evaluation.comparing import length_study
from ntk_alibi.evaluation.comparing.plan import Plan
from ntk_alibi.evaluation.harness import datasets
from ntk_alibi.evaluation.harness.model import StretchedLM
from ntk_alibi.models import load
from ntk_alibi.models.checked_loader import WholeCausalLM

pytestmark = pytest.mark.slow  # needs the evaluation harness

PLAN = Plan(256, ("ntk:2",), (1,), line_records=1, topic_records=0, prose_windows=0)


def plan(**options: Any) -> Plan:
    return Plan(**{"train_length": 2048, **options})


WRONG_VALUES = [
    (lambda: plan(train_length=0), "train_length must be between 1"),
    (lambda: plan(methods=()), r"methods must hold at least one, got \(\)"),
    (lambda: plan(methods="ntk:2"), "methods must hold at least one, got 'ntk:2'"),
    (lambda: plan(methods=("nkt:2",)), "method must be original or one of"),
    (lambda: plan(multiples=()), "multiples must hold at least one"),
    (lambda: plan(multiples=(0.0,)), "multiples must be a finite number > 0"),
    (lambda: plan(line_records=-1), "line_records must be between 0"),
    (
        lambda: plan(multiples=(1, 2), line_records=(1,)),
        r"line_records must be a number, or one for each of the 2 lengths, got \(1,\)",
    ),
    (lambda: plan(multiples=(1, 2), topic_records=(1, 0)), "topic_records must be between 1"),
    (lambda: plan(line_questions=0), "line_questions must be between 1"),
    (lambda: plan(seed=-1), "seed must be between 0"),
    (
        lambda: Plan(2048, line_records=0, topic_records=0, prose_windows=0),
        "line_records, topic_records, .* or prose_windows must be at least 1, got 0",
    ),
    (
        lambda: replace(PLAN, multiples=(1000000.0,)),
        "multiples of the training length 256 must be between 0 and 4194",
    ),
    (
        lambda: replace(PLAN, line_records=10**6),
        "line_records must have at most 134217728 tokens in all lengths",
    ),
    (
        lambda: replace(PLAN, prose_windows=10**6),
        "prose_windows must have at most 134217728 tokens",
    ),
    (lambda: plan(lengths=()), r"lengths must hold at least one, got \(\)"),
    (lambda: plan(lengths=(0,)), "lengths must be between 1 and 4194304, got 0"),
    (lambda: plan(lengths=(5_000_000,)), "lengths must be between 1 and 4194304"),
    (lambda: datasets.retrieval("riddles"), "kind must be one of"),
    (lambda: datasets.retrieval("lines", [10]), "length must hold a record of lines"),
    (lambda: datasets.retrieval("lines", [0]), "lengths must be between 1"),
    (lambda: datasets.retrieval("lines", records=0), "records must be between 1"),
    (lambda: datasets.retrieval("passkey", [9], questions=1), "must hold a record of passkey"),
    (lambda: datasets.sliding_prose(context=1), "context must be between 2"),
    (lambda: datasets.retrieval("lines", []), "lengths must hold at least one length"),
    (lambda: datasets.retrieval("lines", seed=-1), "seed must be between 0"),
    (lambda: datasets.prose(windows=0), "windows must be between 1"),
    (lambda: datasets.prose(stride=0), "stride must be between 1"),
    (lambda: datasets.prose(context=-1), "context must be between 0"),
    (lambda: datasets.prose([64], bins=64), "bins must be between 1 and 63"),
    (lambda: datasets.prose([1]), "lengths must be between 2"),
    (lambda: datasets.prose(text="/dev/null"), "/dev/null must hold at least one case"),
    (lambda: StretchedLM(method="yarn:2"), "method must be original or one of"),
    (lambda: StretchedLM(attention="flash"), "attention must be one of 'fused', 'eager', 'tra"),
    (lambda: StretchedLM(train_length=0), "train_length must be between 1"),
    (lambda: StretchedLM(truncation="right"), "truncation must be one of 'middle', 'l"),
    (lambda: StretchedLM(max_length=1), "max_length must be between 2"),
    (lambda: StretchedLM(batch_size="auto"), "max_length must be given with batch_siz"),
    (lambda: StretchedLM(batch_size=0), "batch_size must be between 1"),
    (lambda: StretchedLM(batch_size="-1"), "batch_size must be between 1"),
    (lambda: StretchedLM(method="ntk"), "method must be original or one of .*did you mean ntk:FA"),
    (
        lambda: StretchedLM(methods="ntk:4"),
        r"model_args must .* got 'methods': did you mean method\?",
    ),
    (
        lambda: StretchedLM(scaling="ntk", factor=4),
        "model_args must .* got 'scaling': method names both, such as method=ntk:4",
    ),
    (lambda: StretchedLM(torch.nn.Linear(1, 1), fast=1), "model_args must .*, got 'fast'$"),
    (lambda: StretchedLM(dtype="x"), "must be a whole checkpoint .*AttributeError"),
    (lambda: score_topics("x", []), "topics must hold at least the expected topic, go"),
]

WRONG_TYPES = [
    (lambda: plan(multiples=("1",)), "multiples must be a number"),
    (lambda: plan(prose_windows=1.5), "prose_windows must be an integer"),
    (lambda: datasets.retrieval("lines", seed="x"), "seed must be an integer, got 'x'"),
    (lambda: datasets.retrieval("lines", tokenizer=5), "tokenizer must be a name, .*got 5"),
    (lambda: datasets.prose(text=5), "text must be the path of a file, got 5"),
    (lambda: StretchedLM(share_prefixes=1), "share_prefixes must be True or False, got 1"),
    (lambda: StretchedLM(batch_size="x"), "batch_size must be an integer, got 'x'"),
    (lambda: StretchedLM(batch_size=2.5), "batch_size must be an integer, got 2.5"),
    (lambda: StretchedLM(method=5), "a method must be a name such as 'ntk:4', .* got 5"),
    (lambda: StretchedLM(pretrained=5), "pretrained must be a folder, a name or a mode"),
    (lambda: score_lines(5, 5), "prediction must be a string and"),
    (lambda: score_lines("5", "5"), "prediction must be a string and"),
    (lambda: score_topics("x", "x"), "prediction must be a string and"),
    (lambda: score_topics(None, ["x"]), "prediction must be a string and"),
]

ROWS = [(call, ValueError, message) for call, message in WRONG_VALUES]
ROWS += [(call, TypeError, message) for call, message in WRONG_TYPES]

#: Changes of the arguments of a study.
OF_STUDIES = [
    ({"path": 3}, TypeError, "path must be a folder, got 3"),
    ({"plan": 3}, TypeError, "plan must be a Plan, got 3"),
    ({"plan": Plan}, TypeError, r"plan must be a Plan, got <class .*\.Plan.>"),
    ({"tokenizer": None}, TypeError, "tokenizer must be the model's tokenizer, got None"),
    ({"tokenizer": "model"}, TypeError, "tokenizer must be the model's tokenizer, got 'model'"),
    ({"model": "nano-bloom"}, TypeError, "model must be a decoder that .*, got 'nano-bloom"),
    ({"path": "file"}, ValueError, "path must be a folder that can be written, got 'file'"),
]


@pytest.mark.parametrize(("call", "error", "message"), ROWS)
def test_mistakes_are_named(
    call: Any, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, dtype: Any, **__: Any) -> None:
        pytest.fail(f"a model was loaded as {dtype}")

    if "checkpoint" not in message:
        monkeypatch.setattr(WholeCausalLM, "from_pretrained", fail)
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(("change", "error", "message"), OF_STUDIES)
def test_wrong_arguments_of_a_study_are_named_before_any_work(
    change: dict[str, Any],
    error: type[Exception],
    message: str,
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    model, tokenizer, _ = load(tiny_checkpoint)
    given: Any = {"model": model, "tokenizer": tokenizer, "plan": PLAN, "path": tmp_path}
    with pytest.raises(error, match=message):
        length_study.evaluate(**given | change)
    assert not na.patched(model)


def test_swapped_arguments_are_named(tiny_checkpoint: Path, tmp_path: Path) -> None:
    model, tokenizer, _ = load(tiny_checkpoint)
    swapped: Any = (tokenizer, model)
    with pytest.raises(TypeError, match=r"model must be a decoder that na\.patch takes, got"):
        length_study.evaluate(*swapped, PLAN, tmp_path)
    with pytest.raises(TypeError, match=r"tokenizer must be .*, got a BloomForCausalLM$"):
        length_study.evaluate(model, swapped[1], PLAN, tmp_path)
