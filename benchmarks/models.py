"""Benchmark of whole models with random weights, stock and patched: seconds and memory of a pass.

`python -m benchmarks.models NAME STATE LENGTH` prints the memory that one pass of a model needs.
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
from benchmarks.memory import peak_beyond_now
from ntk_alibi.cli.timing import Call, interleaved
from ntk_alibi.evaluation.report.markdown import describe_machine, table

ROOT = Path(__file__).parents[1]
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


def _jina() -> Any:
    return _remote(
        "jina_bert", "JinaBertModel", "JinaBertConfig",
        hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048,
        max_position_embeddings=8192,
    )  # fmt: skip


def _dnabert() -> Any:
    return _remote(
        "mosaic_bert", "BertModel", "BertConfig",
        hidden_size=768, num_hidden_layers=3, num_attention_heads=12, intermediate_size=3072,
        alibi_starting_size=512,
    )  # fmt: skip


def _baichuan() -> Any:
    return _remote(
        "baichuan", "BaichuanModel", "BaichuanConfig",
        hidden_size=1024, num_hidden_layers=2, num_attention_heads=8, intermediate_size=2739,
        model_max_length=4096,
    )  # fmt: skip


def _t5() -> Any:
    return transformers.T5EncoderModel(
        transformers.T5Config(
            vocab_size=VOCABULARY, d_model=768, d_kv=64, d_ff=3072, num_layers=3, num_heads=12
        )
    )


def _mpnet() -> Any:
    return transformers.MPNetModel(
        transformers.MPNetConfig(
            vocab_size=VOCABULARY, num_hidden_layers=3, max_position_embeddings=max(LENGTHS) + 2
        )
    )


def _bloom() -> Any:
    return transformers.BloomModel(
        transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=1024, n_head=16, n_layer=3)
    )


SHAPES = {
    "jina-embeddings-v2-small-en": Shape(8, "8 x 64, 4 layers", _jina),
    "DNABERT-2": Shape(12, "12 x 64, 3 of 12 layers", _dnabert),
    "T5-base, encoder": Shape(12, "12 x 64, 3 of 12 layers", _t5),
    "all-mpnet-base-v2": Shape(12, "12 x 64, 3 of 12 layers", _mpnet),
    "Baichuan-13B": Shape(8, "8 of 40 x 128, 2 of 40 layers", _baichuan, {"use_cache": False}),
    "BLOOM-560m": Shape(16, "16 x 64, 3 of 24 layers", _bloom, {"use_cache": False}),
}


def run(rounds: int, longest: int, names: tuple[str, ...] = tuple(SHAPES)) -> str:
    """Run the benchmark and return its table as Markdown.

    Args:
        rounds: turns of each model.
        longest: length in tokens above which nothing is run.
        names: names of the models, keys of `SHAPES`.
    """
    busy = os.getloadavg()[0]
    head = (
        f"{describe_machine()}; {busy:.1f} other processes ran before. float32, B = 1; medians of "
        f"{rounds} interleaved rounds, of one where a pass takes {SLOW:.0f} s."
    )
    rows = []
    for name in names:
        models = {STOCK: make(name, STOCK), PATCHED: make(name, PATCHED)}
        for length in (x for x in LENGTHS if x <= longest):
            rows.append([f"{name}, {length}", *_cells(name, models, length, rounds)])
            print(f"  {rows[-1]}", file=sys.stderr, flush=True)
    header = ["", "stock, s", "patched, s", "ratio", "stock, MB", "patched, MB"]
    shapes = "; ".join(f"{name}: {SHAPES[name].told}" for name in names)
    return f"{head}\n\nHeads and layers: {shapes}.\n\n{table(header, rows)}"


def _cells(name: str, models: dict[str, Any], length: int, rounds: int) -> list[str]:
    """Measure a model at a length: seconds, their ratio, and memory."""
    needs = MATRICES * 4 * SHAPES[name].heads * length**2
    states = [PATCHED] if needs > MOST_OF_FREE * _free_memory() else [STOCK, PATCHED]
    memory = {state: f"{_in_child(name, state, length) / 1e6:.0f}" for state in states}
    calls = {state: forward(name, models[state], length) for state in states}
    seconds = interleaved(calls, 1, 0.0, warm_up=False)
    if max(seconds.values()) < SLOW:
        seconds = interleaved(calls, rounds, SECONDS_PER_TURN, warm_up=False)
    if STOCK not in states:
        about = f"not run, about {needs / 1e6:.0f}"
        return ["", f"{seconds[PATCHED]:.3g}", "", about, memory[PATCHED]]
    ratio = f"{seconds[STOCK] / seconds[PATCHED]:.2f}"
    times = (f"{seconds[state]:.3g}" for state in states)
    return [*times, ratio, *memory.values()]


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


def _in_child(name: str, state: str, length: int) -> int:
    command = [sys.executable, "-m", "benchmarks.models", name, state, str(length)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def main() -> None:
    """Measure one model's memory in this process."""
    name, state, length = sys.argv[1:]
    forward(name, make(name, state), 64)()  # loads libraries, whose memory does not count
    model = make(name, state)  # without what the first pass of a model leaves in it
    print(peak_beyond_now(forward(name, model, int(length)), warm_up=False))


if __name__ == "__main__":
    main()
