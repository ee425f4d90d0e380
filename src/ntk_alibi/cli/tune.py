"""`ntk-alibi tune`."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from ntk_alibi.cli import subcommand


def register(commands: Any) -> None:
    """Add the subcommand."""
    parser = subcommand.add(
        commands,
        "tune",
        _run,
        "which scaling and factor a model needs for a length, and how sure that is",
        "ntk-alibi tune --length 8192\n"
        "  ntk-alibi tune --model bigscience/bloom-560m --length 4096 --methods ntk:2 ntk:4",
    )
    parser.add_argument("--length", type=int, required=True, help="tokens it shall work at")
    parser.add_argument("--model", metavar="DIR_OR_HUB_NAME", help="(this package's nano BLOOM)")
    parser.add_argument(
        "--methods", nargs="+", default=(), metavar="METHOD", help="candidates, such as ntk:4"
    )
    parser.add_argument("--records", type=int, default=8, help="of lines (%(default)s)")
    parser.add_argument("--windows", type=int, default=4, help="of prose (%(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="of the records (%(default)s)")
    parser.add_argument("--train-length", type=int, help="tokens trained at (from the config)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--output", metavar="FOLDER", help="keep all single answers there")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _run(options: argparse.Namespace) -> None:
    from rich.console import Console

    from ntk_alibi import _checks
    from ntk_alibi.cli.evaluate import unfinished
    from ntk_alibi.evaluation.comparing import tuning
    from ntk_alibi.evaluation.harness import run as harness
    from ntk_alibi.evaluation.report import tables
    from ntk_alibi.models import load
    from ntk_alibi.models.loading import NANO_BLOOM

    for name in ("length", "records", "windows"):
        _checks.integer(f"--{name}", getattr(options, name), minimum=1)
    model, tokenizer, train_length = load(options.model, options.dtype)
    wanted = tuning.Search(
        options.length,
        options.train_length or train_length,
        tuple(options.methods),
        options.records,
        options.windows,
        options.seed,
    )
    name = options.model or NANO_BLOOM
    with unfinished(options.output) as folder:
        found = tuning.search(model, tokenizer, wanted, Path(folder), quiet=options.json, name=name)
    if not harness.is_first_process():
        return
    if options.json:
        print(json.dumps(found))
        return
    console = Console()
    console.print(tables.tuning_table(found))
    fresh = found["fresh"]
    console.print(f"chosen: {found['chosen']}, in {100 * found['sure']:.0f} % of resamplings")
    for method, entry in fresh.items():
        accuracy, low, high = (100 * entry[key] for key in ("accuracy", "low", "high"))
        console.print(f"on records drawn anew, {method}: {accuracy:.0f} % ({low:.0f}-{high:.0f})")
    if math.isnan(found["candidates"][0]["half_width"]):
        console.print("one window of prose says nothing about the spread of its nats")
