"""Subcommand `ntk-alibi explore`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ntk_alibi import _files
from ntk_alibi.cli import subcommand


def register(commands: Any) -> None:
    """Add the subcommand."""
    parser = subcommand.add(
        commands,
        "explore",
        _run,
        "write a web page that shows the attention weights of a model",
        'ntk-alibi explore --text "Let there be light"\n'
        "  ntk-alibi explore prompt.txt --model bigscience/bloom-560m --layers 0 23 \\\n"
        "      --methods original ntk:2 ntk:4 --output weights.html",
        extra="explore",
    )
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("file", nargs="?", type=Path, help="file with the text, in UTF-8")
    given.add_argument("--text", help="the text itself")
    subcommand.model_option(parser)
    subcommand.methods_option(
        parser,
        "methods",
        "methods to choose from, see below (default: original, and ntk and interpolation with "
        "factors 2, 4 and 8)",
    )
    subcommand.number_option(
        parser, "--layers", "LAYERS", "layers to show, from 0 on (default: all)", nargs="+"
    )
    subcommand.number_option(
        parser, "--heads", "HEADS", "heads to show, from 1 on (default: all)", nargs="+"
    )
    subcommand.number_option(
        parser,
        "--cells",
        "CELLS",
        "greatest number of cells along a map; for longer texts, a cell shows the greatest weight "
        "of several tokens (default: as many as fit into about 11 MB)",
    )
    subcommand.dtype_option(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("ntk-alibi-explore.html"),
        help="HTML file (default: %(default)s)",
    )


def _run(options: argparse.Namespace) -> None:
    from ntk_alibi import plots
    from ntk_alibi.models import load
    from ntk_alibi.models.loading import load_outline
    from ntk_alibi.plots.explorer import FORMATS, METHODS, checked

    subcommand.check_picture("--output", options.output, FORMATS)
    subcommand.check_methods(options.methods or (), None)
    text = options.text if options.file is None else _read(options.file)
    outline, tokenizer, _ = load_outline(options.model)
    wanted = tokenizer, text, options.methods or METHODS
    limits = {"layers": options.layers, "heads": options.heads, "cells": options.cells}
    checked(outline, *wanted, **limits)
    model, *_ = load(options.model, options.dtype)
    page = plots.explore(model, *wanted, **limits)
    page.save(options.output)
    tokens = "1 token" if page.step == 1 else f"{page.step} tokens"
    print(f"page: {options.output} ({page.cells} cells of {tokens})")


def _read(path: Path) -> str:
    with _files.readable("a file of text in UTF-8", str(path)):
        try:
            return path.read_text("utf-8")
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{error} (--text takes the text itself)") from error
