"""Subcommand `ntk-alibi demo`: the README's question, and a study of lines in the time left.

It prints counts as they come, and needs torch and transformers alone.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

from ntk_alibi.cli import subcommand
from ntk_alibi.methods import ORIGINAL, RECOMMENDED

#: Lengths of the records in training lengths, each twice the one before, and most records of each.
MULTIPLES, RECORDS = (1, 2, 4, 8, 16), 4

LINE = "line {}: REGISTER_CONTENT is <{}>\n"
QUESTION = "What is the REGISTER_CONTENT of line server-17? <"
TOLD, OTHERS = LINE.format("server-17", 4217), 330
NAMES = "amber birch cedar coral delta ember flint grove heron ivory jasper kestrel".split()
TEXT = "".join(
    (
        TOLD,
        *(
            LINE.format(f"{NAMES[i % 12]}-{NAMES[i // 12 % 12]}-{i}", 1000 + 37 * i % 9000)
            for i in range(OTHERS)
        ),
        QUESTION,
    )
)


def add_command(commands: Any) -> None:
    """Add the subcommand."""
    parser = subcommand.add(
        commands,
        "demo",
        _run,
        "ask the small BLOOM about texts beyond its training length, original and stretched",
        "ntk-alibi demo",
        extra="transformers",
    )
    subcommand.number_option(
        parser, "--seconds", "S", "time for the table; it has the lengths that fit", 75.0, float
    )


def _run(options: argparse.Namespace) -> None:
    from ntk_alibi.models import load

    model, tokenizer, train_length = load()
    _answer_the_question(model, tokenizer, train_length)
    _print_table(model, tokenizer, train_length, options.seconds)
    print(
        f"\nto measure your decoder with ALiBi, by its folder or hub name:\n"
        f"  ntk-alibi eval --quick --model MODEL --methods {ORIGINAL} {RECOMMENDED}\n"
        f'to stretch it, in Python:\n  ntk_alibi.patch(model, "{RECOMMENDED}")'
    )


def _answer_the_question(model: Any, tokenizer: Any, train_length: int) -> None:
    """Print what the model answers to the README's question, original and stretched."""
    from ntk_alibi import patch

    prompt = tokenizer(TEXT, return_tensors="pt")
    length = prompt["input_ids"].shape[1]
    print(f"trained on texts of {train_length} tokens, a small BLOOM reads {length}:")
    print(f"  {TOLD}  {OTHERS} other lines\n  {QUESTION}", flush=True)

    def answer() -> str:
        tokens = model.generate(**prompt, max_new_tokens=2, do_sample=False)
        return str(tokenizer.decode(tokens[0, -2:]))

    print("original:", answer(), flush=True)
    with patch(model, RECOMMENDED):
        print("stretched:", answer(), flush=True)


def _print_table(model: Any, tokenizer: Any, train_length: int, seconds: float) -> None:
    """Print for each length how many lines of its records are found."""
    from ntk_alibi.evaluation.comparing import length_study
    from ntk_alibi.evaluation.comparing.plan import Plan
    from ntk_alibi.evaluation.comparing.store import AnswerStore

    methods = (ORIGINAL, RECOMMENDED)
    plan = Plan(
        train_length, methods, MULTIPLES, line_records=RECORDS, topic_records=0, prose_windows=0
    )
    study, store = length_study.prepare(model, tokenizer, plan), AnswerStore(None, {})
    print("\nlines found among many other lines:")
    print(f"{'tokens':>8}" + "".join(f"{name:>20}" for name in methods), flush=True)
    left = plan.token_lengths
    readings = length_study.read(model, study, store, seconds=seconds)
    for length, group in itertools.groupby(readings, lambda reading: reading[1].length):
        found: dict[str, list[bool]] = {name: [] for name in methods}
        for method, text in group:
            found[method.name] += store.get(method.name, text.name)
        cells = (f"{sum(x)} of {len(x)} ({sum(x) / len(x):.0%})" for x in found.values())
        print(f"{length:>8}" + "".join(f"{cell:>20}" for cell in cells), flush=True)
        left = left[1:]
    if left:
        lengths = ", ".join(map(str, left))
        print(f"not read in {seconds:g} seconds (--seconds gives more): {lengths} tokens")
