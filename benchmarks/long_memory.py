"""Benchmark of peak memory at 32768 tokens: of a prompt, of one more token, and of a patched model.

`python -m benchmarks.long_memory [--write]` runs each call in a separate process, once for each
set of instructions; `python -m benchmarks.long_memory CALL LENGTH` runs one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable

import torch
from torch.nn import functional as F

import ntk_alibi as na
from benchmarks import DOCUMENT, ROOT, bloom, problems
from benchmarks.candidates import no_bias
from benchmarks.decode import HEAD_DIM
from benchmarks.memory import peak_beyond_now
from ntk_alibi.cli.timing import Call
from ntk_alibi.evaluation.report.markdown import describe_machine, replace_section, table

LENGTH = 32768
NEW_TOKENS = 8


def _prompt(length: int) -> problems.Problem:
    return problems.build(problems.Case(length, HEAD_DIM, torch.float32, torch.get_num_threads()))


def _of_prompt(length: int) -> Call:
    problem = _prompt(length)
    return lambda: na.attention(*problem.inputs, problem.bias)


def _token(problem: problems.Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return problem.query[:, :, -1:], problem.key, problem.value


def _of_token_by_torch(length: int) -> Call:
    problem = _prompt(length)
    row = (problem.slopes[:, None, None] * torch.arange(1 - length, 1))[None]
    return lambda: F.scaled_dot_product_attention(*_token(problem), attn_mask=row)


def _of_token(length: int) -> Call:
    problem = _prompt(length)
    return lambda: na.attention(*_token(problem), problem.bias)


def _of_model(length: int) -> Call:
    model = bloom.make_model(1)
    na.patch(model)
    bloom.generate(model, 64, NEW_TOKENS)()
    return bloom.generate(model, length, NEW_TOKENS)


#: What makes the call of a number of tokens, whose inputs do not count.
CALLS: dict[str, Callable[[int], Call]] = {
    "a prompt: torch SDPA, causal, *no bias*": lambda length: no_bias(_prompt(length)),
    "a prompt: ours": _of_prompt,
    "one more token: torch SDPA, bias row of keys": _of_token_by_torch,
    "one more token: ours": _of_token,
    f"a prompt and {NEW_TOKENS} tokens: a patched block and logits": _of_model,
}

#: Variables of the environment for each column.
COLUMNS: dict[str, dict[str, str]] = {
    na.info()["isa"]: {},
    "avx2": {"NTK_ALIBI_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2"},
}


def run(length: int = LENGTH) -> str:
    """Return the table as Markdown."""
    columns = {isa: x for isa, x in COLUMNS.items() if isa in na.info()["isas"]}
    rows = [
        [name, *(f"{_in_child(name, length, x) / 1e6:.1f}" for x in columns.values())]
        for name in CALLS
    ]
    head = (
        f"{describe_machine()}; {length} tokens, float32, {problems.HEADS} heads of {HEAD_DIM} "
        f"channels; MB of the first call beyond the inputs. transformers' BLOOM would need "
        f"{4 * problems.HEADS * length**2 / 1e9:.0f} GB for the scores of the prompt alone."
    )
    return f"{head}\n\n{table(['', *columns], rows)}"


def _in_child(name: str, length: int, variables: dict[str, str]) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.long_memory", name, str(length)],
        cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout.split()[-1])


def main() -> None:
    """Print the table, or the bytes of one call in this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_memory")
    parser.add_argument("call", nargs="?", choices=list(CALLS))
    parser.add_argument("length", nargs="?", type=int, default=LENGTH)
    parser.add_argument("--write", action="store_true", help="write it into tables.md")
    options = parser.parse_args()
    if options.call:
        CALLS[options.call](64)()  # loads libraries, whose memory does not count
        print(peak_beyond_now(CALLS[options.call](options.length), warm_up=False))
        return
    text = run(options.length)
    print(text)
    if options.write:
        replace_section(DOCUMENT, "long-memory", text)


if __name__ == "__main__":
    main()
