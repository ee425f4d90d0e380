"""Benchmark of BLOOM models with random weights: patched, stock transformers, and CTranslate2.

`python -m benchmarks.bloom STATE LENGTH DTYPE` prints the memory that one prefill of a block needs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoTokenizer, BloomConfig, BloomForCausalLM, DynamicCache

import ntk_alibi as na
from benchmarks import ROOT
from benchmarks.memory import peak_beyond_now
from ntk_alibi.cli.timing import Call, interleaved
from ntk_alibi.evaluation.report.markdown import describe_machine, table
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.models import nano_bloom_path

HIDDEN, HEADS = 1024, 16  # bloom-560m's
LAYERS = 6  # of the whole model that is compared with CTranslate2
BLOCK_LENGTHS = (512, 2048, 4096, 8192)  # in float32
SECONDS_PER_TURN = 0.3
TOKENS = 64  # decoded per turn; the prefill before them varies by as much as some tokens take

LINEAR_OPERATORS = ("mkldnn::_linear_pointwise", "aten::addmm", "aten::mm")

STOCK, PATCHED, CTRANSLATE2 = "transformers", "`na.patch`", "CTranslate2"


def run(rounds: int) -> str:
    """Run the benchmark and return all tables as Markdown."""
    head = (
        f"{describe_machine(['ctranslate2'])}; hidden size {HIDDEN}, {HEADS} heads, B = 1, random "
        f"weights; medians of {rounds} interleaved rounds. A block is a model of one layer without "
        "logits; GB are its memory beyond the weights, at the peak."
    )
    tables = (_block_table, _parts_table, _decode_table, _model_table)
    parts = [measured(rounds) for measured in tables]
    return "\n\n".join([head, *parts])


def _block_table(rounds: int) -> str:
    """Measure the prefill of one block: seconds and memory."""
    rows = []
    for length, dtype in (
        *((length, torch.float32) for length in BLOCK_LENGTHS),
        (2048, torch.bfloat16),
        (8192, torch.bfloat16),
    ):
        calls = {name: block_call(name, length, dtype) for name in (STOCK, PATCHED)}
        seconds = interleaved(calls, rounds, SECONDS_PER_TURN)
        memory = [_in_child(name, length, dtype) / 1e9 for name in calls]
        rows.append(
            [
                f"{length}, {_name(dtype)}",
                *(f"{seconds[name]:.3f}" for name in calls),
                f"{seconds[STOCK] / seconds[PATCHED]:.1f}",
                *(f"{size:.2f}" for size in memory),
            ]
        )
    header = ["prefill of a block", "transformers, s", "patched, s", "ratio", "GB", "patched, GB"]
    return table(header, rows)


def _parts_table(rounds: int) -> str:
    """Measure where the time of a patched block goes, by torch's profiler."""
    rows = []
    for length in BLOCK_LENGTHS:
        call = block_call(PATCHED, length, torch.float32)
        call()
        shares = zip(*(shares_of_time(call) for _ in range(rounds)), strict=True)
        rows.append([str(length), *(f"{100 * median(part):.0f} %" for part in shares)])
    return table(["a patched block, float32", "linear layers", "attention", "the rest"], rows)


def shares_of_time(call: Call) -> tuple[float, float, float]:
    """Return the shares of linear layers, of attention and of the rest in the time of a call."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        begin = time.perf_counter()
        call()
        seconds = time.perf_counter() - begin
    # The kernel of attention is no operator of torch: it takes what they leave.
    operators = {event.key: event.self_cpu_time_total / 1e6 for event in profiled.key_averages()}
    linear = sum(operators.get(name, 0.0) for name in LINEAR_OPERATORS)
    rest = sum(operators.values()) - linear
    return linear / seconds, 1.0 - (linear + rest) / seconds, rest / seconds


def _decode_table(rounds: int) -> str:
    """Measure one decoding step of one block on many cached keys."""
    rows = []
    for length, dtype in ((8192, torch.float32), (8192, torch.bfloat16)):
        calls = {}
        for name, cache in (
            (f"{STOCK}, DynamicCache", DynamicCache()),
            (f"{PATCHED}, DynamicCache", DynamicCache()),
            (f"{PATCHED}, `na.GrowingCache`", na.GrowingCache()),
        ):
            with torch.inference_mode():
                _block(PATCHED, dtype)(_tokens(length), **{CACHE: cache})
            calls[name] = _step(_block(PATCHED if PATCHED in name else STOCK, dtype), cache)
        seconds = interleaved(calls, 3 * rounds, SECONDS_PER_TURN)
        first = next(iter(seconds.values()))
        rows += [
            [f"{length}, {_name(dtype)}: {name}", f"{1e3 * s:.2f}", f"{first / s:.1f}"]
            for name, s in seconds.items()
        ]
    return table(["a token on cached keys, a block", "ms", "times"], rows)


def _model_table(rounds: int) -> str:
    """Measure a float32 model of several layers: logits of all tokens, and each further token."""
    rows = []
    model, stock = make_model(LAYERS), make_model(LAYERS)
    na.patch(model)
    with converted(stock) as peer:
        for length in (512, 2048, 4096):
            prefill: dict[str, Call] = {PATCHED: forward(model, length)}
            one = {PATCHED: generate(model, length, 1)}
            more = {PATCHED: generate(model, length, 1 + TOKENS)}
            if peer:
                prefill[CTRANSLATE2] = peer_forward(peer, length)
                one[CTRANSLATE2] = peer_generate(peer, length, 1)
                more[CTRANSLATE2] = peer_generate(peer, length, 1 + TOKENS)
            if length == 2048:
                prefill[STOCK] = forward(stock, length)
            both = {
                f"{name} {n}": call
                for n, calls in enumerate((one, more))
                for name, call in calls.items()
            }
            seconds = interleaved({**prefill, **both}, rounds, SECONDS_PER_TURN)
            for name in prefill:
                token = ""
                if name in one:
                    token = f"{1e3 * (seconds[f'{name} 1'] - seconds[f'{name} 0']) / TOKENS:.1f}"
                rows.append([f"{length}: {name}", f"{seconds[name]:.2f}", token])
    header = [f"{LAYERS} layers, logits, float32", "prefill, s", "a token, ms"]
    return table(header, rows)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tokens(length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(10, 1000, (1, length), generator=generator)


def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(nano_bloom_path())


def make_model(layers: int, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    vocabulary = len(_tokenizer())
    config = BloomConfig(
        vocab_size=vocabulary, hidden_size=HIDDEN, n_head=HEADS, n_layer=layers,
        bos_token_id=1, eos_token_id=2, pad_token_id=3,
    )  # fmt: skip
    model = BloomForCausalLM(config)
    return model.to(dtype).eval()  # type: ignore[arg-type]


def _block(state: str, dtype: torch.dtype) -> Any:
    model = make_model(1, dtype).transformer
    if state == PATCHED:
        na.patch(model)
    return model


def block_call(state: str, length: int, dtype: torch.dtype) -> Call:
    return forward(_block(state, dtype), length)


def forward(model: Any, length: int) -> Call:
    tokens = _tokens(length)

    def call() -> object:
        with torch.inference_mode():
            return model(tokens, use_cache=False)

    return call


def _step(model: Any, cache: Any) -> Call:
    token = _tokens(1)

    def call() -> object:
        with torch.inference_mode():
            return model(token, **{CACHE: cache})

    return call


def generate(model: Any, length: int, count: int) -> Call:
    tokens = _tokens(length)

    def call() -> object:
        return model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            **{CACHE: na.GrowingCache()},
            min_new_tokens=count,
            max_new_tokens=count,
            do_sample=False,
        )

    return call


@contextlib.contextmanager
def converted(model: Any) -> Iterator[Any]:
    """Yield the model converted to CTranslate2, or None if that is not installed."""
    if importlib.util.find_spec("ctranslate2") is None:
        yield None
        return
    import ctranslate2

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(f"{folder}/model")
        _tokenizer().save_pretrained(f"{folder}/model")
        ctranslate2.converters.TransformersConverter(f"{folder}/model").convert(f"{folder}/out")
        yield ctranslate2.Generator(
            f"{folder}/out", "cpu", compute_type="float32", intra_threads=torch.get_num_threads()
        )


def peer_forward(peer: Any, length: int) -> Call:
    tokens = _tokens(length).tolist()
    return lambda: peer.forward_batch(tokens)


def peer_generate(peer: Any, length: int, count: int) -> Call:
    words = [_tokenizer().convert_ids_to_tokens(_tokens(length)[0].tolist())]
    return lambda: peer.generate_batch(
        words, min_length=count, max_length=count, include_prompt_in_result=False
    )


def _in_child(state: str, length: int, dtype: torch.dtype) -> int:
    command = [sys.executable, "-m", "benchmarks.bloom", state, str(length), _name(dtype)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def main() -> None:
    """Measure one block's memory in this process."""
    state, length, dtype = sys.argv[1:]
    model = _block(state, getattr(torch, dtype))
    forward(model, 64)()  # loads libraries, whose memory does not count
    print(peak_beyond_now(forward(model, int(length))))


if __name__ == "__main__":
    main()
