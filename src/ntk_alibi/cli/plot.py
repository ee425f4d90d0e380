"""Subcommand `ntk-alibi plot`: draws one picture per call, as PNG, SVG or PDF.

`PICTURES` holds an entry for each picture: a summary, an example, its options and its function.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import ntk_alibi
from ntk_alibi import ALiBi, _checks, _files, plots, precision
from ntk_alibi.cli import subcommand
from ntk_alibi.methods import Method
from ntk_alibi.plots.style import MOST_CELLS, check_most

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Picture:
    """A picture that the command draws.

    Attributes:
        summary: one line for --help.
        example: arguments behind the picture's name.
        add_options: function that adds the picture's options to a parser.
        draw: function that draws the picture with the parsed options.
    """

    summary: str
    example: str
    add_options: Callable[[argparse.ArgumentParser], None]
    draw: Callable[[argparse.Namespace], Axes]


def register(commands: Any) -> None:
    """Add the subcommand, and below it one subcommand for each picture."""
    summary = "draw slopes, biases, masks and skipped blocks"
    parser = subcommand.add(
        commands,
        "plot",
        _run,
        summary,
        "ntk-alibi plot slopes 16 --output slopes.svg",
        extra="plot",
    )
    pictures = parser.add_subparsers(required=True, metavar="PICTURE", dest="picture")
    for name, picture in PICTURES.items():
        example = f"ntk-alibi plot {name} {picture.example}"
        picture_parser = subcommand.add(
            pictures, name, _run, picture.summary, example, extra="plot"
        )
        picture.add_options(picture_parser)
        picture_parser.add_argument(
            "--theme",
            choices=("light", "dark"),
            default="light",
            help="colors of the picture's ground and lines (default: %(default)s)",
        )
        picture_parser.add_argument("--title", help="title above the picture")
        picture_parser.add_argument(
            "-o",
            "--output",
            metavar="FILE",
            help=f"PNG, SVG or PDF file (default: ntk-alibi-{name}.png)",
            type=Path,
        )


def _run(options: argparse.Namespace) -> None:
    path = options.output or Path(f"ntk-alibi-{options.picture}.png")
    subcommand.check_picture("--output", path)
    subcommand.check_lengths(options)
    with plots.style(options.theme):
        import matplotlib.pyplot as plt

        plt.switch_backend("agg")  # there may be no display
        axes = PICTURES[options.picture].draw(options)
        if options.title is not None:
            axes.set_title(options.title)
        figure = axes.get_figure(root=True)
        assert figure is not None
        with _files.replacing(path) as file:
            figure.savefig(file, dpi=150)
        plt.close(figure)
    print(f"picture: {path}")


def _slopes_options(parser: argparse.ArgumentParser) -> None:
    _heads_argument(parser)
    subcommand.methods_option(
        parser,
        "--methods",
        "methods, see below (default: original interpolation:4 ntk:4)",
        nargs="+",
        default=["original", "interpolation:4", "ntk:4"],
    )
    subcommand.length_option(parser)
    subcommand.train_length_option(parser)


def _slopes(options: argparse.Namespace) -> Axes:
    scalings = {method.name: method.scaling for method in _methods(options)}
    return plots.slopes(options.num_heads, scalings, length=options.length)


def _field_options(parser: argparse.ArgumentParser) -> None:
    _slopes_options(parser)
    subcommand.number_option(
        parser,
        "--shares",
        "SHARE",
        "shares of the greatest weight (default: 1/e and 0.01)",
        kind=float,
        nargs="+",
    )


def _field(options: argparse.Namespace) -> Axes:
    biases = {m.name: ALiBi(options.num_heads, m.scaling) for m in _methods(options)}
    shares = {} if options.shares is None else {"shares": options.shares}
    return plots.receptive_field(biases, length=options.length, **shares)


def _bias_options(parser: argparse.ArgumentParser) -> None:
    _heads_argument(parser)
    _method_option(parser)
    _lengths_options(parser, 32)
    parser.add_argument(
        "--sides",
        choices=("causal", "symmetric", "halves"),
        default="causal",
        help="keys that a query sees: those behind it, both sides alike, or one side for each half "
        "of the heads (default: %(default)s)",
    )
    subcommand.number_option(
        parser, "--heads", "HEAD", "heads to draw, from 1 on (default: all)", nargs="+"
    )
    parser.add_argument(
        "--quantity",
        choices=("bias", "weight"),
        default="bias",
        help="what is drawn: the bias, or its softmax (default: %(default)s)",
    )


def _bias(options: argparse.Namespace) -> Axes:
    bias = ALiBi(options.num_heads, _method(options).scaling, sides=options.sides)
    return plots.bias_maps(
        bias, options.queries, options.keys, heads=options.heads, quantity=options.quantity
    )


def _mask_options(parser: argparse.ArgumentParser) -> None:
    _lengths_options(parser, 32)
    _visibility_options(parser)
    parser.add_argument("--not-causal", action="store_true", help="show keys ahead, too")
    parser.add_argument("--intervals", action="store_true", help="draw strokes, not cells")


def _mask(options: argparse.Namespace) -> Axes:
    draw = plots.intervals if options.intervals else plots.mask
    visibility = _visibility(options)
    if options.not_causal:
        visibility["causal"] = False
    return draw(options.queries, options.keys, **visibility)


def _blocks_options(parser: argparse.ArgumentParser) -> None:
    _heads_argument(parser)
    _method_option(parser)
    _visibility_options(parser)
    subcommand.number_option(parser, "--queries", "N", "number of tokens", 2048)
    subcommand.number_option(parser, "--head-dim", "N", "channels per head", 64)
    subcommand.number_option(
        parser,
        "--skip-tolerance",
        "SHARE",
        "greatest share of a query's softmax mass that may be skipped",
        0.0,
        kind=float,
    )
    subcommand.number_option(parser, "--seed", "N", "seed of the random inputs", 0)


def _blocks(options: argparse.Namespace) -> Axes:
    heads = _checks.num_heads(options.num_heads)
    tokens = _checks.integer("--queries", options.queries, minimum=1)
    width = _checks.integer("--head-dim", options.head_dim, minimum=1)
    seed = _checks.integer("--seed", options.seed, minimum=0)
    inputs = 3 * heads * tokens * width
    check_most(
        "inputs of the kernel (3 x heads x --queries x --head-dim)", inputs, _checks.MOST_NUMBERS
    )
    rng = np.random.default_rng(seed)
    query, key, value = rng.standard_normal((3, 1, heads, tokens, width), np.float32)
    stats = ntk_alibi.attention(
        query,
        key,
        value,
        ALiBi(heads, _method(options).scaling),
        skip_tolerance=options.skip_tolerance,
        return_stats=True,
        **_visibility(options),
    )[1]
    axes = plots.blocks(stats)
    axes.set_title(f"Key blocks read by the kernel: {tokens} random tokens, {options.method}")
    return axes


def _precision_options(parser: argparse.ArgumentParser) -> None:
    subcommand.number_option(parser, "--queries", "N", "number of positions", 4096)
    parser.add_argument(
        "--slope",
        type=float,
        metavar="M",
        default=2**-0.5,
        help="slope of the bias (default: %(default).3f)",
    )


def _precision(options: argparse.Namespace) -> Axes:
    import matplotlib.pyplot as plt

    names = ("bfloat16", "float16", "float32")
    tokens = _checks.integer("--queries", options.queries, minimum=1)
    check_most("--queries", tokens, MOST_CELLS)
    positions = {name: precision.last_positions(name, tokens) for name in names}
    windows = [2**k for k in range(7, 18)]
    shares = {name: {n: precision.exact_fraction(name, n) for n in windows} for name in names}
    exact = precision.alibi_row(options.slope, tokens, "float64", "relative")
    absolute = precision.alibi_row(options.slope, tokens, "bfloat16", "absolute")
    rows = {"absolute, bfloat16": absolute[-100:], "exact": exact[-100:]}
    _, (first, second, third) = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
    plots.exact_positions(shares, second)
    plots.alibi_rows(rows, third)
    return plots.rounded_positions(positions, first)


def _heads_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("num_heads", type=int, help="number of attention heads")


def _method_option(parser: argparse.ArgumentParser) -> None:
    subcommand.methods_option(
        parser, "--method", "method, see below (default: %(default)s)", default="original"
    )
    subcommand.train_length_option(parser)


def _methods(options: argparse.Namespace) -> list[Method]:
    methods = [
        subcommand.bias_method("--methods", name, options.train_length) for name in options.methods
    ]
    subcommand.check_length_of(options, methods)
    return methods


def _method(options: argparse.Namespace) -> Method:
    return subcommand.bias_method("--method", options.method, options.train_length)


def _lengths_options(parser: argparse.ArgumentParser, default: int) -> None:
    subcommand.number_option(parser, "--queries", "N", "number of queries", default)
    subcommand.number_option(parser, "--keys", "N", "number of keys (default: as many as queries)")


def _visibility_options(parser: argparse.ArgumentParser) -> None:
    subcommand.number_option(
        parser, "--window", "TOKENS", "number of latest tokens that a query sees"
    )
    subcommand.number_option(
        parser, "--causal-block", "TOKENS", "block length of block-wise attention"
    )
    subcommand.number_option(
        parser, "--sink", "TOKENS", "number of first tokens that all queries see"
    )


def _visibility(options: argparse.Namespace) -> dict[str, Any]:
    """Return the mask options that the user set, as keyword arguments of `attention`."""
    values = {name: getattr(options, name) for name in ("window", "causal_block", "sink")}
    return {name: value for name, value in values.items() if value is not None}


PICTURES = {
    "slopes": Picture(
        "draw the slope of each head under each method",
        "16 --methods original ntk:4 --output slopes.svg",
        _slopes_options,
        _slopes,
    ),
    "bias": Picture(
        "draw the bias of each head for all queries and keys",
        "8 --method ntk:4 --queries 64 --output bias.png",
        _bias_options,
        _bias,
    ),
    "field": Picture(
        "draw how far each head reaches: where its weight falls to 1/e and to a hundredth",
        "16 --methods ntk:4 --theme dark --output field.png",
        _field_options,
        _field,
    ),
    "precision": Picture(
        "draw positions and biases rounded to a dtype",
        "--queries 4096 --output precision.png",
        _precision_options,
        _precision,
    ),
    "mask": Picture(
        "draw which keys each query sees",
        "--queries 24 --window 8 --sink 2 --output mask.svg",
        _mask_options,
        _mask,
    ),
    "blocks": Picture(
        "draw the key blocks that the kernel reads and skips, on random inputs",
        "16 --queries 4096 --output blocks.png",
        _blocks_options,
        _blocks,
    ),
}
