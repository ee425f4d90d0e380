"""The site: all names are in it, its examples run, and it builds without a warning."""

from __future__ import annotations

import argparse
import doctest
import inspect
import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from pytest_examples import EvalExample, find_examples

import ntk_alibi as na
from ntk_alibi import cli, inspection
from ntk_alibi.evaluation.report.cells import with_ends
from ntk_alibi.methods import parse_method
from repository import ROOT

pytestmark = pytest.mark.slow  # needs Sphinx and pytest-examples

DOCS = ROOT / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "notebooks" not in page.parts]

#: Pages whose examples other tests run: with vLLM and on several processes, block by block.
RUN_ELSEWHERE = {"vllm", "run-elsewhere"}

#: Packages that `make test-all` lacks: test_quantised.py runs the blocks that name them.
OPTIONAL = ("bitsandbytes", "torchao", "trl")
EXAMPLES = [
    page
    for page in (ROOT / "README.md", *PAGES)
    if "```python\n" in page.read_text().replace("```python\n>>> ", "")
    and page.stem not in RUN_ELSEWHERE
]


def test_every_public_name_is_in_the_reference_once(tmp_path: Path) -> None:
    """`docs/names.py` writes a page for each; a page of a module is called like `plots.slopes`."""
    sys.path.insert(0, str(DOCS))
    import names

    modules = {x: getattr(na, x) for x in ("plots", "precision", "reference")}
    public = {name for name in na.__all__ if name != "__version__"} - modules.keys()
    for path, module in {**modules, "inspection": inspection}.items():
        public |= {f"{path}.{name}" for name in names_of(module)}
    names.write_pages(tmp_path)
    described = {
        path.stem: re.findall(r"auto(?:function|class):: (?:ntk_alibi\.)?(\S+)", path.read_text())
        for path in (tmp_path / "api").iterdir()
    }
    assert all(found == [name] for name, found in described.items())
    assert public <= described.keys()
    pages = "".join(names.expanded(page.read_text()) for page in (DOCS / "reference").glob("*.md"))
    entries = re.findall(r"^   (\w[\w.]*)$", pages, re.MULTILINE)
    assert sorted(entries) == sorted(described)
    assert re.findall(r"<api/(.*)>$", pages, re.MULTILINE) == entries


def names_of(module: Any) -> set[str]:
    own = {x for x, y in vars(module).items() if getattr(y, "__module__", "") == module.__name__}
    return {x for x in getattr(module, "__all__", own) if not x.startswith("_")}


def test_papers_that_public_docstrings_name_are_in_the_references_once() -> None:
    entries = (DOCS / "references.bib").read_text("utf-8")
    keys = re.findall(r"^@\w+\{(\w+),$", entries, re.MULTILINE)
    assert len(keys) == entries.count("@") == len(set(keys))
    for name in na.__all__:
        sources = re.findall("Source:.*", inspect.getdoc(getattr(na, name)) or "", re.DOTALL)
        for number in re.findall(r"\b\d{4}\.\d{5}\b", "".join(sources)):
            assert entries.count(f"eprint = {{{number}}}") == 1, (name, number)


def test_paths_and_targets_that_contributing_names_are_there() -> None:
    """NAME and FOLDER stand for any."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z-]+)", text):
        assert re.search(rf"^[a-z -]*\b{target}\b[a-z -]*:", makefile, re.MULTILINE), target
    for path in re.findall(r"`([^`\s]*/[^`\s]*)`", text):
        assert re.search("NAME|FOLDER", path) or (ROOT / path).exists(), path


@pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing.*is deprecated")  # by PEFT
@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.stem)
def test_the_examples_to_copy_run_and_print_what_they_say(
    page: Path, eval_example: EvalExample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    names: dict[str, Any] = {}
    examples = list(find_examples(page))
    for example in examples:
        if any(word in example.source and find_spec(word) is None for word in OPTIONAL):
            continue
        names = eval_example.run_print_check(example, module_globals=names)
    plt.close("all")
    assert examples


@pytest.mark.parametrize(
    "page", [path for path in PAGES if ">>> " in path.read_text()], ids=lambda p: p.stem
)
def test_the_examples_of_pages_run(page: Path) -> None:
    results = doctest.testfile(str(page), module_relative=False)
    assert results.attempted
    assert not results.failed


def test_every_subcommand_is_on_the_page_of_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The page has a block for each, which the site replaces by what --help prints."""
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    commands = re.findall(r"^    ([a-z][a-z-]*)\b", capsys.readouterr().out, re.MULTILINE)
    text = (DOCS / "command-line.md").read_text()
    assert "eval" in commands
    shown = re.findall(r"^```{command} ntk-alibi (\S+)\n```$", text, re.MULTILINE)
    assert sorted(shown) == sorted(commands)


class Parsed(BaseException):
    """Raised in place of running a command."""


def test_commands_to_copy_have_options_and_methods_that_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What they compute takes minutes, or a model of the reader's."""
    parse = argparse.ArgumentParser.parse_args

    def parse_only(parser: argparse.ArgumentParser, words: list[str]) -> None:
        options = parse(parser, words)
        methods = [getattr(options, "method", None), *(getattr(options, "methods", None) or ())]
        for method in methods:
            assert method is None or parse_method(method, 2048).name
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    commands = [
        command
        for page in (ROOT / "README.md", *PAGES)
        for command in re.findall(
            r"^ *ntk-alibi (.*)$",
            page.read_text().replace("\\\n", ""),
            re.MULTILINE,
        )
    ]
    assert len(commands) > 10
    for command in commands:
        words = shlex.split(command, comments=True)
        if words[0] != "lm-eval":  # whose options are the harness's
            with pytest.raises(Parsed):
                cli.main(words)


def test_the_numbers_behind_the_pictures_are_those_of_the_tables() -> None:
    summary = json.loads((DOCS / "pictures/nano-bloom.json").read_text())
    found = {
        (entry["task"], entry["method"], f"{entry['multiple']:g}x"): with_ends(
            *(100 * entry[name] for name in ("accuracy", "low", "high"))
        )
        for entry in summary["retrieval"]
    }
    text = (ROOT / "studies/results/first-nano-bloom.md").read_text()
    written = {}
    for task, table in re.findall(r"<!-- (lines|topics) -->\n(.*?)\n\n<!-- end", text, re.DOTALL):
        header, _, *rows = [line.strip("| ").split("|") for line in table.split("\n")]
        for label, *cells in rows:
            for multiple, cell in zip(header[1:], cells, strict=True):
                written[task, label.strip(), multiple.strip()] = cell.strip()
    assert len(written) == 70
    assert written == found


def test_the_site_builds_without_a_warning_and_asks_no_network(tmp_path: Path) -> None:
    pytest.importorskip("furo", reason="the site needs pip install 'ntk-alibi[docs]'")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--nitpicky", "-b", "html"]
    done = subprocess.run([*command, DOCS, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    order = (tmp_path / "_static/language_data.js").read_text()
    assert "var Scorer = {" in order  # with const, searchtools.js would not load
    for page in tmp_path.rglob("*.html"):
        loaded = r'<(?:script|img|iframe)[^>]* src="([^"]+)"|<link[^>]* href="([^"]+)" rel="style'
        for target in map("".join, re.findall(loaded, page.read_text())):
            assert not target.startswith(("http", "//")), (page.name, target)
