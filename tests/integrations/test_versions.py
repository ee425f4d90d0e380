"""The patch on other versions of transformers: the oldest, and those before a change."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from environments import make_environment, run_tests

pytestmark = [pytest.mark.slow, pytest.mark.long]

FOLDER = "tests/integrations"
BLOOM = f"{FOLDER}/families/test_bloom.py"
CACHES = (
    f"{FOLDER}/test_cache_argument.py",
    f"{FOLDER}/test_texts.py::test_continuous_batching_gives_the_tokens_of_generate",
    f"{FOLDER}/test_texts.py::test_continuous_batching_says_why_it_fails",
)

#: Versions, and what of the quick tests runs on them: all on the oldest, BLOOM's tests on 5.18,
#: where generate() passes a mask of ones on, and on 5.20, where it drops it and the model builds
#: one. From 5.21 on the model builds the bias inline instead. On 5.23, the last one whose models
#: take caches as past_key_values, the tests of all families run, and of caches.
VERSIONS = {
    "5.4.0": (FOLDER,),
    "5.18.0": (BLOOM,),
    "5.20.0": (BLOOM,),
    "5.23.0": (BLOOM, f"{FOLDER}/test_families.py", *CACHES),
}

#: What a version needs in front of the packages of this environment.
NEEDS = {"5.4.0": ("tokenizers<=0.23.0", "huggingface-hub<2")}

#: Tests that need not pass on a version: 5.4 draws the loaded weights of the abridged remote code
#: anew, in models without a patch, too; its Switch does not run in float64; its MPNet makes its
#: mask itself, and Dynamo cannot trace the function that makes Falcon's, so that graphs break.
LEFT_OUT = {
    "5.4.0": (
        f"{FOLDER}/families/test_baichuan.py::test_a_saved_model_is_the_unpatched_one",
        f"{FOLDER}/families/test_bert_patches.py::test_saving_says_that_the_patch_is_not_saved",
        f"{FOLDER}/test_table.py::test_an_oracle_of_nothing_is_the_model_itself[none-switch]",
        *(
            f"{FOLDER}/test_compiled_layers.py::"
            f"test_without_a_cache_and_gradients_a_model_is_one_graph[{model}]"
            for model in ("falcon", "MPNet")
        ),
    )
}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_patches_on_transformers(version: str, tmp_path: Path) -> None:
    """Run the quick tests: their grids run on the newest version."""
    wanted = f"transformers=={version}", *NEEDS.get(version, ())
    python = make_environment(tmp_path / "venv", *wanted)
    command = [python, "-c", "import transformers; print(transformers.__version__)"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.stdout.strip() == version, found.stderr
    left_out = [f"--deselect={test}" for test in LEFT_OUT.get(version, ())]
    run_tests(python, *left_out, *VERSIONS[version])
