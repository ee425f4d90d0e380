"""What importing the integrations changes in transformers, which dev/decisions.md lists."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ntk_alibi.integrations.families import transformers_families

#: Everything that differs in transformers after `import ntk_alibi.integrations`.
PROGRAM = """
import sys

import transformers
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.models.falcon import modeling_falcon

configs = [getattr(transformers, name) for name in sys.argv[2:]]
places = {
    "PreTrainedModel": lambda: dict(vars(PreTrainedModel)),
    "attention": lambda: dict(AttentionInterface._global_mapping),
    "masks": lambda: dict(AttentionMaskInterface._global_mapping),
    "Falcon": lambda: dict(modeling_falcon.FALCON_ATTENTION_CLASSES),
    **{config.__name__: lambda config=config: dict(vars(config)) for config in configs},
}
from torch.nn.modules import module as torch_modules

hooks = [name for name in vars(torch_modules) if name.startswith("_global_")]
places["torch"] = lambda: {name: str(getattr(torch_modules, name)) for name in hooks}
before = {name: place() for name, place in places.items()}
import ntk_alibi.integrations

if "patched" in sys.argv:
    ntk_alibi.integrations.patch(
        transformers.BloomModel(transformers.BloomConfig(n_layer=1, n_head=1))
    )

for name, place in places.items():
    now = place()
    changed = sorted(k for k in now if k not in before[name] or now[k] != before[name][k])
    print(name, *changed)
"""

SETTINGS = "alibi_attention alibi_causal_block alibi_log_n alibi_scaling alibi_sink alibi_window"
CONFIGS = [family.config_class().__name__ for family in transformers_families()]
OTHERS = ["LlamaConfig", "GPT2Config", "BertConfig"]

EXPECTED = [
    "PreTrainedModel get_correct_attn_implementation post_init save_pretrained",
    "attention ntk_alibi",
    "masks ntk_alibi",
    "Falcon ntk_alibi",
    *(f"{name} {SETTINGS} output_attentions" for name in CONFIGS),
    *OTHERS,
    "torch",
]


@pytest.mark.slow
def test_what_is_global() -> None:
    for when in ("imported", "patched"):
        command = [sys.executable, "-c", PROGRAM, when, *CONFIGS, *OTHERS]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        hook = " _global_module_registration_hooks" * (when == "patched")
        assert done.stdout.splitlines() == [*EXPECTED[:-1], EXPECTED[-1] + hook]
