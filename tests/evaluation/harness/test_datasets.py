"""Our harness tasks: their YAML files, documents, requests and metrics."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from lm_eval.tasks import TaskManager

from ntk_alibi.evaluation.harness import datasets
from ntk_alibi.evaluation.harness import run as harness
from ntk_alibi.evaluation.harness.model import StretchedLM
from ntk_alibi.evaluation.records import corpus, words
from ntk_alibi.evaluation.records.longeval import Lines
from ntk_alibi.evaluation.records.record import encoder
from ntk_alibi.models import load

pytestmark = pytest.mark.slow  # needs the evaluation harness

KINDS = list(datasets.KINDS)
NAMES = harness.task_names()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load()[1]


def test_every_yaml_is_known_to_the_harness() -> None:
    manager = TaskManager(include_path=str(harness.tasks_folder()), include_defaults=False)
    assert manager.all_subtasks == NAMES
    assert {"longeval_lines_200", "longeval_topics_5", "ntk_alibi_prose_sliding"} <= set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("ntk_alibi")])
def test_tasks_of_records_load(name: str) -> None:
    metadata = {"lengths": [700], "records": 2, "windows": 2, "context": 100}
    task = harness.load_tasks([name], metadata)[name]
    assert len(task.eval_docs) == 2
    task.build_all_requests()
    for instance in task.instances:
        if name.endswith("_generated"):
            assert instance.args[0] == instance.doc["prompt"]
            continue
        context, continuation = instance.args
        assert context + continuation in instance.doc["text"]
    assert yaml.safe_dump(task.dump_config()["metadata"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_is_at_its_place_in_the_document(tokenizer: Any, kind: str) -> None:
    documents = datasets.retrieval(kind, [1000, 1500], records=2, seed=3)["test"]
    assert [document["length"] for document in documents] == [1000, 1000, 1500, 1500]
    for document in documents:
        text, offsets = document["text"], tokenizer(document["text"], return_offsets_mapping=True)
        ends = [end for _, end in offsets["offset_mapping"]]
        assert 0.9 * document["length"] <= len(ends) <= document["length"] + 12
        for i, (begin, end) in enumerate(zip(document["begins"], document["ends"], strict=True)):
            answer = text[begin:end]
            place = sum(e <= begin for e in ends) - document["distances"][i]
            slack = (
                0 if kind == "lines" else 12
            )  # the joined text can merge tokens where words of prose were cut
            near = ends[max(1, place - slack) - 1], ends[place + document["tokens"][i] + slack]
            assert answer in text[slice(*near)]
            assert near[0] < document["begins"][0]
            assert 0 <= document["depths"][i] <= 1
            assert document["tokens"][i] == len(tokenizer(answer)["input_ids"])


def test_lines_equal_the_generators(tokenizer: Any) -> None:
    document = datasets.retrieval("lines", [2048], records=1, questions=32)["test"][0]
    rng = np.random.default_rng([datasets.SEED, *b"lines/1/0"])
    case = Lines(32).case(encoder(tokenizer), 2048, rng)
    assert tokenizer(document["text"])["input_ids"] == case.tokens[: case.answers[-1][1]].tolist()
    assert document["distances"] == case.distances


def test_generated_answers_are_in_the_records() -> None:
    whole = datasets.retrieval("topics", [900], records=3, questions=1)["test"]
    prompts = datasets.single_questions("topics", [900], records=3)["test"]
    for document, prompt in zip(whole, prompts, strict=True):
        assert (prompt["prompt"] + prompt["expected"] + ".").startswith(document["text"])
        assert prompt["prompt"].endswith("topic?\nASSISTANT:")
        right = datasets.score_generated(prompt, [prompt["expected"]])
        assert right == {"accuracy": 1.0, "accuracy_900": 1.0}
        wrong = datasets.score_generated(prompt, [prompt["expected"] + "s"])
        assert wrong == {"accuracy": 0.0, "accuracy_900": 0.0}


def test_generated_answers_have_a_share_for_each_length(tiny_checkpoint: Path) -> None:
    metadata = {"lengths": [200, 300], "records": 3, "pretrained": str(tiny_checkpoint)}
    tasks = harness.load_tasks(["ntk_alibi_lines_generated"], metadata)
    lm = StretchedLM(str(tiny_checkpoint), quiet=True)
    lm.generate_until = lambda requests, **_: [
        request.doc["expected"] if request.doc["length"] == 200 else "" for request in requests
    ]
    found = harness.answer(lm, tasks)["results"]["ntk_alibi_lines_generated"]
    shares = {name: found[f"{name},none"] for name in ("accuracy", "accuracy_200", "accuracy_300")}
    assert shares == {"accuracy": 0.5, "accuracy_200": 1.0, "accuracy_300": 0.0}
    task = tasks["ntk_alibi_lines_generated"]
    assert task.aggregation().keys() == task.higher_is_better().keys() == shares.keys()


def test_other_lines_have_names_of_no_training_record(tokenizer: Any) -> None:
    (document,) = datasets.retrieval("other-lines", [2048], records=1)["test"]
    names = re.findall(r"^line (\S+):", document["text"], re.M)
    assert len(names) > 50
    trained = {*words.ADJECTIVES, *words.NOUNS}
    assert not trained & {word for name in names for word in name.split("-")}
    assert len(set(words.OTHER_LINE_NAMES)) == len(set(words.LINE_NAMES)) == 4096


def test_lines_of_any_length_are_as_long_as_asked(tokenizer: Any) -> None:
    """Records have no more lines than there are names, and prose between them."""
    (document,) = datasets.retrieval(
        "lines", [65_536], records=1, questions=4, split="held-out-books"
    )["test"]
    tokens = tokenizer(document["text"])["input_ids"]
    assert 65_536 - 128 <= len(tokens) <= 65_536 + 64  # prose that was cut can merge with the next
    assert document["text"].count("REGISTER_CONTENT is <") == 4096
    for begin, end in zip(document["begins"], document["ends"], strict=True):
        assert document["text"].count(document["text"][begin:end]) >= 2


def test_records_differ_and_are_drawn_again_by_their_seed() -> None:
    def texts(**options: Any) -> list[str]:
        return list(datasets.retrieval("passkey", [300], records=3, **options)["test"]["text"])

    assert texts(seed=1) == texts(seed=1)
    assert not set(texts(seed=1)) & set(texts(seed=2))
    assert len(set(texts(seed=1))) == 3


def test_variables_need_all_hops() -> None:
    for document in datasets.retrieval("variables", [1200], records=2, questions=3)["test"]:
        text = document["text"]
        lines = text.split("\nVAR ")[1:]
        values = dict(line.split(".")[0].split(" = ") for line in lines if " = " in line)
        for begin, end in zip(document["begins"], document["ends"], strict=True):
            name = text[:begin].rpartition("VAR ")[2].split()[0]
            hops = 0
            while values[name].startswith("VAR "):
                name, hops = values[name].removeprefix("VAR "), hops + 1
            assert hops == 2
            assert values[name] == text[begin:end].strip()


def test_passkeys_lie_at_all_depths() -> None:
    depths = datasets.retrieval("passkey", [600], records=40)["test"]["depths"]
    flat = [depth for (depth,) in depths]
    assert min(flat) < 0.2
    assert max(flat) > 0.8


def test_prose_documents(tokenizer: Any) -> None:
    (document,) = datasets.prose([600], windows=1, bins=4)["test"]
    text = document["text"]
    assert text.strip() in "".join(corpus.held_out_text())
    assert sum(document["tokens"]) == 599
    assert document["starts"] == [0] * 4
    assert document["begins"][1:] == document["ends"][:-1]
    assert document["ends"][-1] == len(text)
    assert document["positions"] == pytest.approx([1 / 600, 1 / 4, 1 / 2, 3 / 4], abs=2 / 600)


def test_a_sliding_window_is_no_longer_than_its_context(tokenizer: Any) -> None:
    (document,) = datasets.sliding_prose(context=100, lengths=[600], windows=1)["test"]
    assert len(document["begins"]) == 600 // 50
    for i, (start, begin, end) in enumerate(
        zip(document["starts"], document["begins"], document["ends"], strict=True)
    ):
        tokens = len(tokenizer(document["text"][start:end])["input_ids"])
        seen = len(tokenizer(document["text"][start:begin])["input_ids"])
        assert tokens <= 102
        assert i == 0 or seen >= 48


def test_prose_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("It was so. " * 60 + "\n")
    (document,) = datasets.prose([100], windows=1, text=str(tmp_path / "own.txt"))["test"]
    assert document["text"].startswith("It was so. It was so.")
    with pytest.raises(ValueError, match="prose must hold 9 windows of 100 tokens, got"):
        datasets.prose([100], windows=9, text=str(tmp_path / "own.txt"))


def test_counts() -> None:
    document = {"length": 10, "tokens": [2, 6]}
    right = datasets.score_answers(document, [(-1.0, True), (-9.0, False)])
    assert right == {"accuracy": [1, 2], "accuracy_10": [1, 2]}
    nats = datasets.score_prose(document, [(-1.0, True), (-3.0, False)])
    assert nats["nats_10"] == [4.0, 8]
    assert datasets.ratio([[1, 2], [3, 2]]) == 1.0
    assert math.isnan(datasets.ratio([[0, 0]]))
    assert datasets.perplexity([[4.0, 8]]) == pytest.approx(math.exp(0.5))


def test_prompts_that_were_changed_are_refused() -> None:
    task = harness.load_tasks(["ntk_alibi_passkey"], {"lengths": [300], "records": 1})
    with pytest.raises(ValueError, match="system_instruction and apply_chat_template must not be"):
        task["ntk_alibi_passkey"].build_all_requests(system_instruction="Be brief.")
