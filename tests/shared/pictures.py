"""Every picture with small values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

import ntk_alibi as na
from attention_checks import pair_mask
from ntk_alibi import plots
from ntk_alibi.evaluation import Summary
from ntk_alibi.fused.forward import Stats
from ntk_alibi.plots.study import perplexity_curves

METHODS = ["original", "ntk:2", "ntk:4"]


def summary() -> Summary:
    retrieval, by_distance, perplexity = [], [], []
    for number, method in enumerate(METHODS):
        for multiple in (1.0, 2.0, 4.0):
            accuracy = 1.0 - 0.2 * multiple / (1 + number)
            cell = {"task": "lines", "method": method, "accuracy": accuracy, "cases": 64}
            interval = {"low": accuracy - 0.05, "high": accuracy + 0.03}
            retrieval.append({**cell, **interval, "multiple": multiple})
            by_distance.append({**cell, **interval, "begin": multiple - 1, "end": multiple})
            difference = 0.01 * number * multiple
            values = {"nats": 2.7 + difference, "difference": difference, "half_width": 0.005}
            perplexity.append({"method": method, "begin": multiple, "end": 2 * multiple, **values})
    by_distance.append({**by_distance[0], "begin": 4.0, "end": 5.0, "accuracy": None})
    return Summary(
        2048, METHODS, retrieval=retrieval, by_distance=by_distance, perplexity=perplexity
    )


def stats() -> Any:
    return Stats(np.array([[1, 6, 9]]), np.array([[10, 10, 9]]))


@functools.cache
def random_model() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.BloomConfig(
            vocab_size=99, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.4
        )
        return transformers.BloomForCausalLM(config).eval()


class Letters:
    """A tokenizer of letters."""

    def __call__(self, text: str, return_tensors: str) -> transformers.BatchEncoding:
        assert return_tensors == "pt"
        ids = torch.tensor([[ord(letter) % 99 for letter in text]], dtype=torch.long)
        return transformers.BatchEncoding({"input_ids": ids})

    def decode(self, ids: list[int]) -> str:
        return f"<{ids[0]}>"


def weights_of(text: str, scaling: Any = None) -> Any:
    """Return weights (layers, heads, queries, keys) of the model that transformers computes."""
    model = random_model()
    with na.patch(model, scaling, attention="eager"), torch.no_grad():
        found = model(**Letters()(text, "pt"), output_attentions=True).attentions
    return torch.cat(found).numpy()


PICTURES: dict[str, Callable[..., Axes]] = {
    "accuracy_curves": lambda **k: plots.accuracy_curves(summary(), "lines", **k),
    "accuracy_curves_by_distance": lambda **k: plots.accuracy_curves(
        summary(), "lines", by="distance", **k
    ),
    "alibi_rows": lambda **k: plots.alibi_rows(
        {
            form: na.precision.alibi_row(0.7, 512, "bfloat16", form)[-40:]
            for form in ("absolute", "relative")
        },
        **k,
    ),
    "attention_map": lambda **k: plots.attention_map(
        random_model(), Letters(), "letters", head=2, **k
    ),
    "benchmark_curves": lambda **k: plots.benchmark_curves(
        [128, 256, 512],
        {"theirs": [1e-3, 4e-3, None], "plain": [1e-3, 3e-3, 9e-3], "ours": [4e-4, 1e-3, 3e-3]},
        ours=["ours"],
        baseline="plain",
        limit=[2e-4, 8e-4, 3.2e-3],
        **k,
    ),
    "bias_by_distance": lambda **k: plots.bias_by_distance(
        [na.ALiBi(4), na.ALiBi(4, na.NTK(4.0))], 64, **k
    ),
    "bias_maps": lambda **k: plots.bias_maps(na.ALiBi(6), 12, 16, **k),
    "block_mask": lambda **k: plots.block_mask(pair_mask("prefix", (1, 1, 500, 700), 2), **k),
    "blocks": lambda **k: plots.blocks(stats(), **k),
    "exact_positions": lambda **k: plots.exact_positions(
        {
            name: {n: na.precision.exact_fraction(name, n) for n in (128, 512, 2048, 8192)}
            for name in ("bfloat16", "float16")
        },
        **k,
    ),
    "extrapolation_curves": lambda **k: plots.extrapolation_curves(
        [512, 1024, 2048],
        {"a": [2.7, 3.1, 4.0], "b": [2.7, 2.6, np.nan]},
        half_widths={"b": [0.2, 0.2, 0.2]},
        train_length=512,
        **k,
    ),
    "intervals": lambda **k: plots.intervals(24, window=6, sink=2, **k),
    "mask": lambda **k: plots.mask(12, 16, causal_block=4, **k),
    "perplexity_curves": lambda **k: perplexity_curves(summary(), **k),
    "receptive_field": lambda **k: plots.receptive_field(
        [na.ALiBi(8), na.ALiBi(8, na.NTK(4.0))], longest=1024, **k
    ),
    "rounded_positions": lambda **k: plots.rounded_positions(
        {name: na.precision.last_positions(name, 1024) for name in ("bfloat16", "float32")}, **k
    ),
    "slopes": lambda **k: plots.slopes(12, [None, na.Interpolation(4.0), na.NTK(4.0)], **k),
}


def luminance(color: Any) -> float:
    """Return the relative luminance of WCAG 2.1."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
