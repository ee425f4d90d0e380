"""Program that runs llama.cpp on a GGUF file: a request in JSON on stdin, its answers on stdout.

It stands in a process of its own, since llama.cpp brings threads, logs and aborts of its own.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from subprocess import run
from typing import Any


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
        prompts: the prompts.
        new: the number of tokens of an answer.
        probabilities: the number of tokens whose log-probabilities are returned for each of them.
        forbidden: tokens that answers must not have. llama.cpp returns no probabilities for tokens
            that end within a character.

    Returns:
        For each prompt a dict: "prompt" and "ids" are tokens, "text" is the answer, and "top" has
        pairs of token and log-probability for each token of it.
    """
    request = {
        "path": str(path),
        "prompts": prompts,
        "new": new,
        "probabilities": probabilities,
        "forbidden": [[token, False] for token in forbidden],
    }
    done = run(
        [sys.executable, __file__], input=json.dumps(request), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Answer one request."""
    import xllamacpp

    request = json.load(sys.stdin)
    params = xllamacpp.CommonParams()
    params.model.path = request["path"]
    params.n_ctx = 4096
    params.n_parallel = params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_gpu_layers = 0
    params.warmup = False
    params.verbosity = -1
    # Keys and values in 16 bits, the default, would differ by more than everything else here.
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    answers = []
    for prompt in request["prompts"]:
        tokens = prompt if isinstance(prompt, list) else tokens_of(server, prompt)
        answer = server.handle_completions(
            {
                "prompt": prompt,
                "max_tokens": request["new"],
                "temperature": 0.0,
                "logprobs": request["probabilities"],
                "logit_bias": request["forbidden"],
                "ignore_eos": True,
                "cache_prompt": False,
            }
        )
        if isinstance(answer, str | bytes):
            answer = json.loads(answer)
        choice = answer["choices"][0]
        steps = (choice["logprobs"] or {"content": []})["content"]
        answers.append(
            {
                "prompt": tokens,
                "text": choice["text"],
                "ids": [step["id"] for step in steps],
                "top": [[[x["id"], x["logprob"]] for x in step["top_logprobs"]] for step in steps],
            }
        )
    print(json.dumps(answers), flush=True)


def tokens_of(server: Any, text: str) -> list[int]:
    """Return llama.cpp's tokens of a text."""
    content = {"content": text, "add_special": True, "parse_special": True}
    request = urllib.request.Request(
        f"{server.listening_address}/tokenize",
        json.dumps(content).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        tokens: list[int] = json.load(response)["tokens"]
    return tokens


if __name__ == "__main__":
    main()
