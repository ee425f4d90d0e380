"""Find a line of a long record on several processes, each of which holds a part of the record.

    torchrun --nproc_per_node 4 examples/context_parallel.py --multiple 64

The embedded nano BLOOM was trained at 2048 tokens. The record has as many times that, and the
script asks for one of its first lines. No process holds all keys: the prompt is cut into parts, and
blocks of keys travel between the processes only where they can matter.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import distributed
from transformers import AutoModelForCausalLM, AutoTokenizer

import ntk_alibi as na
from ntk_alibi.evaluation.records import corpus
from ntk_alibi.evaluation.records.longeval import Lines
from ntk_alibi.evaluation.records.record import cached_encoder, encoder
from ntk_alibi.models.loading import nano_bloom_path

TRAIN_LENGTH = 2048


def main() -> None:
    """Run on the processes that torchrun has started."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--multiple", type=int, default=4, help="length in training lengths (4)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the record (0)")
    options = parser.parse_args()
    distributed.init_process_group("gloo")
    group = distributed.group.WORLD
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(nano_bloom_path()).eval()
    tokenizer = AutoTokenizer.from_pretrained(nano_bloom_path())
    prompt, answer, distance = question(tokenizer, options.multiple * TRAIN_LENGTH, options.seed)
    flat_heads = na.FlatHeads(2.0 * options.multiple)
    half = na.LogN(TRAIN_LENGTH, strength=0.5)
    with na.patch(model, flat_heads, log_n=half, group=group), torch.inference_mode():
        cache = na.ShardedCache(group)
        found = model.generate(prompt, cache=cache, max_new_tokens=2, do_sample=False)
    number = tokenizer.decode(found[0, prompt.shape[1] :])
    if distributed.get_rank() == 0:
        print(f"{prompt.shape[1]} tokens on {distributed.get_world_size()} processes")
        print(f"the line is {distance} tokens back; its number is {answer}, found {number}")
    distributed.destroy_process_group()


def question(tokenizer: object, length: int, seed: int) -> tuple[torch.Tensor, str, int]:
    """Return a record with a question for its farthest line that is asked for, and the answer."""
    prose = corpus.sentences(corpus.held_out_text())
    case = Lines(questions=16, prose=prose).case(
        cached_encoder(encoder(tokenizer)),  # type: ignore[arg-type]
        length,
        np.random.default_rng(seed),
    )
    farthest = int(np.argmax(case.distances))
    begin, end = case.answers[farthest]
    tokens = torch.from_numpy(case.tokens)
    answer = tokenizer.decode(tokens[begin:end])  # type: ignore[attr-defined]
    return tokens[None, :begin], answer, case.distances[farthest]


if __name__ == "__main__":
    main()
