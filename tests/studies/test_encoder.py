"""The study of stretched encoders: its texts, that it resumes, and that its tables are right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from studies.encoder import program, reading, tables, texts
from studies.encoder.reading import RULES, ReadingPlan
from studies.encoder.recipe import EncoderRecipe, EncoderTraining
from studies.schemes.schemes import AttentionView

import ntk_alibi as na
from ntk_alibi.methods import parse_method

pytestmark = pytest.mark.slow  # of a program beside the package

TINY = EncoderRecipe(
    train_length=48, start_length=24, steps=3, tokens=128, layers=1, hidden_size=32, heads=2,
    autocast=False,
)  # fmt: skip
PLAN = ReadingPlan(texts=((1, 2), (2, 1), (4, 2)))


@pytest.mark.parametrize("length", [texts.SHORTEST, 24, 50, texts.LONGEST])
def test_each_masked_token_is_told_once_elsewhere(length: int) -> None:
    text = texts.draw(length, np.random.default_rng(0))
    assert len(text.tokens) == length
    assert (np.sort(text.places) == np.flatnonzero(text.tokens == texts.MASK)).all()
    whole = text.tokens.copy()
    whole[text.places] = text.answers
    names = whole[: length // 8 * 8 : texts.LINE_TOKENS]
    assert (np.unique(names, return_counts=True)[1] == 2).all()
    for place, answer, distance in zip(text.places, text.answers, text.distances, strict=True):
        line, within = divmod(place, texts.LINE_TOKENS)
        if within == 1:
            (other,) = np.flatnonzero((names == names[line]) & (np.arange(len(names)) != line))
            told = texts.LINE_TOKENS * other + 1
        else:
            told = place ^ texts.NEAR
        assert (text.tokens[told], abs(told - place)) == (answer, distance)
    kinds = (text.distances == texts.NEAR).sum(), (text.distances > texts.NEAR).sum()
    assert kinds == (len(names) // 4, len(names) // 2)


@pytest.mark.parametrize("rule", RULES)
def test_a_view_scales_the_slopes(rule: str) -> None:
    positions = EncoderTraining(TINY).model.layers[0].positions
    scaling = parse_method(RULES[rule].method(4), 48).scaling
    arguments = positions(torch.zeros(1, 192, 32), AttentionView(scaling=scaling))
    query, key, value = torch.randn(3, 1, 2, 192, 16, generator=torch.Generator().manual_seed(0))
    slopes = np.ravel(na.alibi_slopes(2, scaling, lengths=[192]))
    expected, _ = na.reference.attention(
        query, key, value, na.reference.symmetric_bias(slopes, 192, 192)
    )
    got = na.attention(query, key, value, **arguments)
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-5)


def _in_order(text: texts.MaskedText) -> list[int]:
    """Return the masked tokens in the order of their places."""
    return [int(answer) for answer in text.answers[np.argsort(text.places)]]


def test_a_token_counts_as_found_if_its_token_is_the_likeliest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = EncoderTraining(TINY)
    drawn = [texts.draw(24, np.random.default_rng(i)) for i in range(3)]

    def answer(tokens: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
        """Give the right tokens in the order of the places, but for the first of each text."""
        answers = [answer for t in drawn for answer in [texts.END, *_in_order(t)[1:]]]
        return torch.nn.functional.one_hot(torch.tensor(answers), texts.VOCABULARY)

    monkeypatch.setattr(training.model, "forward", answer)
    found = reading.found(training, drawn, AttentionView())
    for text, hits in zip(drawn, found, strict=True):
        assert hits == [place != text.places.min() for place in text.places]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    for seed in (0, 1):
        program.train_and_read(replace(TINY, seed=seed), PLAN, folder)
    return folder


def test_every_rule_is_read_at_every_multiple_once(output: Path) -> None:
    results = json.loads((output / "seed-0/results.json").read_text())
    assert set(results["found"]) == {f"{rule}/{x}" for rule in RULES for x, _ in PLAN.texts}
    assert program.train_and_read(TINY, PLAN, output) == []
    with pytest.raises(ValueError, match="holds results of other work"):
        program.train_and_read(TINY, replace(PLAN, seed=1), output)


def _in_this_process(work: Any, items: list[Any], processes: int) -> None:
    """Work as `print_each` does without new processes, which take seconds to begin."""
    assert [work(item) for item in items] == [[], []]
    assert processes == 1


def test_the_document_gets_every_section(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "print_each", _in_this_process)
    document = tmp_path / "page.md"
    document.write_text(
        "\n".join(f"<!-- {x}: begin -->\n<!-- {x}: end -->" for x in tables.SECTIONS)
    )
    arguments = ["--output", str(output), "--document", str(document), "--seeds", "0", "1"]
    program.main([*arguments, "--processes", "1"], recipe=TINY, plan=PLAN)
    text = document.read_text()
    for rule in RULES.values():
        if "FACTOR" not in rule.spelling:
            assert text.count(f"| {rule.spelling} |") == 4
    assert (tmp_path / "pictures/encoder.png").stat().st_size > 10_000
    assert len(json.loads((tmp_path / "pictures/encoder.json").read_text())["models"]) == 2


def model(seed: int, base: list[int], other: list[int]) -> dict[str, Any]:
    """Return a training whose texts of 4x have so many far numbers found, of 10 each."""
    rights = dict.fromkeys(RULES, base) | {tables.ENDPOINT_RULE: other}
    counts = {
        rule: {"4": [[[0, 0]] * 3 + [[x, 10]] for x in found]} for rule, found in rights.items()
    }
    return {"seed": seed, "counts": counts}


def test_the_endpoint_is_paired_by_training_and_by_text() -> None:
    models = [
        model(0, [2, 4], [3, 6]),
        model(1, [5, 5], [6, 6]),
        model(2, [1, 1], [3, 3]),
    ]
    text = tables.endpoint({"train_length": 512, "models": models})
    # gains .15, .10, .20: mean .15, half-width 4.303 * .05 / sqrt 3 = .124, t = 5.196, p = .035
    assert "| +15 ± 12 | 0.035 | +15 ± 64, +10, +20 |" in text
