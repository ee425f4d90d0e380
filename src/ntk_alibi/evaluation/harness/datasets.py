"""Data sets and a task class for the harness: records with questions, and windows of prose.

Each answer in a text is a loglikelihood request of the harness, whose context is the text before
it. The requests of one text are prefixes of that text, so `StretchedLM` reads it once. Other models
of the harness read it once for each request, and give the same answers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from ntk_alibi import _checks
from ntk_alibi.evaluation.comparing.intervals import ratio_standard_error
from ntk_alibi.evaluation.records import corpus, haystacks
from ntk_alibi.evaluation.records.longeval import Lines, Topics
from ntk_alibi.evaluation.records.record import (
    SEED,
    Case,
    Decode,
    RecordKind,
    cached_encoder,
    check_lengths,
    decoder,
    encoder,
    record_generator,
)
from ntk_alibi.evaluation.records.words import OTHER_LINE_NAMES
from ntk_alibi.models.loading import checkpoint_name, reading

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Width of the ranges of positions of prose, in tokens.
POSITIONS = 1024

#: By default a record has at most one question for so many tokens.
TOKENS_PER_QUESTION = 64

#: Default number of prompts with one question for each length.
SINGLE_QUESTIONS = 32

#: For each kind of records: the default number of records of each length, and a function that makes
#: the kind from sentences of prose and from the greatest default number of questions.
KINDS: dict[str, tuple[int, Callable[[tuple[str, ...], int], Any]]] = {
    "lines": (8, lambda prose, most: Lines(prose=prose)),
    "other-lines": (8, lambda prose, most: Lines(names=OTHER_LINE_NAMES, prose=prose)),
    "topics": (12, lambda prose, most: Topics(prose)),
    "passkey": (32, lambda prose, most: haystacks.Passkey(prose)),
    "multikey": (8, lambda prose, most: haystacks.MultiKey(prose, keys=min(16, most))),
    "variables": (8, lambda prose, most: haystacks.Variables(prose)),
}


def retrieval(
    kind: str,
    lengths: Sequence[int] = (2048,),
    records: int | None = None,
    questions: int | None = None,
    seed: int = SEED,
    split: str = "held-out",
    **model: Any,
) -> dict[str, Dataset]:
    """Draw records as a data set of the harness.

    Args:
        kind: "lines", "other-lines" (whose names are in no training record of the nano models),
            "topics", "passkey", "multikey" or "variables".
        lengths: lengths of the records in tokens of the model.
        records: how many records of each length.
        questions: number of questions about each record; by default the kind's, but at most one for
            every 64 tokens.
        seed: seed of the records.
        split: chapters of the prose in the records; see `prose`.
        **model: the harness's metadata of the model. Records are made with its tokenizer, or with
            the one of the checkpoint that pretrained names.
    """
    _checks.choice("kind", kind, KINDS)
    records = KINDS[kind][0] if records is None else _checks.integer("records", records, minimum=1)
    _checks.integer("seed", seed, minimum=0)
    tokenizer = _tokenizer(**model)
    encode = cached_encoder(encoder(tokenizer))
    documents = []
    for length in _lengths(lengths, records):
        record_kind = _record_kind(kind, questions, length, split)
        for record in range(records):
            case = record_kind.case(encode, length, record_generator(kind, length, record, seed))
            documents.append(_question_document(decoder(tokenizer), case, length))
    return {"test": Dataset.from_list(documents)}


def single_questions(
    kind: str,
    lengths: Sequence[int] = (2048,),
    records: int = SINGLE_QUESTIONS,
    **options: Any,
) -> dict[str, Dataset]:
    """Draw prompts of one record and one question each, for answers that a model generates.

    Args:
        kind: as for `retrieval`.
        lengths: lengths of the records in tokens of the model.
        records: how many prompts of each length.
        **options: further arguments of `retrieval`, except questions, which is 1.
    """
    drawn = retrieval(kind, lengths, records, **{**options, "questions": 1})["test"]
    prompts = [
        {
            "prompt": document["text"][: document["begins"][0]],
            "expected": document["text"][document["begins"][0] : document["ends"][0]],
            **{key: document[key] for key in ("length", "distances", "depths")},
        }
        for document in drawn
    ]
    return {"test": Dataset.from_list(prompts)}


def score_generated(document: dict[str, Any], results: list[str]) -> dict[str, Any]:
    """Return whether the generated text is the answer."""
    right = float(results[0].strip() == document["expected"].strip())
    return _with_length("accuracy", document, right)


def prose(
    lengths: Sequence[int] = (2048,),
    windows: int = 8,
    bins: int | None = None,
    text: str | None = None,
    context: int | None = None,
    stride: int = POSITIONS,
    split: str = "held-out",
    **model: Any,
) -> dict[str, Dataset]:
    """Cut prose into windows, each of which is predicted in ranges of positions.

    Args:
        lengths: lengths of the windows in tokens of the model.
        windows: number of windows of each length.
        bins: number of equal ranges in a window; by default, ranges have stride tokens.
        text: path of a text file with a paragraph on each line; by default chapters of the King
            James Bible.
        context: number of tokens that are read before each range; by default, all that precede it.
        stride: number of tokens in a range.
        split: "held-out" for chapters that the nano BLOOM was not trained on, "training" for the
            others, or "held-out-books" for whole books that `corpus.training_text` can leave out; a
            window is from one book.
        **model: the harness's metadata of the model, as for `retrieval`.
    """
    _checks.integer("windows", windows, minimum=1)
    _checks.integer("stride", stride, minimum=1)
    if context is not None:
        _checks.integer("context", context, minimum=0)
    tokenizer = _tokenizer(**model)
    if text is None:
        texts = corpus.SPLITS[_checks.choice("split", split, corpus.SPLITS)]()
    else:
        texts = [_lines(text)]
    documents = []
    for length in _lengths(lengths, windows, "windows", minimum=2):
        ranges = max(1, length // stride) if bins is None else bins
        _checks.integer("bins", ranges, minimum=1, maximum=length - 1)
        for tokens in corpus.prose_windows(encoder(tokenizer), texts, length, windows):
            documents.append(_prose_document(decoder(tokenizer), tokens, ranges, context))
    return {"test": Dataset.from_list(documents)}


def sliding_prose(context: int = 2048, **options: Any) -> Any:
    """Make windows as `prose` does, in which no token sees more than `context` tokens.

    The context moves by half of its length at a time, so each token sees at least the other half.
    """
    stride = max(1, _checks.integer("context", context, minimum=2) // 2)
    return prose(**{**options, "context": context - stride, "stride": stride})


def score_answers(document: dict[str, Any], results: list[tuple[float, bool]]) -> dict[str, Any]:
    """Return [right answers, questions] of a record as accuracy and accuracy_<length>."""
    counts = [sum(greedy for _, greedy in results), len(results)]
    return _with_length("accuracy", document, counts)


def score_prose(document: dict[str, Any], results: list[tuple[float, bool]]) -> dict[str, Any]:
    """Return [sum of nats, tokens] of a window of prose as perplexity, nats and nats_<length>."""
    sums = [-sum(likelihood for likelihood, _ in results), sum(document["tokens"])]
    return {"perplexity": sums, **_with_length("nats", document, sums)}


def ratio(pairs: Iterable[Sequence[float]]) -> float:
    """Return the ratio of the sums of pairs' first and second items; NaN if the second is 0."""
    first, second = np.sum(list(pairs), axis=0)
    return float(first / second) if second else math.nan


def perplexity(pairs: Iterable[Sequence[float]]) -> float:
    """Return the perplexity of pairs (sum of nats, tokens)."""
    return math.exp(ratio(pairs))


def ratio_error(pairs: Iterable[Sequence[float]]) -> float | str:
    """Return the standard error of `ratio`; for one pair "N/A", as the harness has it."""
    counted = [pair for pair in pairs if pair[1]]
    if len(counted) < 2:
        return "N/A"
    return ratio_standard_error(*zip(*counted, strict=True))


def perplexity_error(pairs: Iterable[Sequence[float]]) -> float | str:
    """Return the standard error of `perplexity`: to first order, it times the error of the nats."""
    pairs = list(pairs)
    error = ratio_error(pairs)
    return error if isinstance(error, str) else perplexity(pairs) * error


STANDARD_ERRORS = {ratio: ratio_error, perplexity: perplexity_error}


class RecordTask(ConfigurableTask):  # type: ignore[misc]
    """A task of the harness whose documents have several requests about one text."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config={k: v for k, v in config.items() if k != "class"})
        lengths = sorted(set(self.dataset["test"]["length"]))
        aggregations: dict[str, Any] = {}
        for name, aggregate in dict(self.aggregation()).items():
            of_lengths = [f"{name}_{length}" for length in lengths] if aggregate is ratio else []
            for metric in (name, *of_lengths):
                # The harness has no standard error of a ratio and writes "N/A" at this key; a
                # metric of the same name replaces it.
                aggregations |= {metric: aggregate, f"{metric}_stderr": STANDARD_ERRORS[aggregate]}
                self._higher_is_better[metric] = self._higher_is_better[name]
                self._higher_is_better[f"{metric}_stderr"] = False
        self._aggregation_list = aggregations

    def construct_requests(self, doc: Any, ctx: Any, **options: Any) -> list[Instance]:
        """Make a request for each answer or range of the document."""
        text = doc["text"]
        if ctx != text:  # the harness has added something
            raise ValueError(
                "num_fewshot, system_instruction and apply_chat_template must not be given for "
                "tasks with questions at positions of a text, got a prompt of "
                f"{len(ctx)} characters for a text of {len(text)}"
            )
        options = {k: v for k, v in options.items() if k == "metadata"}
        return [
            Instance(
                request_type="loglikelihood",
                doc=doc,
                arguments=(text[start:begin], text[begin:end]),
                idx=i,
                **options,
            )
            for i, (start, begin, end) in enumerate(
                zip(doc["starts"], doc["begins"], doc["ends"], strict=True)
            )
        ]

    def process_results(self, doc: Any, results: Any) -> dict[str, Any]:
        """Compute the metrics; metrics for other lengths get [0, 0], which adds nothing."""
        metrics: dict[str, Any] = super().process_results(doc, results)
        return {
            name: metrics.get(name.removesuffix("_stderr"), [0, 0])
            for name in self._aggregation_list
        }


class SingleQuestionTask(ConfigurableTask):  # type: ignore[misc]
    """A task of the harness whose prompts have one question, with a metric for each length."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config={k: v for k, v in config.items() if k != "class"})
        aggregations = dict(self.aggregation())
        for length in sorted(set(self.dataset["test"]["length"])):
            aggregations[f"accuracy_{length}"] = aggregations["accuracy"]
            self._higher_is_better[f"accuracy_{length}"] = True
        self._aggregation_list = aggregations


def _with_length(name: str, document: dict[str, Any], value: Any) -> dict[str, Any]:
    return {name: value, f"{name}_{document['length']}": value}


@cache
def _sentences(split: str) -> tuple[str, ...]:
    return corpus.sentences([chapter for text in corpus.SPLITS[split]() for chapter in text])


def _record_kind(kind: str, questions: int | None, length: int, split: str) -> RecordKind:
    sentences = _sentences(_checks.choice("split", split, corpus.SPLITS))
    most = max(1, length // TOKENS_PER_QUESTION)
    default = KINDS[kind][1](sentences, most)
    if questions is None:
        questions = min(default.questions, most)
    questions = _checks.integer("questions", questions, minimum=1)
    record_kind: RecordKind = replace(default, questions=questions)
    return record_kind


def _question_document(decode: Decode, case: Case, length: int) -> dict[str, Any]:
    edges = [0, *(edge for answer in case.answers for edge in answer)]
    text, places = _decoded(decode, case.tokens, edges)
    return {
        "text": text,
        "length": length,
        "starts": [0] * len(case.answers),
        "begins": places[0::2],
        "ends": places[1::2],
        "tokens": [end - begin for begin, end in case.answers],
        "distances": case.distances,
        "depths": [
            (begin - distance) / case.answers[0][0]
            for (begin, _), distance in zip(case.answers, case.distances, strict=True)
        ],
    }


def _prose_document(decode: Decode, tokens: Any, bins: int, context: int | None) -> dict[str, Any]:
    edges = [int(part[0]) for part in np.array_split(np.arange(1, len(tokens)), bins)]
    text, places = _decoded(decode, tokens, [0, *edges, len(tokens)])
    first_read = [0 if context is None else max(0, edge - context) for edge in edges]
    return {
        "text": text,
        "length": len(tokens),
        "starts": [len(decode(tokens[:first])) for first in first_read],
        "begins": places[:-1],
        "ends": places[1:],
        "tokens": np.diff([*edges, len(tokens)]).tolist(),
        "positions": [edge / len(tokens) for edge in edges],
    }


def _decoded(decode: Decode, tokens: Any, edges: list[int]) -> tuple[str, list[int]]:
    """Return the text between the first and the last edge, and where in it each part ends."""
    pieces = [decode(tokens[a:b]) for a, b in itertools.pairwise(edges)]
    return "".join(pieces), np.cumsum([len(piece) for piece in pieces]).tolist()


def _lengths(lengths: Any, texts: int, of: str = "records", minimum: int = 1) -> list[int]:
    values = lengths if isinstance(lengths, Sequence) else [lengths]
    if not values:
        raise ValueError(f"lengths must hold at least one length, got {lengths!r}")
    return check_lengths("lengths", values, texts, of=of, minimum=minimum)


def _lines(path: Any) -> list[str]:
    if not isinstance(path, str):
        raise TypeError(f"text must be the path of a file, got {path!r}")
    with open(path, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file if line.strip()]
    if not lines:
        raise ValueError(f"{path} must hold at least one case, got none")
    return lines


def _tokenizer(tokenizer: Any = None, pretrained: Any = None, **_: Any) -> PreTrainedTokenizerBase:
    chosen = tokenizer or pretrained
    if chosen is None or isinstance(chosen, str):
        return _load_tokenizer(chosen)
    if not callable(chosen):
        raise TypeError(f"tokenizer must be a name, a folder or a tokenizer, got {chosen!r}")
    loaded: PreTrainedTokenizerBase = chosen
    return loaded


@cache
def _load_tokenizer(name: str | None) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    path = checkpoint_name(name)
    with reading(path):
        loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path)
    return loaded
