"""The program of the page on several machines trains on two processes, by FSDP and by DDP."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ntk_alibi as na
from ntk_alibi.models import load
from repository import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fsdp", "ddp"])
def test_the_program_of_the_page_trains(way: str, tmp_path: Path) -> None:
    """Two processes have the losses of the same patched model in one process."""
    page = (ROOT / "docs/vllm.md").read_text("utf-8")
    (program,) = re.findall(r"```python\n(import torch\n.*?)```", page, re.DOTALL)
    if way == "ddp":
        (copied,) = re.findall(r"`(model\s=\storch\.nn\S+\(model\))`", page)
        begin, end = program.index("mesh = "), program.index("na.patch(")
        program = program[:begin] + program[end:]
        program = program.replace("optimizer = ", f"{' '.join(copied.split())}\noptimizer = ", 1)
    (tmp_path / "train.py").write_text(program, "utf-8")
    command = "torch.distributed.run --standalone --nproc_per_node=2 train.py"
    done = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    model, tokenizer, _ = load()
    na.patch(model, "ntk:4")
    texts = re.findall(r"line \w+: \d+", program)
    batches = [tokenizer(text, return_tensors="pt") for text in texts]
    expected = [model(**x, labels=x["input_ids"]).loss.item() for x in batches]
    found = map(float, re.findall(r"loss (\d+\.\d{4})", done.stdout))
    assert sorted(found) == pytest.approx(sorted(expected), abs=1e-4)
