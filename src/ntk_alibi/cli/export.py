"""Subcommand `ntk-alibi export`."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

from ntk_alibi.cli import subcommand
from ntk_alibi.engines import FORMATS
from ntk_alibi.methods import parse_method

#: Dtypes that at least one format can store.
_DTYPES = ("float32", "float16", "bfloat16", "q8_0")


def add_command(commands: Any) -> None:
    """Add the subcommand."""
    parser = subcommand.add(
        commands,
        "export",
        _run,
        "write a stretched model for another engine, such as llama.cpp",
        "ntk-alibi export --method max-bias:4 -o nano.gguf\n"
        "  ntk-alibi export --model bigscience/bloom-560m --method max-bias:4 \\\n"
        "      --dtype q8_0 -o bloom-560m-8k.gguf\n"
        "  llama-cli -m bloom-560m-8k.gguf -p 'Il était une fois'\n"
        "  ntk-alibi export --model bigscience/bloom-560m --method ntk:4 \\\n"
        "      -o bloom-560m-8k-onnx",
        extra="gguf",
    )
    subcommand.model_option(parser)
    subcommand.methods_option(
        parser, "method", "method, see below (default: the one in the model's configuration)"
    )
    parser.add_argument(
        "--format",
        metavar="NAME",
        help=f"{', '.join(FORMATS)} (default: the one that the path ends with)",
    )
    parser.add_argument(
        "--dtype",
        choices=_DTYPES,
        default="float32",
        help="dtype of the weights (default: float32)",
    )
    parser.add_argument(
        "-o", "--output", metavar="PATH", required=True, help="file or folder to write"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")


def _run(options: argparse.Namespace) -> None:
    from ntk_alibi.engines import export
    from ntk_alibi.models.loading import load_as, load_outline

    export.choose_format(options.output, options.format, options.overwrite)
    if options.method is not None:
        parse_method(options.method, 2)
    saved = options.method is None  # a given one replaces the checkpoint's own
    outline, tokenizer = load_outline(options.model, saved=saved)
    request = {
        "format": options.format,
        "dtype": options.dtype,
        "tokenizer": tokenizer,
        "overwrite": options.overwrite,
    }
    export.make_request(outline, options.output, options.method, **request)
    # torch has no q8_0; the other dtypes are loaded as they are written, which saves memory.
    loaded = "float32" if options.dtype == "q8_0" else options.dtype
    model, _ = load_as(options.model, loaded, saved=saved)
    exported = export.export(
        model,
        options.output,
        options.method,
        **request,
        progress=partial(print, file=sys.stderr, flush=True),
    )
    print(exported)
