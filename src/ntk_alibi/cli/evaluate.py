"""`ntk-alibi eval`."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ntk_alibi.cli import subcommand

#: Where an unfinished default evaluation is kept, in the current folder, until it is done.
UNFINISHED = ".ntk-alibi-eval.unfinished.jsonl"


def register(commands: Any) -> None:
    """Add the subcommand."""
    parser = subcommand.add(
        commands,
        "eval",
        _run,
        "what stretching ALiBi does beyond the training length, on a real BLOOM",
        "ntk-alibi eval --quick\n"
        "  ntk-alibi eval --model bigscience/bloom-560m --task longeval-lines \\\n"
        "      --data lines_200.jsonl --methods original ntk:4",
    )
    parser.add_argument("--quick", action="store_true", help="a first table within a minute")
    parser.add_argument("--model", metavar="DIR_OR_HUB_NAME", help="(this package's nano BLOOM)")
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="such as original ntk:4")
    parser.add_argument("--train-length", type=int, help="tokens trained at (from the config)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--output", metavar="FILE.jsonl", help="keep all single results there")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--plot", metavar="FILE", default="ntk-alibi-eval.png", help="the picture (%(default)s)"
    )
    files = parser.add_argument_group("LongEval's own files, answered by generating")
    files.add_argument("--task", choices=("longeval-lines", "longeval-topics"))
    files.add_argument("--data", metavar="FILE.jsonl")
    files.add_argument("--batch-size", type=int, default=1, help="prompts at a time (%(default)s)")
    files.add_argument("--max-tokens", type=int, help="longer prompts lose their middle")


def _run(options: argparse.Namespace) -> None:
    if (options.task is None) != (options.data is None):
        raise ValueError("--task and --data must be given together, got only one of them")
    if options.task is None:
        _study(options)
    else:
        _longeval(options)


def _study(options: argparse.Namespace) -> None:
    from rich.console import Console

    from ntk_alibi.evaluation import report, study
    from ntk_alibi.models import load
    from ntk_alibi.plots import study_figure

    model, tokenizer, train_length = load(options.model, options.dtype)
    plan = study.Plan(options.train_length or train_length)
    if options.quick:
        plan = replace(plan, **study.QUICK)
    if options.methods:
        plan = replace(plan, methods=tuple(options.methods))
    unfinished = Path(options.output or UNFINISHED)
    summary = study.evaluate(model, tokenizer, plan, unfinished, quiet=options.json)
    if options.output is None:
        unfinished.unlink()
    study_figure(summary).savefig(options.plot, dpi=120)
    if options.json:
        print(json.dumps(summary))
        return
    console = Console()
    for table in report.study_tables(summary):
        console.print(table)
    console.print(f"picture: {options.plot}")


def _longeval(options: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from ntk_alibi import _validation
    from ntk_alibi.evaluation import longeval, report
    from ntk_alibi.evaluation.journal import Journal
    from ntk_alibi.evaluation.methods import DEFAULT_METHODS, parse_method
    from ntk_alibi.integrations import patch
    from ntk_alibi.models import load

    cases = longeval.read_cases(options.data, options.task)
    batch_size = _validation.integer("--batch-size", options.batch_size, minimum=1)
    if options.max_tokens is not None:
        _validation.integer("--max-tokens", options.max_tokens, minimum=2)
    truncation = longeval.Truncation(options.max_tokens)
    model, tokenizer, train_length = load(options.model, options.dtype)
    names: Sequence[str] = options.methods or DEFAULT_METHODS
    methods = [parse_method(name, options.train_length or train_length) for name in names]
    work = {
        "model": options.model or "nano BLOOM",
        "dtype": options.dtype,
        "train_length": options.train_length or train_length,
        "task": options.task,
        "data": hashlib.sha256(Path(options.data).read_bytes()).hexdigest(),
        "max_tokens": options.max_tokens,
    }
    console = Console(stderr=options.json)
    console.print(f"truncation: {truncation}")
    rows = []
    output = Path(options.output or f"ntk-alibi-{options.task}.jsonl")
    with Journal(output, work) as journal, Progress(console=Console(stderr=True)) as progress:
        if len(journal):
            console.print(f"{output}: {len(journal)} answers are there already")
        for method in methods:
            bar = progress.add_task(method.label, total=len(cases))
            right = []
            with patch(model, method.scaling):
                for result in longeval.answer(
                    model,
                    tokenizer,
                    cases,
                    options.task,
                    journal,
                    label=method.name,
                    batch_size=batch_size,
                    truncation=truncation,
                ):
                    right.append(result["correct"])
                    progress.advance(bar)
            rows.append(longeval.accuracy_row(method, right))
    if options.json:
        print(json.dumps({**work, "results": rows}))
        return
    console.print(report.longeval_table(f"{options.task}: {options.data}", rows))
    console.print(f"answers: {output}")
