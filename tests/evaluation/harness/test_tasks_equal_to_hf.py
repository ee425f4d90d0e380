"""Whole tasks, with few shots and chat templates, give what the harness's `--model hf` gives."""

from __future__ import annotations

from functools import cache
from typing import Any

import lm_eval
import numpy as np
import pytest
from datasets import Dataset
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tokenizers.processors import TemplateProcessing

from ntk_alibi.evaluation.harness import run as harness
from ntk_alibi.evaluation.harness.model import StretchedLM
from ntk_alibi.models import nano_bloom_path

pytestmark = pytest.mark.slow  # needs the evaluation harness

#: For sums of up to some hundred float32 log-probabilities from passes of different lengths.
TOLERANCE = 1e-3

DOCUMENTS = [
    {"question": "who was he", "choices": ["a man", "God", "the king"], "answer": 1},
    {"question": "what is it", "choices": ["a house", "the LORD"], "answer": 0},
    {"question": "when", "choices": ["in those days", "now"], "answer": 0},
    {"question": "where is the ark", "choices": ["in the house", "there"], "answer": 1},
]

QUESTION = {
    "test_split": "test",
    "fewshot_split": "train",
    "doc_to_text": "Question: {{question}}?\nAnswer:",
    "doc_to_target": "{{choices[answer]}}",
}

#: One task for each type of request, and multiple choice.
TASKS: dict[str, dict[str, Any]] = {
    "multiple_choice": {
        **QUESTION,
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "loglikelihood": {**QUESTION, "metric_list": [{"metric": "acc"}, {"metric": "perplexity"}]},
    "generate_until": {
        **QUESTION,
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 6, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
    "loglikelihood_rolling": {
        **QUESTION,
        "doc_to_text": "",
        "doc_to_target": "{{question}} {{choices[0]}}\n",
        "metric_list": [{"metric": "word_perplexity"}],
    },
}

#: Chat templates that end in a newline, in a space, and in a word; the second begins with <s>.
TEMPLATES = {
    "newline": (
        "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    ),
    "space": (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} {% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    ),
    "word": (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    ),
}

PLAIN: list[dict[str, Any]] = [{}, {"num_fewshot": 3}, {"system_instruction": "Be brief.\n"}]
CHATS: list[dict[str, Any]] = [
    {},
    {"num_fewshot": 2},
    {"num_fewshot": 2, "fewshot_as_multiturn": False},
    {"system_instruction": "Be brief."},
]
#: How the models encode: as their tokenizer does; or with <s> before each text, another token in
#: place of an empty context, and several prompts in a batch.
ENCODINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "begin of text": {"prefix_token_id": 5, "batch_size": 2},
}

#: Each pair of an encoding, a template and options; every template has all options.
CASES: list[tuple[str, str | None, dict[str, Any]]] = [
    (encoding, None, options) for encoding in ENCODINGS for options in PLAIN
] + [
    (list(ENCODINGS)[(i + j) % 2], name, {**options, "apply_chat_template": True})
    for i, name in enumerate(TEMPLATES)
    for j, options in enumerate(CHATS)
]


@cache
def models(encoding: str) -> tuple[StretchedLM, HFLM]:
    options = ENCODINGS[encoding]
    with harness.quiet():
        # Its cache scores a one-token continuation with the first token of a longer one (0.4.13).
        theirs = HFLM(
            str(nano_bloom_path()), device="cpu", dtype="float32", logits_cache=False, **options
        )
    ours = StretchedLM(quiet=True, **options)
    for tokenizer in (ours.tokenizer, theirs.tokenizer):
        if options:
            tokens = [("<s>", tokenizer.bos_token_id)]
            tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
                single="<s> $A", special_tokens=tokens
            )
    return ours, theirs


def samples(lm: Any, template: str | None, options: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the requests and responses of each task's documents."""
    lm.tokenizer.chat_template = template and TEMPLATES[template]
    data = Dataset.from_list(DOCUMENTS)
    tasks = [
        {
            **{"task": name, "output_type": name, "num_fewshot": options.get("num_fewshot", 0)},
            **{"custom_dataset": lambda **_: {"test": data, "train": data}, **task},
        }
        for name, task in TASKS.items()
    ]
    with harness.quiet():
        results = lm_eval.simple_evaluate(
            model=lm,
            tasks=tasks,
            task_manager=TaskManager(include_defaults=False),
            bootstrap_iters=0,
            **options,
        )
    return {
        name: [
            (sample["arguments"], sample["filtered_resps"])
            for sample in sorted(of_task, key=lambda sample: sample["doc_id"])
        ]
        for name, of_task in results["samples"].items()
    }


@pytest.mark.filterwarnings("ignore:.*generation flags")
@pytest.mark.parametrize(("encoding", "template", "options"), CASES)
def test_every_response_equals_hfs(
    encoding: str, template: str | None, options: dict[str, Any]
) -> None:
    ours, theirs = (samples(lm, template, options) for lm in models(encoding))
    assert ours.keys() == theirs.keys() == TASKS.keys()
    for name in TASKS:
        assert [requests for requests, _ in ours[name]] == [r for r, _ in theirs[name]]
        found, expected = ([responses for _, responses in of[name]] for of in (ours, theirs))
        if name == "generate_until":
            assert found == expected
        else:
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(np.array(one, float), other, atol=TOLERANCE)
