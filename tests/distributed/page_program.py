"""Runs the blocks of docs/distributed.md on the ranks of torchrun: `page_program.py FOLDER`."""

from __future__ import annotations

import re
import sys
from typing import Any

import torch
import torch.distributed as dist
import transformers

from repository import ROOT


def main() -> None:
    """Run the blocks one after the other, on a checkpoint in a folder."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        config = transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
        transformers.BloomForCausalLM(config).save_pretrained(sys.argv[1])
    dist.barrier()
    page = (ROOT / "docs/distributed.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    torch.manual_seed(0)
    ids = torch.arange(40)[None]
    names: dict[str, Any] = {"torch": torch, "path": sys.argv[1], "input_ids": ids}
    names["batch"] = {"input_ids": ids, "labels": ids}
    names.update(zip(("query", "key", "value"), torch.rand(3, 1, 4, 256, 16), strict=True))
    for block in blocks:
        exec(block, names)
    whole = names["na"].attention(*(names[x] for x in ("query", "key", "value")),
                                  names["na"].ALiBi(4, names["na"].NTK(4.0)))  # fmt: skip
    torch.testing.assert_close(names["output"], whole[:, :, names["tokens"]])
    if dist.get_rank() == 0:
        print(f"ran {len(blocks)} blocks")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
