"""Benchmark of models with random weights, stock and patched: seconds and memory of a pass.

`python -m benchmarks.models NAME STATE DTYPE LENGTHS` prints the memory that passes of one need.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

import ntk_alibi as na
from benchmarks import ROOT
from benchmarks.memory import peak, resident
from benchmarks.problems import dtype_name
from ntk_alibi.cli.timing import Call, interleaved
from ntk_alibi.evaluation.report.markdown import describe_machine, table

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
VOCABULARY = 1000

#: States of a model.
STOCK, PATCHED = "stock", "patched"

SECONDS_PER_TURN = 0.3
SLOW = 10.0  # seconds of a pass from which the round that warms up is the only one

#: Matrices of heads x length x length that a stock pass holds at once at most, and the share of the
#: free memory up to which it is run.
MATRICES, MOST_OF_FREE = 4, 0.7


@dataclass(frozen=True)
class Shape:
    """The shape of a model with random weights.

    Attributes:
        heads: number of heads.
        head_dim: channels of a head.
        layers: layers that are run, and layers of the whole model.
        build: function of a number of layers and a vocabulary, which makes the model.
        vocabulary: tokens of the whole model's vocabulary.
        options: further arguments of a pass.
        told_heads: heads as the table shows them, if a part of the model's is run.
    """

    heads: int
    head_dim: int
    layers: tuple[int, int]
    build: Callable[[int, int], Any]
    vocabulary: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    told_heads: str = ""

    def __str__(self) -> str:
        run, whole = self.layers
        layers = f"{run} layers" if run == whole else f"{run} of {whole} layers"
        return f"{self.told_heads or self.heads} x {self.head_dim}, {layers}"


def _remote(module: str, model: str, config: str, vocabulary: int, **sizes: Any) -> Any:
    """Make a model of the abridged remote code in tests/shared, loaded by its file as such code is.

    The published code would have to be downloaded. Weights have the standard deviation of BERT's.
    """
    path = ROOT / f"tests/shared/remote_models/{module}.py"
    spec = importlib.util.spec_from_file_location(f"remote_{module}", path)
    assert spec, path
    assert spec.loader, path
    code = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
    spec.loader.exec_module(code)
    made = getattr(code, model)(getattr(code, config)(vocab_size=vocabulary, **sizes))
    for parameter in made.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    return made


#: What makes each model. Models of remote code are a module, a model and a configuration.
SHAPES = {
    "jina-embeddings-v2-small-en": Shape(
        8, 64, (4, 4),
        lambda layers, vocabulary: _remote(
            "jina_bert", "JinaBertModel", "JinaBertConfig", vocabulary,
            hidden_size=512, num_hidden_layers=layers, num_attention_heads=8,
            intermediate_size=2048, max_position_embeddings=8192,
        ),
        30528,
    ),
    "DNABERT-2": Shape(
        12, 64, (3, 12),
        lambda layers, vocabulary: _remote(
            "mosaic_bert", "BertModel", "BertConfig", vocabulary,
            hidden_size=768, num_hidden_layers=layers, num_attention_heads=12,
            intermediate_size=3072, alibi_starting_size=512,
        ),
    ),
    "T5-base, encoder": Shape(
        12, 64, (3, 12),
        lambda layers, vocabulary: transformers.T5EncoderModel(transformers.T5Config(
            vocab_size=vocabulary, d_model=768, d_kv=64, d_ff=3072, num_layers=layers, num_heads=12
        )),
    ),
    "all-mpnet-base-v2": Shape(
        12, 64, (3, 12),
        lambda layers, vocabulary: transformers.MPNetModel(transformers.MPNetConfig(
            vocab_size=vocabulary, num_hidden_layers=layers,
            max_position_embeddings=max(LENGTHS) + 2,
        )),
    ),
    "Baichuan-13B": Shape(
        8, 128, (2, 40),
        lambda layers, vocabulary: _remote(
            "baichuan", "BaichuanModel", "BaichuanConfig", vocabulary,
            hidden_size=1024, num_hidden_layers=layers, num_attention_heads=8,
            intermediate_size=2739, model_max_length=4096,
        ),
        options={"use_cache": False}, told_heads="8 of 40",
    ),
    "BLOOM-560m": Shape(
        16, 64, (3, 24),
        lambda layers, vocabulary: transformers.BloomModel(transformers.BloomConfig(
            vocab_size=vocabulary, hidden_size=1024, n_head=16, n_layer=layers
        )),
        options={"use_cache": False},
    ),
    "BLOOM-7B1": Shape(
        32, 128, (1, 30),
        lambda layers, vocabulary: transformers.BloomModel(transformers.BloomConfig(
            vocab_size=vocabulary, hidden_size=4096, n_head=32, n_layer=layers
        )),
        250880, {"use_cache": False},
    ),
    "MPT-7B": Shape(
        32, 128, (1, 32),
        lambda layers, vocabulary: transformers.MptModel(transformers.MptConfig(
            vocab_size=vocabulary, d_model=4096, n_heads=32, n_layers=layers, max_seq_len=2048
        )),
        50432, {"use_cache": False},
    ),
    "T5-XXL, encoder": Shape(
        64, 64, (1, 24),
        lambda layers, vocabulary: transformers.T5EncoderModel(transformers.T5Config(
            vocab_size=vocabulary, d_model=4096, d_kv=64, d_ff=10240, num_layers=layers,
            num_heads=64, feed_forward_proj="gated-gelu",
        )),
        32128,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A table: its models, their dtype, their lengths, and whether it is of all their layers."""

    names: tuple[str, ...]
    dtype: torch.dtype
    lengths: tuple[int, ...] = LENGTHS
    whole: bool = False


JINA = "jina-embeddings-v2-small-en"
LARGE = ("BLOOM-7B1", "MPT-7B", "T5-XXL, encoder")

#: The parts, by the names of their sections.
PARTS = {
    "models": Part(tuple(name for name in SHAPES if name not in LARGE), torch.float32),
    "models-bfloat16": Part(
        (JINA, "T5-base, encoder", "all-mpnet-base-v2", "BLOOM-560m"), torch.bfloat16
    ),
    "models-large": Part((*LARGE, JINA), torch.bfloat16, (512, 2048, 8192), whole=True),
}


def run(rounds: int, longest: int, part: Part) -> str:
    """Run a part of the benchmark and return its table as Markdown.

    Args:
        rounds: turns of each model.
        longest: length in tokens above which nothing is run.
        part: what is run.
    """
    busy, most = os.getloadavg()[0], MOST_OF_FREE * _free_memory()
    head = (
        f"{describe_machine()}; {busy:.1f} other processes ran before. {dtype_name(part.dtype)}, "
        f"B = 1; medians of {rounds} interleaved rounds, one round where a pass takes more than "
        f"{SLOW:.0f} s."
    )
    rows = []
    for name in part.names:
        models = {state: make(name, state, part.dtype) for state in (STOCK, PATCHED)}
        lengths = {
            state: [
                length
                for length in part.lengths
                if length <= longest and _bytes(name, state, part.dtype, length) <= most
            ]
            for state in models
        }
        memory = {
            state: _in_child(name, state, part.dtype, runs) for state, runs in lengths.items()
        }
        for length in lengths[PATCHED]:
            runs = {state: model for state, model in models.items() if length in memory[state]}
            seconds = _seconds(name, runs, length, rounds)
            cells = _cells(name, part, seconds, memory, length)
            rows.append([f"{name}, {length}", *cells])
    header = ["", "stock, s", "patched, s", "ratio", "stock, MB", "patched, MB"]
    if part.whole:
        header += ["weights, MB", "cache, MB"]
    shapes = "; ".join(f"{name}: {SHAPES[name]}" for name in part.names)
    return f"{head}\n\nHeads and layers: {shapes}.\n\n{table(header, rows)}"


def _bytes(name: str, state: str, dtype: torch.dtype, length: int) -> int:
    """Return about how many bytes a pass needs at most."""
    if state == PATCHED:
        return 0
    return MATRICES * dtype.itemsize * SHAPES[name].heads * length**2


def _seconds(name: str, runs: dict[str, Any], length: int, rounds: int) -> dict[str, float]:
    """Measure the seconds of a pass of the models that run at a length."""
    calls = {state: forward(name, model, length) for state, model in runs.items()}
    seconds = interleaved(calls, 1, 0.0, warm_up=False)
    if max(seconds.values()) < SLOW:
        seconds = interleaved(calls, rounds, SECONDS_PER_TURN, warm_up=False)
    return seconds


def _cells(
    name: str,
    part: Part,
    seconds: dict[str, float],
    memory: dict[str, dict[int, int]],
    length: int,
) -> list[str]:
    """Format seconds of both states, their ratio, and memory of both states and of the model."""
    run, whole = SHAPES[name].layers
    factor = whole / run if part.whole else 1.0
    patched = f"{factor * seconds[PATCHED]:.3g}", f"{memory[PATCHED][length] / 1e6:.0f}"
    model = _model_cells(name, part.dtype, length) if part.whole else []
    if STOCK not in seconds:
        about = f"not run, about {_bytes(name, STOCK, part.dtype, length) / 1e6:.0f}"
        return ["", patched[0], "", about, patched[1], *model]
    ratio = f"{seconds[STOCK] / seconds[PATCHED]:.2f}"
    stock = f"{factor * seconds[STOCK]:.3g}", f"{memory[STOCK][length] / 1e6:.0f}"
    return [stock[0], patched[0], ratio, stock[1], patched[1], *model]


def _model_cells(name: str, dtype: torch.dtype, length: int) -> list[str]:
    """Format the bytes of the whole model's weights, and of its cache of some tokens."""
    shape = SHAPES[name]
    with torch.device("meta"):
        model = shape.build(shape.layers[1], shape.vocabulary)
    weights = dtype.itemsize * sum(parameter.numel() for parameter in model.parameters())
    a_token = 2 * shape.layers[1] * shape.heads * shape.head_dim * dtype.itemsize
    has_cache = "use_cache" in shape.options
    return [f"{weights / 1e6:.0f}", f"{length * a_token / 1e6:.0f}" if has_cache else ""]


def make(name: str, state: str, dtype: torch.dtype = torch.float32) -> Any:
    """Make a model of `SHAPES` in a state."""
    torch.manual_seed(0)
    shape = SHAPES[name]
    model = shape.build(shape.layers[0], VOCABULARY).eval().to(dtype)
    if state == PATCHED:
        na.patch(model)
    return model


def forward(name: str, model: Any, length: int) -> Call:
    """Return a call of a pass over some tokens, without gradients."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(10, VOCABULARY, (1, length), generator=generator)

    def call() -> object:
        with torch.inference_mode():
            return model(tokens, **SHAPES[name].options)

    return call


def _free_memory() -> int:
    line = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    assert line
    return 1024 * int(line.group(1))


def _in_child(name: str, state: str, dtype: torch.dtype, lengths: list[int]) -> dict[int, int]:
    """Return the bytes of passes beyond the model, by their lengths."""
    words = [name, state, dtype_name(dtype), *map(str, lengths)]
    command = [sys.executable, "-m", "benchmarks.models", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(zip(lengths, map(int, done.stdout.split()), strict=True))


def main() -> None:
    """Measure one model's memory in this process, at growing lengths."""
    name, state, dtype, *lengths = sys.argv[1:]
    model_dtype = getattr(torch, dtype)
    forward(
        name, make(name, state, model_dtype), 64
    )()  # loads libraries; their memory is no pass's
    model = make(name, state, model_dtype)  # without what the first pass of a model leaves in it
    before = resident()
    for length in map(int, lengths):
        print(peak(forward(name, model, length)) - before)


if __name__ == "__main__":
    main()
