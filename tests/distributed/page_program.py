"""Runs blocks of docs/distributed.md on the ranks of torchrun: `page_program.py NUMBER ...`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch.utils.data import DataLoader

from ntk_alibi.models import load
from ntk_alibi.torch import shard
from repository import ROOT


def names(folder: Path) -> dict[str, Any]:
    """Return the names that the page expects: a model, its checkpoint and texts."""
    model, tokenizer, _ = load()
    model.generation_config.max_new_tokens = 4
    ids = tokenizer("In the beginning God created the heaven and the earth. " * 12)["input_ids"]
    rows = torch.tensor([ids[:128]])
    batch = {"input_ids": rows, "attention_mask": torch.ones_like(rows), "labels": rows}
    return {
        **{"model": model, "config": model.config, "path": str(folder), "input_ids": rows},
        **{"batch": batch, "prompt": rows, "shard": shard, "DataLoader": DataLoader},
        **{"transformers": transformers},
        "AutoModelForCausalLM": transformers.AutoModelForCausalLM,
    }


def main() -> None:
    """Run the blocks one after the other."""
    folder, *indices = sys.argv[1:]
    page = (ROOT / "docs/distributed.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    namespace = names(Path(folder))
    for index in indices:
        exec(blocks[int(index)], namespace)
    if dist.get_rank() == 0:
        print(f"ran {len(indices)} of {len(blocks)} blocks")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
