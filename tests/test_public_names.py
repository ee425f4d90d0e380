"""`__all__`, which stays until 1.0; parameters and other modules may still change."""

from __future__ import annotations

import subprocess
import sys

import ntk_alibi as na

#: Other code imports these names. New ones may be added at any time.
NAMES = """
    BAM NTK T5 XPOS ALiBi AlibiAttention BiALiBi BlockMask DistanceFunction DistanceTable
    DynamicFlatHeads DynamicInterpolation DynamicNTK FlatHeads ForgetGates GrowingCache
    Interpolation
    KerpleLog KerplePower KeyNorms LogN MaxBias QuantizedRows RoPE Sandwich Scaling WindowCache
    __version__ alibi_slopes attention build_alibi_tensor export info log_n_scale merge patch
    patched plots precision reference scaling_from_config segment_ids_from_cu_seqlens
    set_num_threads unpatch
"""


def test_public_names_are_there() -> None:
    assert set(NAMES.split()) <= set(na.__all__)
    assert sorted(dir(na)) == sorted(na.__all__)
    assert all(getattr(na, name) is not None for name in na.__all__)


#: What is told to those who misspell a name, or look for it in another module.
MISSPELT = {
    "patchh": ": did you mean patch?",
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
