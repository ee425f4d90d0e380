"""Subcommand `ntk-alibi demo`: the README's question, and longer texts for as long as time is left.

It needs torch and transformers, and not the evaluation harness, so that it is installed and answers
soon. Its records are those that `ntk-alibi eval` begins with.
"""

from __future__ import annotations

import argparse
import time
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
    """Print for each length how many lines of its records are found; the longest come last.

    A length is read if four times the last record, which is half as long, fit into the time that is
    left. Of that it has a share in proportion to its tokens, for more records.
    """
    from ntk_alibi import patch
    from ntk_alibi.evaluation.records import record
    from ntk_alibi.evaluation.records.longeval import Lines

    encode = record.cached_encoder(record.encoder(tokenizer))
    methods = (ORIGINAL, RECOMMENDED)
    print("\nlines found among many other lines:")
    print(f"{'tokens':>8}" + "".join(f"{name:>20}" for name in methods), flush=True)
    end, took = time.monotonic() + seconds, 0.0
    for place, multiple in enumerate(MULTIPLES):
        length, begin = multiple * train_length, time.monotonic()
        if begin + 4 * took >= end:
            left = ", ".join(str(each * train_length) for each in MULTIPLES[place:])
            print(f"not read in {seconds:g} seconds (--seconds gives more): {left} tokens")
            return
        share = (end - begin) * multiple / sum(MULTIPLES[place:])
        found, asked = dict.fromkeys(methods, 0), 0
        for number in range(RECORDS):
            start = time.monotonic()
            if number and start + took > begin + share:
                break
            case = Lines().case(encode, length, record.record_generator("lines", length, number))
            asked += len(case.answers)
            for name in methods:
                with patch(model, name):
                    found[name] += sum(record.answered(model, case))
            took = time.monotonic() - start
        cells = (f"{found[name]} of {asked} ({found[name] / asked:.0%})" for name in methods)
        print(f"{length:>8}" + "".join(f"{cell:>20}" for cell in cells), flush=True)
