"""Measurements of the study's models, and the study's records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from studies.schemes.measure import Measurement
from studies.schemes.recipe import StudyTraining

from ntk_alibi.evaluation.records import corpus
from small_studies import TINY, TINY_PLAN

pytestmark = pytest.mark.slow  # of a program beside the package


@pytest.fixture(scope="module")
def trained() -> StudyTraining:
    return StudyTraining(TINY)


def test_each_case_and_window_is_read_once_and_the_same_text_ends_it(
    trained: StudyTraining,
) -> None:
    evaluation = Measurement(trained, TINY_PLAN)
    short, long = (evaluation.windows(multiple) for multiple in (1, 2))
    assert torch.equal(short, long[:, -64:])
    keys = [key for key, _ in evaluation.run({"plain/2"})]
    assert keys == [
        "plain/1",
        "window/2",
        "log-n/2",
        "pi/2",
        "ntk/2",
        "flat/2",
        "flat-log-n/2",
    ]


def test_answers_are_right_where_greedy_decoding_gives_them(trained: StudyTraining) -> None:
    evaluation = Measurement(trained, TINY_PLAN)
    cases = evaluation.cases(1)
    right = evaluation.answers(cases)["right"]
    expected = []
    with torch.inference_mode():
        for case in cases:
            tokens = torch.from_numpy(case.tokens)[None]
            likeliest = trained.model(tokens)[0].argmax(-1)
            expected += [
                bool((likeliest[begin - 1 : end - 1] == tokens[0, begin:end]).all())
                for begin, end in case.answers
            ]
    assert right == expected
    assert len(right) == sum(len(case.answers) for case in cases)


def test_each_seed_has_texts_of_its_own_and_schemes_share_them() -> None:
    plan = replace(TINY_PLAN, windows=8)

    def texts(scheme: str, seed: int) -> tuple[list[bytes], list[bytes]]:
        of = Measurement(StudyTraining(replace(TINY, scheme=scheme, seed=seed)), plan)
        windows = [row.numpy().tobytes() for row in of.windows(1)]
        return [case.tokens.tobytes() for case in of.cases(2)], windows

    first, other, third = texts("alibi", 0), texts("none", 0), texts("alibi", 1)
    assert first == other
    for mine, yours in zip(first, third, strict=True):
        assert len(set(mine)) == len(mine)
        assert set(mine) != set(yours)
    assert not set(first[0]) & set(third[0])  # records are drawn from many


def test_pairs_ask_for_what_was_stated_once(trained: StudyTraining) -> None:
    names = trained.record_kind(128).names
    for length in (6, 31, 128, 1024):
        case = trained.record_kind(length).case(trained.encode, length, np.random.default_rng(0))
        assert length - 2 <= len(case.tokens) <= length
        lines = case.tokens.reshape(-1, 3)
        questions = len(case.answers)
        assert questions == min(16, len(lines) // 2)
        stated, asked = lines[:-questions], lines[-questions:]
        assert len(set(stated[:, 0])) == len(stated)
        assert {trained.tokenizer.decode([name]) for name in lines[:, 0]} <= set(names)
        assert [begin for begin, _ in case.answers] == [
            len(case.tokens) - 3 * (questions - i) + 1 for i in range(questions)
        ]
        for (begin, end), distance, line in zip(case.answers, case.distances, asked, strict=True):
            assert end - begin == 1
            source = begin - distance
            assert case.tokens[source] == case.tokens[begin]
            assert case.tokens[source - 1] == line[0]
            assert source < 3 * len(stated)


def test_windows_lie_within_one_held_out_book_and_are_not_trained_on(
    trained: StudyTraining,
) -> None:
    books = [
        trained.tokenizer.decode(
            [token for part in trained.encode([f"{c}\n" for c in book]) for token in part]
        )
        for book in corpus.held_out_texts("books")
    ]
    training_text = "\n".join(corpus.training_text(TINY.held_out))
    for window in Measurement(trained, replace(TINY_PLAN, windows=8)).windows(2):
        text = trained.tokenizer.decode(window)
        assert sum(text in book for book in books) == 1
        assert text.strip() not in training_text
