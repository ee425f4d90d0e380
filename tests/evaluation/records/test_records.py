"""Records: their statements, questions, answers and lengths; the corpus."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ntk_alibi.evaluation.records import corpus, record, words
from ntk_alibi.evaluation.records.longeval import Lines, Topics
from ntk_alibi.evaluation.records.record import cached_encoder


def characters(texts: list[str]) -> list[list[int]]:
    """Encode each character as its code point, so that the text can be recovered."""
    return [[ord(c) for c in text] for text in texts]


def text_of(case: record.Case, begin: int = 0, end: int | None = None) -> str:
    return "".join(map(chr, case.tokens[begin:end]))


@given(length=st.integers(700, 6000), questions=st.integers(1, 5), seed=st.integers(0, 100))
def test_lines(length: int, questions: int, seed: int) -> None:
    case = Lines(questions).case(characters, length, np.random.default_rng(seed))
    text = text_of(case)
    assert length - 60 <= len(case.tokens) <= length
    record = dict(re.findall(r"^line (\w+-\w+): REGISTER_CONTENT is <(\d{4})>$", text, re.M))
    asked = re.findall(r"^What is the REGISTER_CONTENT of line (\S+)\? <(\d{4})>$", text, re.M)
    assert len(asked) == len(case.answers) == len(case.distances) == questions
    for (name, number), (begin, end), distance in zip(
        asked, case.answers, case.distances, strict=True
    ):
        assert record[name] == number == text_of(case, begin, end)
        assert text_of(case, begin - distance, end - distance) == number
    if len(record) >= questions:
        assert len(dict(asked)) == questions


@given(length=st.integers(2500, 9000), questions=st.integers(1, 5), seed=st.integers(0, 100))
def test_topics(length: int, questions: int, seed: int) -> None:
    prose = ("It was so.", "And the evening and the morning were the first day.")
    case = Topics(prose, questions).case(characters, length, np.random.default_rng(seed))
    text = text_of(case)
    assert length - 12 <= len(case.tokens) <= length
    record = dict(re.findall(r"our (\w+) topic, ([\w ]+)\.\n", text))
    asked = re.findall(r"our (\w+) topic\?\nASSISTANT: ([\w ]+)\.", text)
    assert [ordinal for ordinal, _ in asked] == words.ORDINALS[:questions]
    for (ordinal, topic), (begin, end), distance in zip(
        asked, case.answers, case.distances, strict=True
    ):
        assert f" {record[ordinal]}" == f" {topic}" == text_of(case, begin, end)
        assert text_of(case, begin - distance, end - distance) == f" {topic}"


@pytest.mark.parametrize("kind", [Lines(2), Topics(("It was so.",), 2)])
def test_the_same_seed_gives_the_same_record(kind: record.RecordKind) -> None:
    a, b, c = (kind.case(characters, 3000, np.random.default_rng(s)) for s in (1, 1, 2))
    assert (a.tokens == b.tokens).all()
    assert a.answers == b.answers
    assert text_of(a) != text_of(c)


@pytest.mark.parametrize("kind", [Lines(3), Topics(("It was so.",), 3)])
@pytest.mark.parametrize("length", [0, 40])
def test_a_record_without_room_for_a_question_is_an_error(
    kind: record.RecordKind, length: int
) -> None:
    with pytest.raises(
        ValueError, match=r"length must hold a record of \w+ and its questions, got"
    ):
        kind.case(characters, length, np.random.default_rng(0))


def test_cached_encoder_asks_once() -> None:
    asked: list[str] = []

    def encode(texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return characters(texts)

    cached = cached_encoder(encode)
    assert cached(["a", "b", "a"]) == cached(["a", "b", "a"]) == characters(["a", "b", "a"])
    assert sorted(set(asked)) == ["a", "b"]
    assert cached(["c"]) == characters(["c"])
    assert asked.count("c") == 1


def test_the_corpus_is_whole_and_split() -> None:
    train, held_out = corpus.training_text(), corpus.held_out_text()
    assert len(train) + len(held_out) == 1189  # chapters of the King James Bible
    assert train[0].startswith("In the beginning God created the heaven and the earth.")
    assert not set(train) & set(held_out)
    assert sum(map(len, held_out)) > 200_000
    assert all(sentence for sentence in corpus.sentences(held_out))


def test_whole_books_can_be_held_out() -> None:
    train, books = corpus.training_text("books"), corpus.held_out_texts("books")
    assert len(train) + sum(map(len, books)) == 1189
    assert [book[0][:25] for book in books] == [
        "There was a man in the la",
        "The proverbs of Solomon t",
        "In the third year of the ",
        "In the beginning was the ",
        "The Revelation of Jesus C",
    ]
    thirteen = {
        tuple(words_of[i : i + 13])
        for chapter in train
        for words_of in [re.findall(r"[a-z']+", chapter.lower())]
        for i in range(len(words_of) - 12)
    }
    held = [re.findall(r"[a-z']+", chapter.lower()) for book in books for chapter in book]
    shared = sum(tuple(w[i : i + 13]) in thirteen for w in held for i in range(len(w) - 12))
    assert shared == 0


def test_more_room_than_names_is_an_error_without_prose() -> None:
    names = ("a-b", "c-d")
    with pytest.raises(ValueError, match="length must not exceed 2 lines, as many as names, got"):
        Lines(1, names=names).case(characters, 900, np.random.default_rng(0))
    case = Lines(1, names=names, prose=("It was so.",)).case(
        characters, 900, np.random.default_rng(0)
    )
    assert 900 - 64 <= len(case.tokens) <= 900
    ((begin, end),) = case.answers
    source = begin - case.distances[0]
    assert text_of(case, begin, end) == text_of(case, source, source + end - begin)
