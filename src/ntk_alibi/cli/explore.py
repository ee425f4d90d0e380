"""Subcommand `ntk-alibi explore`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ntk_alibi import plots
from ntk_alibi.cli import subcommand
from ntk_alibi.plots.explorer import METHODS


def register(commands: Any) -> None:
    """Add the subcommand."""
    parser = subcommand.add(
        commands,
        "explore",
        _run,
        "write a page on which the attention weights of a model can be explored, for any browser",
        'ntk-alibi explore "Let there be light"\n'
        "  ntk-alibi explore prompt.txt --model bigscience/bloom-560m --layers 0 23 \\\n"
        "      --methods original ntk:2 ntk:4 --output weights.html",
        extra="explore",
    )
    parser.add_argument("text", help="text, or the name of a file with the text")
    parser.add_argument(
        "--model",
        metavar="DIR_OR_HUB_NAME",
        help="checkpoint folder or hub name (default: the embedded nano BLOOM)",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="METHOD",
        default=METHODS,
        help=f"methods to choose from (default: {' '.join(METHODS)})",
    )
    parser.add_argument(
        "--layers", type=int, nargs="+", help="layers to show, from 0 on (default: all)"
    )
    parser.add_argument(
        "--heads", type=int, nargs="+", help="heads to show, from 1 on (default: all)"
    )
    parser.add_argument(
        "--cells",
        type=int,
        help="cells along a map at most, which hold the greatest weight of several tokens "
        "(default: as many as fit into about 11 MB)",
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("ntk-alibi-explore.html"),
        help="HTML file (default: %(default)s)",
    )


def _run(options: argparse.Namespace) -> None:
    from ntk_alibi.models import load

    subcommand.check_picture("--output", options.output, (".html",))
    subcommand.check_methods(options.methods)
    text = _text(options.text)
    model, tokenizer, _ = load(options.model, options.dtype)
    page = plots.explore(
        model,
        tokenizer,
        text,
        options.methods,
        layers=options.layers,
        heads=options.heads,
        cells=options.cells,
    )
    page.save(options.output)
    print(f"page: {options.output} ({page.cells} cells of {page.step} tokens)")


def _text(given: str) -> str:
    """Return the contents of a file of this name, or the text itself."""
    path = Path(given)
    try:
        is_file = path.is_file()
    except OSError:  # too long for a name
        is_file = False
    return path.read_text("utf-8") if is_file else given
