"""What importing the integrations changes in transformers, which docs/architecture.md lists."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Everything that differs in transformers after `import ntk_alibi.integrations`.
PROGRAM = """
import transformers
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.models.falcon import modeling_falcon

configs = [
    getattr(transformers, f"{name}Config")
    for name in ("Bloom", "Mpt", "Falcon", "T5", "MT5", "UMT5", "SwitchTransformers", "Pop2Piano",
                 "Pix2StructText", "MPNet", "Llama", "GPT2", "Bert")
]
places = {
    "PreTrainedModel": lambda: dict(vars(PreTrainedModel)),
    "attention": lambda: dict(AttentionInterface._global_mapping),
    "masks": lambda: dict(AttentionMaskInterface._global_mapping),
    "Falcon": lambda: dict(modeling_falcon.FALCON_ATTENTION_CLASSES),
    **{config.__name__: lambda config=config: dict(vars(config)) for config in configs},
}
before = {name: place() for name, place in places.items()}
import ntk_alibi.integrations

for name, place in places.items():
    now = place()
    changed = sorted(k for k in now if k not in before[name] or now[k] is not before[name][k])
    print(name, *changed)
"""

SETTINGS = "alibi_attention alibi_causal_block alibi_log_n alibi_scaling alibi_sink alibi_window"
FAMILIES = (
    "Bloom", "Mpt", "Falcon", "T5", "MT5", "UMT5", "SwitchTransformers", "Pop2Piano",
    "Pix2StructText", "MPNet",
)  # fmt: skip

EXPECTED = [
    "PreTrainedModel get_correct_attn_implementation post_init save_pretrained",
    "attention ntk_alibi",
    "masks ntk_alibi",
    "Falcon ntk_alibi",
    *(f"{name}Config {SETTINGS} output_attentions" for name in FAMILIES),
    *(f"{name}Config" for name in ("Llama", "GPT2", "Bert")),
]


@pytest.mark.slow
def test_what_is_global() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == EXPECTED
