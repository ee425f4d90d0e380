"""A program for vLLM's environment: results of vLLM for prompts, as JSON.

    python engine_program.py PLAN.json

The plan has the arguments of `LLM`, the prompts and the number of new tokens. The program runs them
twice: with log-probabilities of the prompts, for which vLLM reads no cache, and without, from the
cache that the first run filled. It writes OUT of the plan.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt


def chosen(logprobs: list[Any], tokens: list[int]) -> list[float]:
    """Return the log-probabilities of tokens."""
    return [found[token].logprob for found, token in zip(logprobs, tokens, strict=True)]


def answers(llm: LLM, plan: dict[str, Any], prompt_logprobs: int | None) -> list[dict[str, Any]]:
    """Return the engine's results for each prompt."""
    sampling = SamplingParams(
        temperature=0.0, max_tokens=plan["new_tokens"], ignore_eos=True, logprobs=1,
        prompt_logprobs=prompt_logprobs, detokenize=False,
    )  # fmt: skip
    found = []
    for row in plan["prompts"]:
        (request,) = llm.generate([TokensPrompt(prompt_token_ids=row)], sampling, use_tqdm=False)
        output = request.outputs[0]
        known = request.prompt_logprobs
        found.append(
            {
                "tokens": list(output.token_ids),
                "token_logprobs": chosen(output.logprobs, list(output.token_ids)),
                "prompt_logprobs": chosen(known[1:], row[1:]) if known else [],
                "cached": request.num_cached_tokens or 0,
            }
        )
    return found


def main(path: str) -> None:
    plan = json.loads(Path(path).read_text())
    try:
        llm = LLM(**plan["engine"])
    except ValueError as error:
        result: dict[str, Any] = {"refused": str(error)}
    else:
        result = {"first": answers(llm, plan, 1), "again": answers(llm, plan, None)}
    Path(plan["out"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
