"""Subcommand `ntk-alibi slopes`."""

from __future__ import annotations

import argparse
import math
from typing import Any

from ntk_alibi.cli import subcommand
from ntk_alibi.inspection.effects import slopes_at
from ntk_alibi.methods import as_scaling
from ntk_alibi.scaling import is_dynamic


def add_command(commands: Any) -> None:
    """Add the subcommand."""
    summary = "print ALiBi's slopes, original or scaled"
    parser = subcommand.add(commands, "slopes", _run, summary, "ntk-alibi slopes 16 --method ntk:4")
    parser.add_argument("num_heads", type=int, help="number of attention heads")
    subcommand.methods_option(
        parser, "method", "method, see below (default: %(default)s)", default="original"
    )
    subcommand.number_option(
        parser, "--length", "TOKENS", "text length in tokens, for dynamic methods"
    )
    subcommand.train_length_option(parser)
    subcommand.json_option(parser)


def _run(options: argparse.Namespace) -> None:
    scaling = as_scaling(options.method, options.train_length, name="method")
    dynamic = is_dynamic(scaling)
    if dynamic and options.length is None:
        raise ValueError(f"--length must be given with a dynamic method, got only {options.method}")
    if not dynamic and options.length is not None:
        raise ValueError(
            "--length must be given with a dynamic method, such as dynamic-ntk, and no "
            f"other, got {options.method}"
        )
    slopes = slopes_at(options.num_heads, scaling, options.length).tolist()
    reaches = [f"{8 / slope if slope else math.inf:.0f}" for slope in slopes]
    header = ["head", "slope", "tokens until the bias is -8"]
    rows = [
        [str(head), f"{slope:.6g}", reach]
        for head, (slope, reach) in enumerate(zip(slopes, reaches, strict=True), 1)
    ]
    subcommand.print_rows(options, slopes, header, rows)
