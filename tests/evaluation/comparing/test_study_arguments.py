"""Arguments of studies: what is wrong is named before any work, and no error leaves a patch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ntk_alibi as na
from ntk_alibi.evaluation.comparing import length_study
from ntk_alibi.evaluation.comparing.plan import Plan
from ntk_alibi.evaluation.harness import run as harness
from ntk_alibi.models import load

PLAN = Plan(256, ("ntk:2",), (1,), line_records=1, topic_records=0, prose_windows=0)


def test_an_error_leaves_no_patch(tiny_checkpoint: Path, tmp_path: Path) -> None:
    model, tokenizer, _ = load(tiny_checkpoint)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(harness, "answer", lambda *_: {}["a mistake"])
        with pytest.raises(KeyError, match="a mistake"):
            length_study.evaluate(model, tokenizer, PLAN, tmp_path, quiet=True)
    assert not na.patched(model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": 3}, "path must be a folder, got 3"),
        ({"plan": 3}, "plan must be a Plan, got 3"),
        ({"plan": Plan}, "plan must be a Plan, got type"),
        ({"tokenizer": None}, "tokenizer must be the model's tokenizer, got None"),
        ({"tokenizer": "model"}, "tokenizer must be the model's tokenizer, got 'model'"),
        ({"model": "nano-bloom"}, "model must be a BLOOM, MPT or Falcon .*, got 'nano-bloom'"),
    ],
)
def test_what_is_no_study_is_named(
    change: dict[str, Any], message: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    model, tokenizer, _ = load(tiny_checkpoint)
    given: Any = {"model": model, "tokenizer": tokenizer, "plan": PLAN, "path": tmp_path}
    with pytest.raises(TypeError, match=message):
        length_study.evaluate(**{**given, **change})
    assert not na.patched(model)


def test_swapped_arguments_and_folders_that_are_none_are_named(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    model, tokenizer, _ = load(tiny_checkpoint)
    swapped: Any = (tokenizer, model)
    with pytest.raises(TypeError, match=r"model must be a BLOOM, MPT or Falcon of transformers"):
        length_study.evaluate(*swapped, PLAN, tmp_path)
    with pytest.raises(TypeError, match=r"tokenizer must be .*, got BloomForCausalLM$"):
        length_study.evaluate(model, swapped[1], PLAN, tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"path must be a folder that can be written, got .*file'"):
        length_study.evaluate(model, tokenizer, PLAN, tmp_path / "file")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"multiples": (1e6,)}, "multiples of the training length 256 must be between 0 and 4194"),
        ({"line_records": 10**6}, "line_records must have at most 134217728 tokens in all lengths"),
        ({"prose_windows": 10**6}, "prose_windows must have at most 134217728 tokens"),
    ],
)
def test_texts_beyond_all_memory_are_refused_before_they_are_made(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PLAN, **options)
