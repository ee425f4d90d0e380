"""Subcommand `ntk-alibi bench`."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np

import ntk_alibi
from ntk_alibi import _checks
from ntk_alibi.cli import subcommand
from ntk_alibi.cli.timing import Call, interleaved
from ntk_alibi.methods import as_scaling

#: In each round, a way of attention is repeated for at least so many seconds.
SECONDS_PER_TURN = 0.05

#: Ways that form a matrix of queries x keys are left out where it would have more bytes.
MATRIX_BYTES = 2**30

DEFAULT = "ntk_alibi"


def add_command(commands: Any) -> None:
    """Add the subcommand."""
    summary = "time attention with an ALiBi bias on this machine, beside NumPy and torch"
    example = "ntk-alibi bench --lengths 1024 8192 --method ntk:4"
    parser = subcommand.add(commands, "bench", _run, summary, example)
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=[512, 2048, 8192],
        metavar="TOKENS",
        help="lengths of the texts (default: 512 2048 8192)",
    )
    subcommand.number_option(parser, "--heads", "HEADS", "number of attention heads", 16)
    subcommand.number_option(parser, "--head-dim", "CHANNELS", "channels of a head", 64)
    subcommand.methods_option(
        parser, "method", "method of the slopes, see below (default: %(default)s)",
        default="original",
    )  # fmt: skip
    subcommand.train_length_option(parser)
    subcommand.number_option(
        parser, "--rounds", "ROUNDS", "turns of each way, whose median is printed", 5
    )
    subcommand.json_option(parser)


def _run(options: argparse.Namespace) -> None:
    from ntk_alibi.evaluation.report.markdown import describe_machine

    scaling = as_scaling(options.method, options.train_length, name="method")
    width = _checks.integer("head_dim", options.head_dim, minimum=1, maximum=_checks.MAX_HEAD_DIM)
    heads = _checks.integer("heads", options.heads, minimum=1)
    most = _checks.MAX_ENTRIES // (3 * heads * width)
    for length in options.lengths:
        _checks.integer("lengths", length, minimum=1, maximum=max(most, 1))
    _checks.integer("rounds", options.rounds, minimum=1)
    bias = ntk_alibi.ALiBi(heads, scaling)
    rows = [row for length in options.lengths for row in _measured(bias, length, options)]
    header = ["tokens", "way", "ms", "times ntk_alibi", "blocks read, %"]
    cells = [[_cell(value) for value in row.values()] for row in rows]
    machine = describe_machine()
    what = f"Causal attention, float32, {options.heads} heads of {options.head_dim}, {bias}"
    result = {"machine": machine, "rows": rows}
    subcommand.print_rows(options, result, header, cells, above=f"{machine}\n\n{what}:\n\n")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _measured(
    bias: ntk_alibi.ALiBi, length: int, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield one row of the table for each way of attention, on a text of `length` tokens."""
    random = np.random.default_rng(0)
    shape = (3, 1, options.heads, length, options.head_dim)
    arrays: Any = random.standard_normal(shape, dtype=np.float32)
    query, key, value = arrays
    _, stats = ntk_alibi.attention(query, key, value, bias, return_stats=True)
    read = {DEFAULT: float(100 * stats.visited.sum() / stats.visible.sum())}
    ways = {
        DEFAULT: lambda: ntk_alibi.attention(query, key, value, bias),
        f"{DEFAULT}, every block": lambda: ntk_alibi.attention(
            query, key, value, bias, skip_tolerance=None
        ),
    }
    small = 4 * options.heads * length**2 <= MATRIX_BYTES
    dense = bias.tensor(length, length) if small else None
    if dense is not None:
        ways["NumPy, all pairs"] = with_numpy(arrays, dense)
    if importlib.util.find_spec("torch"):
        ways |= with_torch(arrays, dense)
    runtimes = {name: name.partition(",")[0].partition(" ")[0] for name in ways}
    seconds = interleaved(ways, options.rounds, SECONDS_PER_TURN, runtimes=runtimes)
    for way, time in seconds.items():
        yield {
            "tokens": length,
            "way": way,
            "milliseconds": 1e3 * time,
            "ratio": time / seconds[DEFAULT],
            "blocks_read_percent": read.get(way),
        }


def with_numpy(arrays: Any, dense: Any) -> Call:
    """Return a function that attends by NumPy's products, with the whole matrix of the bias."""
    query, key, value = arrays
    scale = np.float32(query.shape[3] ** -0.5)

    def call() -> Any:
        scores = scale * query @ key.swapaxes(2, 3)
        scores += dense
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        return scores @ value / scores.sum(-1, keepdims=True)

    return call


def with_torch(arrays: Any, dense: Any) -> dict[str, Call]:
    """Return functions that attend by torch's fused kernel: without a bias, and with its matrix.

    torch gets as many threads as this package uses. dense is None where there is no matrix.
    """
    import torch

    torch.set_num_threads(ntk_alibi.info()["threads"])
    attend = torch.nn.functional.scaled_dot_product_attention
    query, key, value = map(torch.from_numpy, arrays)
    ways: dict[str, Call] = {
        "torch SDPA, no bias": lambda: attend(query, key, value, is_causal=True)
    }
    if dense is not None:
        mask = torch.from_numpy(dense)
        ways["torch SDPA, bias of all pairs"] = lambda: attend(query, key, value, attn_mask=mask)
    return ways
