"""Benchmark of whole models with random weights, stock and patched: seconds and memory of a pass.

`python -m benchmarks.models NAME STATE LENGTHS` prints the memory that passes of a model need.
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
        told: heads and layers, as the table tells them.
        build: function that makes the model.
        options: further arguments of a pass.
    """

    heads: int
    told: str
    build: Callable[[], Any]
    options: dict[str, Any] = field(default_factory=dict)


def _remote(module: str, model: str, config: str, **sizes: Any) -> Any:
    """Make a model of the abridged remote code in tests/shared, loaded by its file as such code is.

    The published code would have to be downloaded. The weights' deviation is that of BERT.
    """
    path = ROOT / f"tests/shared/remote_models/{module}.py"
    spec = importlib.util.spec_from_file_location(f"remote_{module}", path)
    assert spec, path
    assert spec.loader, path
    code = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
    spec.loader.exec_module(code)
    made = getattr(code, model)(getattr(code, config)(vocab_size=VOCABULARY, **sizes))
    for parameter in made.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    return made


#: What makes each model. Those of remote code are a module, a model and a configuration.
SHAPES = {
    "jina-embeddings-v2-small-en": Shape(
        8, "8 x 64, 4 layers",
        lambda: _remote(
            "jina_bert", "JinaBertModel", "JinaBertConfig",
            hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048,
            max_position_embeddings=8192,
        ),
    ),
    "DNABERT-2": Shape(
        12, "12 x 64, 3 of 12 layers",
        lambda: _remote(
            "mosaic_bert", "BertModel", "BertConfig",
            hidden_size=768, num_hidden_layers=3, num_attention_heads=12, intermediate_size=3072,
            alibi_starting_size=512,
        ),
    ),
    "T5-base, encoder": Shape(
        12, "12 x 64, 3 of 12 layers",
        lambda: transformers.T5EncoderModel(transformers.T5Config(
            vocab_size=VOCABULARY, d_model=768, d_kv=64, d_ff=3072, num_layers=3, num_heads=12
        )),
    ),
    "all-mpnet-base-v2": Shape(
        12, "12 x 64, 3 of 12 layers",
        lambda: transformers.MPNetModel(transformers.MPNetConfig(
            vocab_size=VOCABULARY, num_hidden_layers=3, max_position_embeddings=max(LENGTHS) + 2
        )),
    ),
    "Baichuan-13B": Shape(
        8, "8 of 40 x 128, 2 of 40 layers",
        lambda: _remote(
            "baichuan", "BaichuanModel", "BaichuanConfig",
            hidden_size=1024, num_hidden_layers=2, num_attention_heads=8, intermediate_size=2739,
            model_max_length=4096,
        ),
        {"use_cache": False},
    ),
    "BLOOM-560m": Shape(
        16, "16 x 64, 3 of 24 layers",
        lambda: transformers.BloomModel(transformers.BloomConfig(
            vocab_size=VOCABULARY, hidden_size=1024, n_head=16, n_layer=3
        )),
        {"use_cache": False},
    ),
}  # fmt: skip


def run(rounds: int, longest: int, names: tuple[str, ...] = tuple(SHAPES)) -> str:
    """Run the benchmark and return its table as Markdown.

    Args:
        rounds: turns of each model.
        longest: length in tokens above which nothing is run.
        names: names of the models, keys of `SHAPES`.
    """
    busy, most = os.getloadavg()[0], MOST_OF_FREE * _free_memory()
    head = (
        f"{describe_machine()}; {busy:.1f} other processes ran before. float32, B = 1; medians of "
        f"{rounds} interleaved rounds, one round where a pass takes more than {SLOW:.0f} s."
    )
    rows = []
    for name in names:
        models = {STOCK: make(name, STOCK), PATCHED: make(name, PATCHED)}
        lengths = {
            state: [x for x in LENGTHS if x <= longest and _bytes(name, state, x) <= most]
            for state in models
        }
        memory = {state: _in_child(name, state, own) for state, own in lengths.items()}
        for length in lengths[PATCHED]:
            run = {state: model for state, model in models.items() if length in memory[state]}
            seconds = _seconds(name, run, length, rounds)
            rows.append([f"{name}, {length}", *_cells(name, seconds, memory, length)])
    header = ["", "stock, s", "patched, s", "ratio", "stock, MB", "patched, MB"]
    shapes = "; ".join(f"{name}: {SHAPES[name].told}" for name in names)
    return f"{head}\n\nHeads and layers: {shapes}.\n\n{table(header, rows)}"


def _bytes(name: str, state: str, length: int) -> int:
    """Return about how many bytes a pass needs at most."""
    return MATRICES * 4 * SHAPES[name].heads * length**2 if state == STOCK else 0


def _seconds(name: str, run: dict[str, Any], length: int, rounds: int) -> dict[str, float]:
    """Measure the seconds of a pass of the models that run at a length."""
    calls = {state: forward(name, model, length) for state, model in run.items()}
    seconds = interleaved(calls, 1, 0.0, warm_up=False)
    if max(seconds.values()) < SLOW:
        seconds = interleaved(calls, rounds, SECONDS_PER_TURN, warm_up=False)
    return seconds


def _cells(
    name: str, seconds: dict[str, float], memory: dict[str, dict[int, int]], length: int
) -> list[str]:
    """Format seconds of both states, their ratio, and memory of both states."""
    patched = f"{seconds[PATCHED]:.3g}", f"{memory[PATCHED][length] / 1e6:.0f}"
    if STOCK not in seconds:
        about = f"not run, about {_bytes(name, STOCK, length) / 1e6:.0f}"
        return ["", patched[0], "", about, patched[1]]
    ratio = f"{seconds[STOCK] / seconds[PATCHED]:.2f}"
    stock = f"{seconds[STOCK]:.3g}", f"{memory[STOCK][length] / 1e6:.0f}"
    return [stock[0], patched[0], ratio, stock[1], patched[1]]


def make(name: str, state: str) -> Any:
    """Make a model of `SHAPES` in a state."""
    torch.manual_seed(0)
    model = SHAPES[name].build().eval()
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


def _in_child(name: str, state: str, lengths: list[int]) -> dict[int, int]:
    """Return the bytes of passes beyond the model, by their lengths."""
    command = [sys.executable, "-m", "benchmarks.models", name, state, *map(str, lengths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(zip(lengths, map(int, done.stdout.split()), strict=True))


def main() -> None:
    """Measure one model's memory in this process, at growing lengths."""
    name, state, *lengths = sys.argv[1:]
    forward(name, make(name, state), 64)()  # loads libraries, whose memory does not count
    model = make(name, state)  # without what the first pass of a model leaves in it
    before = resident()
    for length in map(int, lengths):
        print(peak(forward(name, model, length)) - before)


if __name__ == "__main__":
    main()
