"""A program for vLLM's environment: what a served model answers to OpenAI's own client, as JSON.

python client_program.py ADDRESS PLAN.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from openai import OpenAI


def main(address: str, path: str) -> None:
    plan = json.loads(Path(path).read_text())
    client = OpenAI(base_url=address, api_key="none")
    (model,) = client.models.list().data
    found = []
    for row in plan["prompts"]:
        answer = client.completions.create(
            model=model.id, prompt=row, max_tokens=plan["new_tokens"], temperature=0.0, logprobs=1,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        ).choices[0]  # fmt: skip
        logprobs = answer.logprobs.token_logprobs
        found.append({"tokens": answer.token_ids, "token_logprobs": logprobs})
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
