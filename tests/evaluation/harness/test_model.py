"""StretchedLM against the harness's HFLM, for any end of a context, and against transformers."""

from __future__ import annotations

import itertools
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
from ntk_alibi.evaluation.harness import run as harness
from ntk_alibi.evaluation.harness.model import StretchedLM
from ntk_alibi.evaluation.records.longeval import Lines
from ntk_alibi.evaluation.records.record import encoder
from ntk_alibi.methods import parse_method
from ntk_alibi.models import load, nano_bloom_path

pytestmark = pytest.mark.slow  # needs the evaluation harness

#: For sums of up to some hundred float32 log-probabilities from passes of different lengths.
TOLERANCE = 1e-3

RECORD = "Here is a record of lines.\nline brisk-acorn: REGISTER_CONTENT is <4217>\n"
QUESTION = "What is the REGISTER_CONTENT of line brisk-acorn? <"
PAIRS = [
    (RECORD + QUESTION, "4217"),
    (RECORD + QUESTION + "4217>\n" + QUESTION, "4217"),
    (RECORD + QUESTION + "4217>\n" + QUESTION, "9999"),
    (RECORD + QUESTION + "42", "17"),
    (RECORD, "And the LORD said unto him, Go"),
    ("And the LORD said unto ", "him"),
    ("", "In the beginning"),
    ("the ", "the"),
]


def requests(pairs: list[tuple[Any, ...]], kind: str = "loglikelihood") -> list[Instance]:
    return [Instance(kind, {}, pair, i) for i, pair in enumerate(pairs)]


@pytest.fixture(scope="module")
def theirs() -> HFLM:
    with harness.quiet():
        # Its cache scores a one-token continuation with the first token of a longer one (0.4.13).
        return HFLM(str(nano_bloom_path()), device="cpu", dtype="float32", logits_cache=False)


@pytest.fixture(scope="module")
def ours() -> StretchedLM:
    return StretchedLM(quiet=True)


@pytest.fixture(scope="module")
def unshared() -> StretchedLM:
    return StretchedLM(quiet=True, share_prefixes=False)


def same(some: list[Any], others: list[Any]) -> None:
    assert [greedy for _, greedy in some] == [greedy for _, greedy in others]
    np.testing.assert_allclose([v for v, _ in some], [v for v, _ in others], atol=TOLERANCE)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("share", [True, False])
def test_loglikelihoods_agree_with_the_harness(theirs: HFLM, batch_size: int, share: bool) -> None:
    lm = StretchedLM(quiet=True, batch_size=batch_size, share_prefixes=share)
    expected = theirs.loglikelihood(requests(PAIRS), disable_tqdm=True)
    same(lm.loglikelihood(requests(PAIRS)), expected)
    assert [greedy for _, greedy in expected][:2] == [True, True]


def test_rolling_loglikelihoods_agree_with_the_harness(theirs: HFLM) -> None:
    texts: list[tuple[Any, ...]] = [("In the beginning God created the heaven.",), (RECORD * 3,)]
    theirs._max_length, before = 16, theirs._max_length
    lm = StretchedLM(quiet=True, max_length=16)
    expected = theirs.loglikelihood_rolling(requests(texts), disable_tqdm=True)
    theirs._max_length = before
    found = lm.loglikelihood_rolling(requests(texts), disable_tqdm=True)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    whole = StretchedLM(quiet=True).loglikelihood_rolling(requests(texts), disable_tqdm=True)
    assert whole[1] > found[1]  # a window loses context


def test_a_batch_size_is_searched_once_for_a_rolling_task(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = StretchedLM(quiet=True, max_length=16, batch_size="auto", max_batch_size=2)
    searches = []
    monkeypatch.setattr(lm, "_detect_batch_size", lambda *_: searches.append(1) or 2)
    texts: list[tuple[Any, ...]] = [(RECORD * 3,), (RECORD,)]
    found = lm.loglikelihood_rolling(requests(texts), disable_tqdm=True)
    alone = StretchedLM(quiet=True, max_length=16)
    expected = alone.loglikelihood_rolling(requests(texts), disable_tqdm=True)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    assert len(searches) == 1


def test_results_of_the_embedded_model_go_to_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    search_tasks_in(tmp_path, monkeypatch)
    harness.main(
        [
            *("--model", "ntk_alibi", "--model_args", "method=ntk:4", "--output_path", "results"),
            *("--tasks", "ntk_alibi_lines", "--metadata", "lengths=[256]", "records=1"),
        ]
    )
    (path,) = tmp_path.rglob("results*.json")
    assert path.parent == tmp_path / "results/nano-bloom"
    assert json.loads(path.read_text())["model_name"] == "nano-bloom"


def passes(lm: StretchedLM, request: pytest.FixtureRequest) -> list[int]:
    """Return a list that gets the number of tokens of each pass of the model in a test."""
    lengths: list[int] = []

    def note(_: Any, args: Any, kwargs: Any) -> None:
        lengths.append((args[0] if args else kwargs["input_ids"]).shape[1])

    hook = lm.model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    request.addfinalizer(hook.remove)
    return lengths


def test_beginnings_of_one_text_are_read_once(
    ours: StretchedLM, request: pytest.FixtureRequest
) -> None:
    lengths = passes(ours, request)
    text = RECORD + (QUESTION + "4217>\n") * 5
    ends = [i for i in range(len(text)) if text.startswith("4217>\nW", i)]
    ours.loglikelihood(requests([(text[:end], "4217") for end in reversed(ends)]))
    assert len(ends) == 5
    assert len(lengths) == 1
    assert lengths[0] < len(ours.tok_encode(text))  # the text after the last answer is not read


def test_last_tokens_of_one_context_are_read_once(
    ours: StretchedLM, request: pytest.FixtureRequest
) -> None:
    lengths = passes(ours, request)
    found = ours.loglikelihood(requests([("And the LORD", " said"), ("And the LORD", " the")]))
    assert len(lengths) == 1
    assert found[0] != found[1]


def test_a_request_that_ends_within_a_token_gets_its_own_pass(
    theirs: HFLM, ours: StretchedLM
) -> None:
    pairs: list[tuple[Any, ...]] = [("In the begin", "ning God"), ("In the be", "gin")]
    expected = theirs.loglikelihood(requests(pairs), disable_tqdm=True)
    same(ours.loglikelihood(requests(pairs)), expected)


def test_answers_agree_with_greedy_decoding() -> None:
    """The stretched model generates the answers to the questions one by one."""
    model, tokenizer, length = load()
    case = Lines(6).case(encoder(tokenizer), length, np.random.default_rng(3))
    pairs = [
        (str(tokenizer.decode(case.tokens[:begin])), str(tokenizer.decode(case.tokens[begin:end])))
        for begin, end in case.answers
    ]
    found = StretchedLM(quiet=True, method="ntk:2").loglikelihood(requests(pairs))
    with na.patch(model, na.NTK(2.0)):
        for (begin, end), (_, greedy) in zip(case.answers, found, strict=True):
            prompt = torch.from_numpy(case.tokens[:begin])[None]
            tokens = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=end - begin,
                do_sample=False,
            )
            assert (tokens[0, begin:].numpy() == case.tokens[begin:end]).all() == greedy


@pytest.mark.parametrize("batch_size", [1, 3])
def test_generation_agrees_with_transformers(batch_size: int) -> None:
    model, tokenizer, _ = load()
    lm = StretchedLM(quiet=True, method="ntk:4", batch_size=batch_size)
    prompts = [RECORD * n + QUESTION for n in (1, 3, 2)]
    kwargs = {"max_gen_toks": 5, "until": [], "do_sample": False}
    found = lm.generate_until(requests([(p, kwargs) for p in prompts]), disable_tqdm=True)
    with na.patch(model, na.NTK(4.0)):
        for prompt, answer in zip(prompts, found, strict=True):
            encoded = tokenizer(prompt, return_tensors="pt")
            tokens = model.generate(**encoded, max_new_tokens=5, do_sample=False)
            expected = tokenizer.decode(tokens[0, encoded["input_ids"].shape[1] :])
            assert answer == expected
    assert found[0].startswith("4217")


def test_nothing_is_cut_off_unless_asked(ours: StretchedLM) -> None:
    long = RECORD * 200
    ids, mask = ours.tok_batch_encode([long, RECORD], left_truncate_len=ours.max_length - 24)
    assert ids.shape[1] == len(ours.tok_encode(long)) > 2048
    assert mask.sum(1).tolist() == [ids.shape[1], len(ours.tok_encode(RECORD))]
    assert ours.get_model_info()["truncation"] == "nothing is cut off"


@pytest.mark.parametrize(("rule", "kept"), [("middle", [0, 1, 2, 8, 9]), ("left", [5, 6, 7, 8, 9])])
def test_what_is_cut_off(rule: str, kept: list[int]) -> None:
    lm = StretchedLM(quiet=True, max_length=9, truncation=rule)
    assert lm.truncate(list(range(10)), 5) == kept
    assert lm.truncate(list(range(5)), 5) == list(range(5))
    ids, mask = lm.tok_batch_encode([RECORD * 3], left_truncate_len=5)
    tokens = lm.tok_encode(RECORD * 3)
    expected = tokens[:3] + tokens[-2:] if rule == "middle" else tokens[-5:]
    assert ids.tolist() == [expected]
    assert mask.all()
    context, target = tokens[:-2], tokens[-2:]
    kept_context = context[:4] + context[-4:] if rule == "middle" else context[-8:]
    with torch.no_grad():
        logits = lm.model(torch.tensor([kept_context + target[:1]])).logits[0, -2:]
    expected_value = logits.log_softmax(-1)[[0, 1], target].sum()
    found = lm._loglikelihood_tokens([(None, context, target)])
    assert found[0][0] == pytest.approx(float(expected_value), abs=TOLERANCE)
    assert lm.get_model_info()["truncation"] == rule


def test_long_prefixes_are_cut_each_by_itself() -> None:
    pairs = PAIRS[:2]
    cut = StretchedLM(quiet=True, max_length=12).loglikelihood(requests(pairs))
    alone = StretchedLM(quiet=True, max_length=12, share_prefixes=False)
    same(cut, alone.loglikelihood(requests(pairs)))


def test_logits_are_formed_a_part_at_a_time(
    ours: StretchedLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ours.loglikelihood(requests(PAIRS))
    rows = []
    head = ours.model.get_output_embeddings()
    with head.register_forward_hook(lambda _, args, __: rows.append(len(args[0]))):
        monkeypatch.setattr(
            "ntk_alibi.evaluation.harness.model.LOGITS_AT_A_TIME", 2 * len(ours.tokenizer)
        )
        same(ours.loglikelihood(requests(PAIRS)), expected)
    assert max(rows) == 2


@pytest.mark.parametrize("name", ["ntk:4", "dynamic-ntk", "interpolation:2", "original"])
def test_a_method_in_the_arguments_is_a_patch(tiny_checkpoint: Path, name: str) -> None:
    lm = StretchedLM(str(tiny_checkpoint), method=name, quiet=True)
    found = lm.loglikelihood(requests(PAIRS[:1]))[0][0]
    model, tokenizer, train_length = load(tiny_checkpoint)
    tokens = tokenizer("".join(PAIRS[0]), return_tensors="pt")["input_ids"]
    method = parse_method(name, train_length)
    with na.patch(model, method.scaling), torch.no_grad():
        scores = model(tokens).logits[0].log_softmax(-1)
    expected = scores[[-3, -2], tokens[0, -2:]].sum()
    assert found == pytest.approx(float(expected), abs=TOLERANCE)
    info = lm.get_model_info()
    assert info["method"] == name
    assert json.loads(json.dumps(info, default=str))["train_length"] == 64
    assert info["versions"]["lm_eval"]
    if method.scaling is None:
        assert info["scaling"] == {"alibi_type": "default"}
    else:
        assert na.scaling_from_config(info["scaling"]) == method.scaling


#: Every kind of whitespace that str.rstrip removes and text commonly ends in.
ENDS = ["", " ", "  ", "\n", "\n\n", "\t", "\r\n", " \n", "\u00a0", "\u2003"]
FEW_ENDS = ["", " \n", "\u00a0"]

TEXT = "And it came to pass in those days.\nQuestion: who was he?\nAnswer:"


@pytest.mark.parametrize("end", ENDS, ids=repr)
def test_repeated_and_nested_requests(
    theirs: HFLM, ours: StretchedLM, unshared: StretchedLM, end: str
) -> None:
    context = TEXT + end
    longer = context + "God" + end
    pairs = [
        *[(context, "God")] * 2,
        (context, "and"),
        (context, " the LORD"),
        (context, "God said"),
        *[(longer, "and he said")] * 2,
        (longer, "and"),
        (TEXT, end + "God"),
    ]
    asked = requests([pair for pair in pairs if pair[1].strip()])
    expected = theirs.loglikelihood(asked, disable_tqdm=True)
    same(ours.loglikelihood(asked), expected)
    same(unshared.loglikelihood(asked), expected)


def test_the_choices_of_a_question(theirs: HFLM, ours: StretchedLM, unshared: StretchedLM) -> None:
    choices = ("and", "God", "the king", "a man")
    asked = requests([(TEXT + end, choice) for end, choice in itertools.product(ENDS[:4], choices)])
    expected = theirs.loglikelihood(asked, disable_tqdm=True)
    same(ours.loglikelihood(asked), expected)
    same(unshared.loglikelihood(asked), expected)


def test_a_context_of_whitespace_alone_counts_as_none(theirs: HFLM, ours: StretchedLM) -> None:
    """The harness's own model refuses one; a continuation keeps the whitespace."""
    got = ours.loglikelihood(requests([("\n", "God"), ("\n", "God")]))
    expected = theirs.loglikelihood(requests([("", "\nGod")]), disable_tqdm=True)
    same(got, expected * 2)


@pytest.mark.parametrize("end", FEW_ENDS, ids=repr)
def test_generated_text(theirs: HFLM, ours: StretchedLM, end: str) -> None:
    options = {"until": ["\n\n"], "max_gen_toks": 8, "do_sample": False}
    asked = [(TEXT + end, options), ("In the beginning" + end, options)]
    found = ours.generate_until(requests(asked, "generate_until"))
    assert found == theirs.generate_until(requests(asked, "generate_until"), disable_tqdm=True)


@pytest.mark.parametrize("end", FEW_ENDS, ids=repr)
def test_rolling_likelihoods(theirs: HFLM, ours: StretchedLM, end: str) -> None:
    texts: list[tuple[Any, ...]] = [(TEXT + end,), (TEXT + end + TEXT,)]
    found = ours.loglikelihood_rolling(requests(texts), disable_tqdm=True)
    expected = theirs.loglikelihood_rolling(requests(texts), disable_tqdm=True)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
