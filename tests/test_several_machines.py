"""The program of the page on several machines trains on two processes, by FSDP and by DDP."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from repository import ROOT

pytestmark = pytest.mark.slow

BEFORE = """
import sys
import torch, transformers
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
path = sys.argv[1]
if torch.distributed.get_rank() == 0:
    config = transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)
    transformers.BloomForCausalLM(config).save_pretrained(path)
torch.distributed.barrier()
ids = torch.arange(40)[None] + torch.distributed.get_rank()
batch = {"input_ids": ids, "labels": ids}
"""

AFTER = """
assert na.patched(model)
gradients = [x.grad for x in model.parameters()]
assert all(x is not None for x in gradients)
print("trained")
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("way", ["fsdp", "ddp"])
def test_the_program_of_the_page_trains(tmp_path: Path, way: str) -> None:
    page = (ROOT / "docs/vllm.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(# torchrun .*?)```", page, re.DOTALL)
    if way == "ddp":
        fsdp, ddp = re.findall(r"^for block.*\n.*\n(.*)  # or (.*)$", block, re.MULTILINE)[0]
        block = re.sub(r"for block.*\n.*\n", "", block).replace(fsdp, ddp)
    program = tmp_path / "program.py"
    program.write_text(BEFORE + block + AFTER, "utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*torchrun, program, tmp_path / "model"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["trained", "trained"]
