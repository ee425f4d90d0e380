"""Exported models in llama.cpp: its tokens of texts, its answers and their log-probabilities."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
import torch
import transformers

import ntk_alibi as na
from ntk_alibi.evaluation.records.corpus import held_out_text
from ntk_alibi.models import load
from small_models import like_bloom, like_mpt

pytest.importorskip("gguf", reason="pip install 'ntk-alibi[gguf]'")
pytest.importorskip("xllamacpp", reason="pip install 'ntk-alibi[test-all]'")

pytestmark = pytest.mark.slow  # needs llama.cpp

#: ggml's GELU reads a table of half precision, 2^-11 each, and is the tanh form for MPT, too, whose
#: own is the exact one, up to 5e-4 away. Log-probabilities were seen to differ by up to 3.2e-3;
#: slopes that are wrong for 4 of 12 heads change them by more than 0.3.
NEAR = 1e-2

LENGTHS = (50, 900, 3000)

PROSE = "\n".join(held_out_text())[:20_000]


def complete(
    path: Path,
    prompts: list[Any],
    *,
    new: int = 16,
    probabilities: int = 20,
    forbidden: Sequence[int] = (),
) -> Any:
    """Return llama.cpp's greedy answers to prompts, texts or tokens.

    Args:
        path: the GGUF file.
        prompts: the prompts, or chats, each a dict of messages, and of tools at times.
        new: the number of tokens of an answer.
        probabilities: the number of tokens whose log-probabilities are returned for each of them.
        forbidden: tokens that answers must not have. llama.cpp returns no probabilities for tokens
            that end within a character.

    Returns:
        For each prompt a dict: "prompt" and "ids" are tokens, "text" is the answer, and "top" has
        pairs of token and log-probability for each token of it. For each chat its text.
    """
    request = {
        "path": str(path),
        "prompts": prompts,
        "new": new,
        "probabilities": probabilities,
        "forbidden": [[token, False] for token in forbidden],
    }
    done = run(
        [sys.executable, Path(__file__).with_name("llama_program.py")],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def nano() -> tuple[Any, Any]:
    model, tokenizer, _ = load()
    return model, tokenizer


def bloom_of_12_heads() -> tuple[Any, Any]:
    config = transformers.BloomConfig(
        **{"vocab_size": 1344, "hidden_size": 192, "n_layer": 2, "n_head": 12},
        seq_length=2048,
        tie_word_embeddings=False,
    )
    return random(transformers.BloomForCausalLM, config), load()[1]


def mpt_of_16() -> tuple[Any, Any]:
    config = transformers.MptConfig(
        **{"vocab_size": 1344, "d_model": 128, "n_layers": 2, "n_heads": 4, "max_seq_len": 2048},
        attn_config={"alibi_bias_max": 16, "clip_qkv": 2.0},
    )
    return random(transformers.MptForCausalLM, config), load()[1]


def random(kind: Any, config: Any) -> Any:
    """Return a random model in which attention matters, with biases that are not zero."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(config).eval()
        for parameter in model.parameters():
            spread = torch.randn(parameter.shape)
            parameter.data = 0.12 * spread if parameter.ndim > 1 else parameter.data + 0.1 * spread
    return model


def log_probabilities(model: Any, scaling: Any, answer: dict[str, Any]) -> torch.Tensor:
    """Return the patched model's log-probability of each token of an answer.

    They are computed at the answer's own tokens, so that a near tie does not end the comparison.
    """
    tokens = torch.tensor([answer["prompt"] + answer["ids"]])
    with torch.no_grad(), na.patch(model, scaling):
        logits = model(tokens).logits[0, len(answer["prompt"]) - 1 : -1]
    return torch.log_softmax(logits.double(), -1)


def greatest_difference(expected: torch.Tensor, answer: dict[str, Any]) -> float:
    return max(
        abs(number - float(row[token]))
        for row, step in zip(expected, answer["top"], strict=True)
        for token, number in step
    )


@pytest.mark.parametrize("scaling", [None, na.MaxBias(4.0)], ids=["plain", "stretched"])
@pytest.mark.parametrize("make", [nano, bloom_of_12_heads, mpt_of_16])
def test_answers_are_those_of_the_patch(
    make: Callable[[], tuple[Any, Any]], scaling: Any, tmp_path: Path
) -> None:
    model, tokenizer = make()
    if scaling is None:  # else llama.cpp's server refuses more than the training length
        model.config.update({"seq_length": 4096, "max_seq_len": 4096})
    na.export(model, tmp_path / "model.gguf", scaling, tokenizer=tokenizer)
    tokens = tokenizer(PROSE)["input_ids"]
    prompts = [tokenizer.decode(tokens[:length]) for length in LENGTHS]
    parts = [x for x in range(len(tokenizer)) if "\ufffd" in tokenizer.decode([x])]  # of characters
    answers = complete(tmp_path / "model.gguf", prompts, forbidden=parts)
    for length, prompt, answer in zip(LENGTHS, prompts, answers, strict=True):
        assert len(answer["ids"]) == 16
        assert answer["prompt"] == tokenizer(prompt)["input_ids"]
        assert abs(len(answer["prompt"]) - length) <= 1
        expected = log_probabilities(model, scaling, answer)
        assert greatest_difference(expected, answer) < NEAR
        expected[:, parts] = -torch.inf
        chosen = expected.gather(1, torch.tensor(answer["ids"])[:, None])[:, 0]
        assert (chosen > expected.amax(1) - 2.0 * NEAR).all()
        if make is nano:
            assert answer["text"] == tokenizer.decode(answer["ids"])


@pytest.mark.parametrize(
    ("make", "wrong"), [(bloom_of_12_heads, 8.0), (mpt_of_16, 10.0)], ids=["BLOOM", "MPT"]
)
def test_another_number_would_be_seen(
    make: Callable[[], tuple[Any, Any]], wrong: float, tmp_path: Path
) -> None:
    """The comparison above sees 8 in place of 10, and 10 in place of the 18 of an MPT at 16."""
    model, tokenizer = make()
    tokens = tokenizer(PROSE[:6_000])["input_ids"][:900]
    answer = {"prompt": tokens[:-16], "ids": tokens[-16:]}
    stretched = log_probabilities(model, na.MaxBias(4.0), answer)

    class Wrong:
        def scale_exponents(self, exponents: Any, lengths: Any = None) -> Any:
            return exponents * (wrong / 8.0 if make is bloom_of_12_heads else wrong / 16.0)

    other = log_probabilities(model, Wrong(), answer)
    assert float((other - stretched).abs().max()) > 10.0 * NEAR


#: Texts that pre-tokenizers cut in different ways.
TEXTS = (
    PROSE[:500],
    PROSE[:500].replace(" ", "-"),
    "a  b   c\n\n d\te's don't I'LL",
    "émigré 中文字 😀 ok… naïve",
    "(x|y)[0] = 12345678; # 3.14!",
    "</s> hi <|endoftext|>",
    "                            deep",
)


@pytest.mark.parametrize("make", [like_bloom, like_mpt])
def test_texts_are_cut_as_the_tokenizer_cuts_them(make: Callable[[], Any], tmp_path: Path) -> None:
    tokenizer = make()
    sizes = {"vocab_size": len(tokenizer) + 5, "hidden_size": 32, "n_layer": 1, "n_head": 4}
    model = random(transformers.BloomForCausalLM, transformers.BloomConfig(**sizes))
    na.export(model, tmp_path / "model.gguf", tokenizer=tokenizer)
    answers = complete(tmp_path / "model.gguf", list(TEXTS), new=1, probabilities=1)
    for text, answer in zip(TEXTS, answers, strict=True):
        assert answer["prompt"] == tokenizer(text)["input_ids"], text


def test_added_tokens_that_overlap_give_a_warning(tmp_path: Path) -> None:
    """The tokenizer reads 12 and 3, llama.cpp 1 and 23."""
    model, tokenizer = nano()
    with pytest.warns(UserWarning, match="tokens that were added to the tokenizer overlap"):
        na.export(model, tmp_path / "model.gguf", tokenizer=tokenizer)
    (answer,) = complete(tmp_path / "model.gguf", ["123"], new=1, probabilities=1)
    assert answer["prompt"] != tokenizer("123")["input_ids"]


#: A turn of each message, and the beginning of the model's own.
CHAT = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize("names", [(), ("default", "tool_use"), ("tool_use",)])
def test_chats_have_the_template_of_the_tokenizer(names: tuple[str, ...], tmp_path: Path) -> None:
    model, tokenizer = nano()
    tokenizer.chat_template = {x: f"{x}: {CHAT}" for x in names} if names else CHAT
    with pytest.warns(UserWarning, match="tokens that were added to the tokenizer overlap"):
        na.export(model, tmp_path / "model.gguf", tokenizer=tokenizer)
    chat: dict[str, Any] = {
        "messages": [
            {"role": "user", "content": "Is it day?"},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": "Since when?"},
        ]
    }
    tool = {"name": "look", "description": "looks", "parameters": {"type": "object"}}
    with_tools = {**chat, "tools": [{"type": "function", "function": tool}]}
    asked = [with_tools] if names == ("tool_use",) else [chat, with_tools]
    expected = [
        tokenizer.apply_chat_template(
            x["messages"], x.get("tools"), tokenize=False, add_generation_prompt=True
        )
        for x in asked
    ]
    assert complete(tmp_path / "model.gguf", asked) == expected
