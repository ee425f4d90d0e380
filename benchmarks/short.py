"""Benchmark of single tokens and short texts: models with random weights, stock and patched."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers

import ntk_alibi as na
from benchmarks.models import SHAPES, VOCABULARY
from benchmarks.problems import dtype_name
from ntk_alibi.cli.timing import Call, interleaved
from ntk_alibi.evaluation.report.markdown import describe_machine, table

DTYPES = (torch.float32, torch.bfloat16)

#: Tokens of a prompt and rows of a generation, and the tokens that are generated.
PROMPTS, ROWS, TOKENS = (16, 64, 512), (1, 8), 16

#: Rows and tokens of texts for encoders; with more than one row, all but the first are padded.
TEXTS = ((1, 8), (1, 16), (1, 64), (16, 32), (64, 64))

SECONDS_PER_TURN = 0.05


@dataclass(frozen=True)
class Decoder:
    """A model that generates.

    Attributes:
        build: makes the model.
        by_steps: whether its forward is called token by token, with its tuple of keys and values,
            because generate() of transformers has no such caches any more.
    """

    build: Callable[[], Any]
    by_steps: bool = False


def _t5(kind: str, **sizes: Any) -> Any:
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY, d_model=512, d_kv=64, decoder_start_token_id=0, **sizes
    )
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config)


#: The decoders; layers of larger models are some of all.
DECODERS = {
    "T5-small": Decoder(lambda: _t5("T5", d_ff=2048, num_layers=6, num_heads=8)),
    "mT5-small": Decoder(
        lambda: _t5("MT5", d_ff=1024, num_layers=8, num_heads=6, feed_forward_proj="gated-gelu")
    ),
    "BLOOM-560m, 3 of 24 layers": Decoder(
        lambda: transformers.BloomForCausalLM(transformers.BloomConfig(
            vocab_size=VOCABULARY, hidden_size=1024, n_head=16, n_layer=3
        ))
    ),
    "MPT-125M, 3 of 12 layers": Decoder(
        lambda: transformers.MptForCausalLM(transformers.MptConfig(
            vocab_size=VOCABULARY, d_model=768, n_heads=12, n_layers=3
        ))
    ),
    "Falcon-RW-1B, 1 of 24 layers": Decoder(
        lambda: transformers.FalconForCausalLM(transformers.FalconConfig(
            vocab_size=VOCABULARY, hidden_size=2048, num_attention_heads=32, num_hidden_layers=1,
            alibi=True, multi_query=False, parallel_attn=False, bias=True,
        ))
    ),
    "Baichuan-13B, 1 of 40 layers, 8 of 40 heads": Decoder(
        lambda: SHAPES["Baichuan-13B"].build(1, VOCABULARY), by_steps=True
    ),
}  # fmt: skip

#: Models of `SHAPES` that encode, and some of their layers.
ENCODERS = {
    "T5-base, encoder": 3,
    "all-mpnet-base-v2": 3,
    "jina-embeddings-v2-small-en": 4,
    "DNABERT-2": 3,
}

#: Its own code runs in float32 only.
FLOAT32_ONLY = ("DNABERT-2",)


def run(rounds: int) -> str:
    """Run the benchmark and return its tables as Markdown."""
    parts = [
        f"{describe_machine()}; {os.getloadavg()[0]:.1f} other processes ran before. The time of "
        "the model without patch divided by the time of the patched model, of medians or of "
        f"minima of {rounds} interleaved rounds, the greater; above 1.00 a patch gains."
    ]
    for dtype in DTYPES:
        header = ["", *(f"{rows} x {prompt}" for rows in ROWS for prompt in PROMPTS)]
        rows = [
            [name, *(_of_decoder(decoder, dtype, rows, prompt, rounds)
                     for rows in ROWS for prompt in PROMPTS)]
            for name, decoder in DECODERS.items()
        ]  # fmt: skip
        parts += [
            f"{dtype_name(dtype)}: {TOKENS} tokens after a prompt, rows x tokens of the prompt",
            table(header, rows),
        ]
        header = ["", *(f"{rows} x {tokens}" for rows, tokens in TEXTS)]
        rows = [
            [name, *(_of_encoder(name, layers, dtype, size, rounds) for size in TEXTS)]
            for name, layers in ENCODERS.items()
            if dtype == torch.float32 or name not in FLOAT32_ONLY
        ]
        parts += [
            f"{dtype_name(dtype)}: encoders, rows x tokens, padded on the right where there are "
            "several rows",
            table(header, rows),
        ]
    return "\n\n".join(parts)


def _of_decoder(decoder: Decoder, dtype: torch.dtype, rows: int, prompt: int, rounds: int) -> str:
    call = by_steps if decoder.by_steps else generate

    def build() -> Any:
        return decoder.build().to(dtype)

    return _ratio(build, lambda model: call(model, rows, prompt), rounds)


def _of_encoder(
    name: str, layers: int, dtype: torch.dtype, size: tuple[int, int], rounds: int
) -> str:
    def build() -> Any:
        return SHAPES[name].build(layers, VOCABULARY).to(dtype)

    return _ratio(build, lambda model: encode(model, *size), rounds)


def _ratio(build: Callable[[], Any], call: Callable[[Any], Call], rounds: int) -> str:
    """Return the time of a model without patch as a multiple of the time with one."""
    calls = {}
    for state in ("stock", "patched"):
        torch.manual_seed(0)
        model = build().eval()
        if state == "patched":
            na.patch(model)
        calls[state] = call(model)
    times: Any = interleaved(calls, rounds, SECONDS_PER_TURN, of=sorted)
    stock, patched = times["stock"], times["patched"]
    ratios = stock[0] / patched[0], statistics.median(stock) / statistics.median(patched)
    return f"{max(ratios):.2f}"


def _ids(rows: int, tokens: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(10, VOCABULARY, (rows, tokens), generator=generator)


def generate(model: Any, rows: int, prompt: int) -> Call:
    """Return a call that generates greedily after a prompt without padding."""
    ids = _ids(rows, prompt)
    # MPT's configuration has no cache by default.
    count = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "use_cache": True}

    def call() -> object:
        return model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **count)

    return call


def by_steps(model: Any, rows: int, prompt: int) -> Call:
    """Return a call of a forward for a prompt, and one for each token after it."""
    ids = _ids(rows, prompt + TOKENS)

    def call() -> object:
        with torch.inference_mode():
            output = model(ids[:, :prompt], use_cache=True)
            for at in range(prompt, prompt + TOKENS):
                token = ids[:, at : at + 1]
                output = model(token, past_key_values=output.past_key_values, use_cache=True)
        return output

    return call


def encode(model: Any, rows: int, tokens: int) -> Call:
    """Return a call of an encoder, with texts of 1/2 to all of the tokens."""
    ids = _ids(rows, tokens)
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, tokens - row * tokens // (2 * rows) :] = 0

    def call() -> object:
        with torch.inference_mode():
            return model(ids, attention_mask=mask)

    return call
