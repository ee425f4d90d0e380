"""A release has its address; a checkout says in two places how it is installed before."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import release

from repository import ROOT

ADDRESS = "https://forge.example/someone/ntk_alibi"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for path in release.files(ROOT):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    return tmp_path


def installed() -> list[tuple[str, str]]:
    """Return what the documents install: a package, and an extra of it."""
    command = re.compile(r'''pip install\s+\\?"([^"[]+)\[([\w-]+)\]\\?"''')
    documents = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.ipynb")]
    texts = [release.filled(path.read_text("utf-8"), ADDRESS) for path in documents]
    return [x for text in texts for x in command.findall(text)]


def is_released(root: Path) -> bool:
    return release.PLACEHOLDER not in (root / "pyproject.toml").read_text()


def test_documents_install_what_there_is() -> None:
    """The package, with extras that there are."""
    _, _, extras = (ROOT / "pyproject.toml").read_text().partition("[project.optional-")
    known = re.findall(r"^([\w-]+) = \[", extras, re.MULTILINE)
    found = installed()
    assert len(found) > 15
    assert {extra for _, extra in found} <= set(known)
    assert {package for package, _ in found} == {"ntk-alibi"}


def test_the_check_names_what_is_left_and_nothing_once_it_is_filled(checkout: Path) -> None:
    if is_released(ROOT):
        assert release.left(ROOT) == []
        return
    left = "\n".join(release.left(checkout))
    for name in ("pyproject.toml", "CITATION.cff", "README.md", "docs/quickstart.md"):
        assert f"{name}:" in left
    changed = release.fill(checkout, ADDRESS)
    assert {line.partition(":")[0] for line in left.split("\n")} == set(changed)
    assert release.left(checkout) == []
    assert f"repository-code: {ADDRESS}\n" in (checkout / "CITATION.cff").read_text()
    for name in ("README.md", "docs/quickstart.md"):
        before, after = ((root / name).read_text() for root in (ROOT, checkout))
        assert "\n*Before the first release*" in before
        assert "the first release" not in after
        assert 'pip install "ntk-alibi[eval]"' in after
        assert len(before.split("\n\n")) == len(after.split("\n\n")) + 1
    assert release.fill(checkout, ADDRESS) == []


@pytest.mark.parametrize("address", ["", "ntk_alibi", "http://a.org/b", release.PLACEHOLDER])
def test_an_address_is_one(address: str, checkout: Path) -> None:
    with pytest.raises(ValueError, match="ADDRESS must be like https://"):
        release.fill(checkout, address)


def test_the_command_fails_until_the_address_is_filled() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "release.py"), "--check"], capture_output=True, text=True
    )
    assert (done.returncode == 0) is is_released(ROOT)
    assert ("not filled: run python release.py ADDRESS" in done.stderr) is not is_released(ROOT)
