"""Importing the integrations, a patch and its undo change nothing in transformers and torch."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import copy

import torch
import transformers
from torch.nn.modules import module as torch_modules
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.models.falcon import modeling_falcon

small = {"vocab_size": 9, "num_layers": 1}
t5 = transformers.T5Config(**small, d_model=8, d_kv=4, d_ff=8, num_heads=2)
mpnet = transformers.MPNetConfig(
    vocab_size=9, num_hidden_layers=1, hidden_size=8, num_attention_heads=2, intermediate_size=8
)
models = [
    transformers.BloomForCausalLM(transformers.BloomConfig(**small, hidden_size=8, n_head=2)),
    transformers.MptForCausalLM(
        transformers.MptConfig(vocab_size=9, n_layers=1, d_model=8, n_heads=2)
    ),
    transformers.FalconForCausalLM(
        transformers.FalconConfig(**small, hidden_size=8, num_attention_heads=2, alibi=True)
    ),
    transformers.T5EncoderModel(t5),
    transformers.MPNetModel(mpnet),
]
classes = {PreTrainedModel, transformers.PreTrainedConfig, torch.nn.Module, AttentionInterface}
for model in models:
    classes |= {type(part) for part in model.modules()} | {type(model.config)}
    classes |= {*type(model).__mro__[:-1], *type(model.config).__mro__[:-1]}
# what makes masks, and the functions that forward methods call
codes = {"transformers.masking_utils", *(x.__module__ for x in classes)}
import sys

def state():
    found = {kind: dict(vars(kind)) for kind in classes}
    found |= {name: dict(vars(sys.modules[name])) for name in codes}
    found["attention"] = dict(transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS._global_mapping)
    found["masks"] = dict(AttentionMaskInterface._global_mapping)
    found["Falcon"] = dict(modeling_falcon.FALCON_ATTENTION_CLASSES)
    hooks = [name for name in vars(torch_modules) if name.startswith("_global_")]
    found["hooks"] = {name: copy.copy(getattr(torch_modules, name)) for name in hooks}
    return found

def compare(when):
    now = state()
    changed = [
        f"{when}: {place}.{name}"
        for place in before
        for name in {*before[place], *now[place]}
        if not name.startswith("__") and before[place].get(name) is not now[place].get(name)
        and before[place].get(name) != now[place].get(name)
    ]
    assert not changed, changed

before = state()
import ntk_alibi as na
import ntk_alibi.integrations
compare("import")
for model in models:
    handle = na.patch(model)
    compare("patch")
    model(torch.arange(5)[None])
    compare("call")
    copied = copy.deepcopy(model)
    handle.undo()
    compare("undo")
    na.patch(copied)
    compare("copy")
"""


def test_nothing_of_transformers_and_torch_is_changed() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
