"""The public names, and the parameters and defaults of those that most code calls.

Other code imports these names and passes these arguments, so a change here breaks it. New names and
parameters may be added at any time.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import subprocess
import sys
from importlib import import_module

import pytest

import ntk_alibi as na
from ntk_alibi import cli

#: Names by their documented modules.
NAMES = {
    "ntk_alibi": """
        BAM NTK T5 XPOS ALiBi AlibiAttention BiALiBi DistanceFunction DistanceTable DynamicFlatHeads
        DynamicInterpolation DynamicNTK FlatHeads ForgetGates GrowingCache Interpolation KerpleLog
        KerplePower KeyNorms LogN MaxBias QuantizedRows RoPE Sandwich Scaling WindowCache
        __version__ alibi_slopes attention build_alibi_tensor export info log_n_scale merge patch
        patched plots precision reference scaling_from_config segment_ids_from_cu_seqlens
        set_num_threads unpatch
    """,
    "ntk_alibi.biases": "BiasObject KernelBias parameter",
    "ntk_alibi.evaluation": "Plan Summary evaluate parse_method read_summary score_lines",
    "ntk_alibi.fused": "AttentionGradients KeyNorms Stats attention attention_gradients merge",
    "ntk_alibi.inspection": "bias_by_distance receptive_field visible_intervals weights",
    "ntk_alibi.integrations": "Attend Family ModelSlopes PatchHandle patch patched register",
    "ntk_alibi.models": "load nano_bloom_path",
    "ntk_alibi.torch.learned_bias": """
        LearnedALiBi LearnedKerplePower LearnedKerpleLog LearnedBAM LearnedT5 LearnedBiALiBi
        LearnedForgetGates
    """,
}

SUBCOMMANDS = ("demo", "info", "slopes", "eval", "lm-eval", "export", "bench", "notebooks")

#: Parameters and defaults.
SIGNATURES = """
ALiBi(num_heads, scaling=None, *, sides='causal', slopes=None, exempt=0)
ALiBi.tensor(query_length, key_length, dtype=None, lengths=None, out=None)
AlibiAttention(num_heads, embed_dim, slopes=None, *, bias=None, causal=False, scaling=None,
    num_kv_heads=None, window=None, align='end', dropout=0.0, generator=None)
AlibiAttention.forward(q, k, v, mask=None, key_padding_mask=None)
BAM(alpha, beta, mu=0.0, epsilon=1e-05)
DistanceTable(table, begin=0)
DynamicFlatHeads(rate=2.0, train_length=None)
DynamicInterpolation(rate=2.0, train_length=None)
DynamicNTK(rate=2.0, train_length=None)
FlatHeads(factor)
GrowingCache(capacity=256, *, dtype=None)
LogN(train_length, strength=1.0)
RoPE(head_dim, base=10000.0, factor=1.0, *, layout='pairs', rotary_dim=None)
Sandwich(num_heads, dimension=128, lambdas=None)
T5(values, bidirectional=True, max_distance=128)
WindowCache(window, sink=0)
XPOS(head_dim, base=10000.0, scale_base=512.0, gamma=0.4, *, layout='pairs', rotary_dim=None)
alibi_slopes(num_heads, scaling=None, lengths=None, *, rule='press')
attention(query, key, value, bias=None, *, causal=True, window=None, causal_block=None, sink=0,
    key_padding_mask=None, query_positions=None, key_positions=None, align='end', segment_ids=None,
    query_segment_ids=None, scale=None, skip_tolerance=0.0, rotary=None, log_n=None, initial=None,
    key_norms=None, dropout=0.0, seed=None, return_logsumexp=False, return_stats=False)
build_alibi_tensor(attention_mask, num_heads, dtype, scaling=None, *, anchor='first', out=None)
export(model, path, method=None, *, format=None, dtype=None, tokenizer=None, cache=True,
    overwrite=False)
merge(outputs, logsumexps, *, out=None)
patch(model, method=<as saved>, *, attention=None, window=None, sink=None, causal_block=None)
"""


@pytest.mark.parametrize("module", NAMES)
def test_public_names_are_there(module: str) -> None:
    for name in NAMES[module].split():
        assert getattr(import_module(module), name) is not None
    assert sorted(dir(na)) == sorted(na.__all__)


@pytest.mark.parametrize(
    "signature", re.sub(r"\n +", " ", SIGNATURES.strip()).split("\n"), ids=lambda s: s.split("(")[0]
)
def test_parameters_and_defaults_are_as_before(signature: str) -> None:
    """New parameters may be added if calls can leave them out."""
    owner, _, method = signature.split("(")[0].partition(".")
    function = getattr(na, owner)
    now = inspect.signature(getattr(function, method) if method else function)
    kept = [
        x.replace(annotation=x.empty)
        for x in now.parameters.values()
        if x.name != "self"
        and (
            re.search(rf"\b{x.name}\b", signature) or (x.default is x.empty and x.name != "options")
        )
    ]
    written = str(now.replace(parameters=kept, return_annotation=now.empty))
    assert signature.split("(")[0] + written == signature


#: What is told to those who misspell a name, or look for it in another module.
MISSPELT = {
    "patchh": ": did you mean patch?",
    "Ntk": ": did you mean NTK?",
    "cli": ": import ntk_alibi.cli",
    "load": ": from ntk_alibi.models import load",
    "zzzz": "",
    "__wrapped__": "",
}


def test_a_misspelt_name_is_told_the_right_one() -> None:
    code = (
        f"import ntk_alibi as na\nfor name in {list(MISSPELT)}:\n"
        "    try: getattr(na, name)\n    except AttributeError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    told = [f"module 'ntk_alibi' has no attribute {x!r}{y}" for x, y in MISSPELT.items()]
    assert done.stdout.splitlines() == told, done.stderr


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_subcommands_are_there(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        cli.main([name, "--help"])  # help names it on stdout, errors go to stderr
    assert f"usage: ntk-alibi {name}" in capsys.readouterr().out
