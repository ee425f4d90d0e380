"""Subcommand `ntk-alibi lm-eval`."""

from __future__ import annotations

import argparse
from typing import Any

from ntk_alibi.cli import subcommand

EXAMPLE = """ntk-alibi lm-eval --model ntk_alibi \\
      --model_args pretrained=bigscience/bloom-1b7,method=ntk:2 \\
      --tasks longeval_lines_200 \\
      --metadata data=LongChat/longeval/evaluation \\
      --output_path results --log_samples
  ntk-alibi lm-eval run --help        (help of the harness)"""


def add_command(commands: Any) -> None:
    """Add the subcommand."""
    parser = subcommand.add(
        commands,
        "lm-eval",
        _run,
        "run lm-evaluation-harness with stretched models, on its tasks or LongEval's files",
        EXAMPLE,
        extra="lm-eval",
        prefix_chars="+",  # no option begins with "+": all arguments go to the harness
        add_help=False,
    )
    parser.add_argument("arguments", nargs="*", help="arguments of the harness's command lm-eval")
    parser.set_defaults(show_help=parser.print_help)


def _run(options: argparse.Namespace) -> None:
    if options.arguments in ([], ["-h"], ["--help"]):
        options.show_help()
        return
    from ntk_alibi.evaluation.harness.command import main

    main(options.arguments)
