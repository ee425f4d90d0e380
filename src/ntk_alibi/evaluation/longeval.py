"""LongEval's own files, answered by any model that can generate."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntk_alibi.evaluation.journal import Journal
from ntk_alibi.evaluation.methods import Method
from ntk_alibi.evaluation.scoring import accuracy_interval, score_lines, score_topics

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TASKS = ("longeval-lines", "longeval-topics")

#: Enough for "The first topic is ..." and for "The <REGISTER_CONTENT> in line ... is <12345>".
NEW_TOKENS = {"longeval-lines": 24, "longeval-topics": 32}


@dataclass(frozen=True)
class LongEvalCase:
    """One line of a LongEval file.

    Attributes:
        number: of the line in its file, from 1.
        prompt: what the model is given.
        expected: the number of the line asked for, or the topics, of which the first is right.
    """

    number: int
    prompt: str
    expected: int | tuple[str, ...]

    def is_right(self, prediction: str) -> bool:
        """Whether an answer is right, by the rules of scoring.py."""
        if isinstance(self.expected, int):
            return score_lines(prediction, self.expected)
        return score_topics(prediction, self.expected)


def read_cases(path: str | os.PathLike[str], task: str) -> list[LongEvalCase]:
    """The cases of a LongEval file.

    Args:
        path: a .jsonl file; lines: keys prompt and expected_number; topics: prompt and topics.
        task: "longeval-lines" or "longeval-topics".

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is broken (file and line number), the file is empty, or task is unknown.
    """
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    cases = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                cases.append(_parse(number, line, task))
            except (ValueError, KeyError, TypeError) as error:
                reason = f"key {error} is missing" if isinstance(error, KeyError) else error
                raise ValueError(f"{path}, line {number}: no case of {task}: {reason}") from None
    if not cases:
        raise ValueError(f"{path} must hold at least one case, is empty")
    return cases


def _parse(number: int, line: bytes, task: str) -> LongEvalCase:
    entry = json.loads(line.decode("utf-8"))
    if not isinstance(entry, dict):
        raise TypeError(f"expected an object, got {line[:40]!r}")
    prompt = entry["prompt"]
    expected: Any = entry["expected_number"] if task == TASKS[0] else entry["topics"]
    if not isinstance(prompt, str):
        raise TypeError(f"prompt must be a string, got {prompt!r}")
    if task == TASKS[0]:
        return LongEvalCase(number, prompt, int(expected))
    if (
        not isinstance(expected, list)
        or not expected
        or not all(isinstance(t, str) for t in expected)
    ):
        raise TypeError(f"topics must be a list of strings, got {expected!r}")
    return LongEvalCase(number, prompt, tuple(expected))


@dataclass(frozen=True)
class Truncation:
    """What happens to prompts longer than `max_tokens`: their middle is left out, as in LongBench.

    Both ends stay, which hold the instruction and the question.
    """

    max_tokens: int | None = None

    def __str__(self) -> str:
        if self.max_tokens is None:
            return "none: prompts are read whole"
        return f"prompts beyond {self.max_tokens} tokens lose their middle, both ends stay"

    def __call__(self, tokens: list[int]) -> list[int]:
        """Tokens, at most so many."""
        if self.max_tokens is None or len(tokens) <= self.max_tokens:
            return tokens
        head = (self.max_tokens + 1) // 2
        tail = self.max_tokens - head
        return tokens[:head] + tokens[len(tokens) - tail :]


def answer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    cases: Sequence[LongEvalCase],
    task: str,
    journal: Journal,
    *,
    label: str,
    batch_size: int = 1,
    truncation: Truncation = Truncation(),
) -> Iterator[Mapping[str, Any]]:
    """Answer the cases that the journal does not hold yet, greedily, in batches padded left.

    Args:
        model: patched as wanted.
        tokenizer: the model's.
        cases: from `read_cases`.
        task: as there.
        journal: takes each result as it comes, under "label/number".
        label: of the method.
        batch_size: prompts at a time, shortest first so that they are of similar length.
        truncation: of prompts.

    Yields:
        For every case, finished before or now: number, prediction, correct, prompt_tokens.
    """
    import torch

    keys = {case.number: f"{label}/{case.number}" for case in cases}
    todo = []
    for case in cases:
        if keys[case.number] in journal:
            yield journal[keys[case.number]]
        else:
            todo.append((truncation(tokenizer(case.prompt)["input_ids"]), case))
    todo.sort(key=lambda item: len(item[0]))
    for begin in range(0, len(todo), batch_size):
        batch = todo[begin : begin + batch_size]
        longest = len(batch[-1][0])
        rows = [[0] * (longest - len(tokens)) + tokens for tokens, _ in batch]
        mask = [[0] * (longest - len(tokens)) + [1] * len(tokens) for tokens, _ in batch]
        with torch.inference_mode():
            generate: Any = model.generate
            output = generate(
                torch.tensor(rows, device=model.device),
                attention_mask=torch.tensor(mask, device=model.device),
                max_new_tokens=NEW_TOKENS[task],
                do_sample=False,
                pad_token_id=model.config.pad_token_id or 0,
            )
        for (tokens, case), row in zip(batch, output, strict=True):
            prediction = str(tokenizer.decode(row[longest:], skip_special_tokens=True))
            result = {
                "number": case.number,
                "prediction": prediction,
                "correct": case.is_right(prediction),
                "prompt_tokens": len(tokens),
            }
            journal.write(keys[case.number], result)
            yield result


def accuracy_row(method: Method, right: Sequence[bool]) -> dict[str, Any]:
    """A method's accuracy over all cases, with its 95 % interval."""
    low, high = accuracy_interval([int(r) for r in right], [1] * len(right))
    return {
        "method": method.name,
        "label": method.label,
        "cases": len(right),
        "accuracy": sum(right) / len(right),
        "low": low,
        "high": high,
    }
