"""Program that runs llama.cpp on a GGUF file: a request in JSON on stdin, its answers on stdout.

It runs in a separate process, since llama.cpp starts threads, writes logs and may abort.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any


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
        if isinstance(prompt, dict):  # the messages of a chat
            answers.append(ask(server, "apply-template", prompt)["prompt"])
            continue
        text = {"content": prompt, "add_special": True, "parse_special": True}
        tokens = prompt if isinstance(prompt, list) else ask(server, "tokenize", text)["tokens"]
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
    os._exit(0)  # the server's destructor may wait for a thread of its own for ever


def ask(server: Any, what: str, content: dict[str, Any]) -> Any:
    """Return what llama.cpp's server answers to content in JSON."""
    request = urllib.request.Request(
        f"{server.listening_address}/{what}",
        json.dumps(content).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


if __name__ == "__main__":
    main()
