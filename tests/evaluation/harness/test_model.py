"""StretchedLM, the harness's HFLM with a patch, against transformers with the same patch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

import ntk_alibi as na
from commands import search_tasks_in
from ntk_alibi.evaluation.harness import command as harness
from ntk_alibi.evaluation.harness.model import StretchedLM
from ntk_alibi.methods import parse_method
from ntk_alibi.models import load, nano_bloom_path
from ntk_alibi.models.checked_loader import WholeCausalLM

pytestmark = pytest.mark.slow  # needs the evaluation harness

#: For sums of up to some hundred float32 log-probabilities from passes of different lengths.
TOLERANCE = 1e-3

RECORD = "Here is a record of lines.\nline brisk-acorn: REGISTER_CONTENT is <4217>\n"
QUESTION = "What is the REGISTER_CONTENT of line brisk-acorn? <"
PAIRS = [
    (RECORD + QUESTION, "4217"),
    (RECORD + QUESTION + "4217>\n" + QUESTION, "9999"),
    (RECORD + QUESTION, "42"),
    ("And the LORD said unto ", "him"),
    ("", "In the beginning"),
]


def requests(pairs: list[tuple[Any, ...]], kind: str = "loglikelihood") -> list[Instance]:
    return [Instance(kind, {}, pair, i) for i, pair in enumerate(pairs)]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_original_answers_as_the_harness_does(batch_size: int) -> None:
    # Its cache scores a one-token continuation with the first token of a longer one (0.4.13).
    options: dict[str, Any] = {"device": "cpu", "dtype": "float32", "logits_cache": False}
    theirs = HFLM(str(nano_bloom_path()), batch_size=batch_size, **options)
    ours = StretchedLM(quiet=True, batch_size=batch_size)
    expected = theirs.loglikelihood(requests(PAIRS), disable_tqdm=True)
    found = ours.loglikelihood(requests(PAIRS))
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    np.testing.assert_allclose([v for v, _ in found], [v for v, _ in expected], atol=TOLERANCE)


@pytest.mark.parametrize("name", ["ntk:4", "dynamic-ntk", "interpolation:2", "original"])
def test_a_method_in_the_arguments_is_a_patch(tiny_checkpoint: Path, name: str) -> None:
    lm = StretchedLM(str(tiny_checkpoint), method=name, quiet=True)
    found = lm.loglikelihood(requests(PAIRS[:1]))[0][0]
    model, tokenizer, train_length = load(tiny_checkpoint)
    tokens = tokenizer("".join(PAIRS[0]), return_tensors="pt")["input_ids"]
    scaling = parse_method(name, train_length).scaling
    with na.patch(model, "original" if scaling is None else scaling), torch.no_grad():
        scores = model(tokens[:, :-1]).logits[0].log_softmax(-1)
    expected = scores[[-2, -1], tokens[0, -2:]].sum()
    assert found == pytest.approx(float(expected), abs=TOLERANCE)
    info = json.loads(json.dumps(lm.get_model_info(), default=str))
    assert (info["method"], info["train_length"]) == (name, 64)
    assert info["versions"]["lm_eval"]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_generation_agrees_with_transformers(batch_size: int) -> None:
    model, tokenizer, _ = load()
    lm = StretchedLM(quiet=True, method="ntk:4", batch_size=batch_size)
    prompts = [RECORD * n + QUESTION for n in (1, 3, 2)]
    kwargs = {"max_gen_toks": 5, "until": [], "do_sample": False}
    found = lm.generate_until(requests([(p, kwargs) for p in prompts], "generate_until"))
    with na.patch(model, na.NTK(4.0)):
        for prompt, answer in zip(prompts, found, strict=True):
            encoded = tokenizer(prompt, return_tensors="pt")
            tokens = model.generate(**encoded, max_new_tokens=5, do_sample=False)
            expected = tokenizer.decode(tokens[0, encoded["input_ids"].shape[1] :])
            assert answer == expected
    assert found[0].startswith("4217")


def test_nothing_is_cut_off_unless_asked(tiny_checkpoint: Path) -> None:
    lm = StretchedLM(str(tiny_checkpoint), quiet=True)
    long = RECORD * 200
    ids, mask = lm.tok_batch_encode([long, RECORD], left_truncate_len=lm.max_length - 24)
    assert ids.shape[1] == len(lm.tok_encode(long)) > 2048
    assert mask.sum(1).tolist() == [ids.shape[1], len(lm.tok_encode(RECORD))]
    assert StretchedLM(str(tiny_checkpoint), quiet=True, max_length=9).max_length == 9


def test_batches_of_dynamic_methods_are_refused(tiny_checkpoint: Path) -> None:
    """The harness pads rows of likelihoods without a mask, and padding would count as text."""
    for size in (2, "4", "auto"):
        with pytest.raises(ValueError, match="batch_size must be 1 with a dynamic method, got"):
            StretchedLM(str(tiny_checkpoint), method="dynamic-ntk", batch_size=size, quiet=True)


def test_results_of_the_embedded_model_go_to_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    search_tasks_in(tmp_path, monkeypatch)
    Path("lines_200.jsonl").write_text(json.dumps({"prompt": "a is 1", "expected_number": 1}))
    words = ["--model", "ntk_alibi", "--model_args", "method=ntk:4", "--output_path", "results"]
    harness.main([*words, "--tasks", "longeval_lines_200", "--metadata", "data=."])
    (path,) = tmp_path.rglob("results*.json")
    assert path.parent == tmp_path / "results/nano-bloom"
    assert json.loads(path.read_text())["model_name"] == "nano-bloom"


def test_a_digest_is_of_weights_and_settings(tiny_checkpoint: Path) -> None:
    model, tokenizer, _ = load(tiny_checkpoint)

    def digest(method: str) -> str:
        lm = StretchedLM(model, tokenizer=tokenizer, method=method, quiet=True)
        found = lm.digest
        lm.patch.undo()
        return found

    before = digest("original")
    assert digest("ntk:4") != before
    assert digest("original") == before
    with torch.no_grad():
        model.transformer.ln_f.bias += 0.5
    assert digest("original") != before


def test_a_saved_patch_runs_with_what_is_given_and_reported(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    model, tokenizer, _ = load(tiny_checkpoint)
    with na.patch(model, na.DynamicNTK(train_length=16)):
        model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    lm = StretchedLM(str(tmp_path), attention="eager", quiet=True)
    assert (lm.patch.scaling, lm.patch.attention) == (na.DynamicNTK(train_length=16), "eager")
    assert lm.get_model_info()["train_length"] == 16
    with pytest.raises(ValueError, match=r"^train_length must come with method"):
        StretchedLM(str(tmp_path), train_length=64, quiet=True)


@pytest.mark.parametrize(
    ("error", "word", "options"),
    [
        (ValueError, "method", {"method": "yarn:2"}),
        (ValueError, "attention", {"attention": "flash"}),
        (ValueError, "train_length", {"train_length": 0}),
        (ValueError, "max_length", {"max_length": 1}),
        (ValueError, "model_args", {"methods": "ntk:4"}),
        (ValueError, "model_args", {"scaling": "ntk", "factor": 4}),
        (TypeError, "model", {"pretrained": 5}),
    ],
)
def test_wrong_arguments_are_named_before_a_model_is_loaded(
    error: type[Exception],
    word: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WholeCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(error, match=rf"^{word} must[^\n]*$"):
        StretchedLM(**options)
