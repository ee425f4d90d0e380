"""Training of nano BLOOM: resumption, export, curriculum, the shipped one's order of methods."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from studies.forms import FRESH, HELD_OUT
from studies.nano_bloom import endpoint, program
from studies.nano_bloom.program import NanoBloomRecipe, NanoBloomTraining
from transformers import AutoModelForCausalLM, AutoTokenizer

import ntk_alibi as na
from ntk_alibi.evaluation.comparing import length_study
from ntk_alibi.evaluation.comparing.plan import Plan
from ntk_alibi.models import load
from small_studies import interrupted

pytestmark = pytest.mark.slow  # of a program beside the package

#: A recipe of a few steps with a few tokens each.
TINY = NanoBloomRecipe(
    train_length=96, start_length=64, final_steps=3, threshold=-1.0, tokens=128, layers=1,
    hidden_size=32, heads=2,
)  # fmt: skip


def weights(folder: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return weights


def test_interrupted_training_ends_in_the_same_weights(tmp_path: Path) -> None:
    program.train(TINY, tmp_path / "whole", quiet=True)
    with interrupted(NanoBloomTraining, 7):
        program.train(TINY, tmp_path / "resumed", quiet=True)
    assert (tmp_path / "resumed/train.ckpt").exists()
    program.train(TINY, tmp_path / "resumed", quiet=True)
    assert not (tmp_path / "resumed/train.ckpt").exists()
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "resumed")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    NanoBloomTraining(TINY).save(tmp_path / "train.ckpt")
    with pytest.raises(ValueError, match=r"must be a checkpoint of NanoBloomRecipe\(.*seed=1"):
        program.train(replace(TINY, seed=1), tmp_path, quiet=True)


def test_a_step_has_the_gradients_of_eager_attention() -> None:
    """The tolerance is ten times 2^-24 sqrt(n): float32, norm clipped to 1, some hundred terms."""
    found: list[tuple[float, torch.Tensor]] = []
    for attention in ("fused", "eager"):
        training = NanoBloomTraining(replace(TINY, start_length=96, autocast=False))
        with na.patch(training.model, attention=attention):
            loss = training.step()
        gradients = [p.grad.flatten() for p in training.model.parameters() if p.grad is not None]
        found.append((loss, torch.cat(gradients)))
    (loss, gradients), (expected_loss, expected) = found
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    torch.testing.assert_close(gradients, expected, atol=1e-6, rtol=1e-3)


def test_what_is_exported_is_a_plain_bloom(tmp_path: Path) -> None:
    program.train(TINY, tmp_path, quiet=True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert type(model).__name__ == "BloomForCausalLM"
    assert model.dtype == torch.float32
    assert model.config.seq_length == 96
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == len(tokenizer)
    text = "line amber-acorn: REGISTER_CONTENT is <2416>\nAnd it was so.\n"
    tokens = tokenizer(text)["input_ids"]
    assert tokenizer.decode(tokens) == text
    assert [tokenizer.decode([t]) for t in tokens[8:10]] == ["24", "16"]


@pytest.mark.long
def test_the_program_trains_a_small_model_that_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training takes most of a CPU-minute; processors round differently, so margins are wide.

    With AVX-512, AVX2 and the portable kernels of one processor the loss fell from 6.6 to below 1,
    and 82 to 86 % of the lines were answered at the training length.
    """
    program.main(["--small", "--output", str(tmp_path)])
    steps = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert steps[-1]["loss"] < 0.5 * steps[0]["loss"]
    assert [steps[0]["length"], steps[-1]["length"]] == [64, 256]
    assert load(tmp_path)[2] == 256
    table = capsys.readouterr().out.partition("lines: accuracy in %")[2].partition("\n\n")[0]
    answered = {row[0]: int(row[1]) for row in map(str.split, table.splitlines()[2:])}
    assert set(answered) == set(Plan(256).methods)
    assert answered["original"] > 60


def test_the_shipped_model_orders_the_methods_at_twice_its_length(tmp_path: Path) -> None:
    """Its weights are stored, so that no training's rounding decides: 50 against 95 % here."""
    model, tokenizer, length = load()
    plan = Plan(
        length, ("original", "ntk:2"), (1, 2), line_records=2, topic_records=0, prose_windows=0
    )
    summary = length_study.evaluate(model, tokenizer, plan, tmp_path, quiet=True)
    accuracy = summary.retrieval.set_index(["method", "multiple"])["accuracy"]
    assert accuracy["original", 1] > 0.9
    assert accuracy["ntk:2", 2] > accuracy["original", 2] + 0.3


def test_the_endpoint_asks_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "LENGTHS", (200, 264))
    for name in ("QUESTIONS", "QUESTIONS_BEYOND"):
        monkeypatch.setattr(endpoint, name, 2)
    model, tokenizer, _ = load()
    lines = endpoint.table(model, tokenizer, 100).splitlines()[2:]
    cells = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in lines}
    beyond = {name for name, row in cells.items() if all(map(str.strip, row))}
    assert beyond == {f"{form}, open" for form in (*HELD_OUT, *FRESH)}
    assert float(cells["lines of LongEval"][0]) > 0
