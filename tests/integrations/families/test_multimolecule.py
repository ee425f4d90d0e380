"""A family that others would write: DNABERT-2 of the package multimolecule, in its environment."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from repository import make_environment

pytestmark = [pytest.mark.slow, pytest.mark.long]

#: What importing its models takes, beside the packages of this environment.
REQUIREMENTS = (
    "multimolecule==0.2.2",
    "chanfig",
    "danling",
    "lazy-imports",
    "lightning-utilities",
    "python-frontmatter",
    "torchdata",
    "torchmetrics",
)


def test_dnabert2_of_multimolecule(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "venv", *REQUIREMENTS)
    program = Path(__file__).with_name("multimolecule_program.py")
    done = subprocess.run([python, "-W", "ignore", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    differences = json.loads(done.stdout.splitlines()[-1])
    assert differences["patched"] < 2e-5  # float32 sums through two layers, at logits of about 1
    assert differences["stretched"] > 1e-2
    assert differences["undone"] == 0
