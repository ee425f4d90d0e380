"""Run transformers' tests of the model families stock and patched, and print what differs."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import transformers

from peers.ways import FAMILIES, STOCK, VARIABLE, WAYS

BY_HAND = Path(__file__).parents[1]
ROOT = BY_HAND.parents[1]
REPOSITORY = "https://github.com/huggingface/transformers"
OUTCOMES = ("passed", "failed", "skipped")

#: The folders of the families' code and tests, by the families' names.
FOLDERS = {family.name: family.config_class().__module__.split(".")[-2] for family in FAMILIES}


def main() -> None:
    """Print a table of outcomes, and the tests that pass stock and fail in another way."""
    parser = _parser()
    options = parser.parse_args()
    options.transformers = options.transformers or _cloned(parser)
    if not (options.transformers / "tests/models").is_dir():
        parser.error(f"--transformers must have a folder tests/models, got {options.transformers}")
    options.results.mkdir(parents=True, exist_ok=True)
    print(f"transformers {transformers.__version__}, tests of {_version(options.transformers)}\n")
    print("| family | way | " + " | ".join(OUTCOMES) + " |\n| --- | --- |" + " --- |" * 3)
    broken = [line for family in options.families for line in _compared(options, family)]
    print("\n".join(["\nfail, but pass stock:", *broken] if broken else ["\nall pass as stock"]))
    sys.exit(bool(broken))


def _compared(options: argparse.Namespace, family: str) -> list[str]:
    """Print a family's rows of the table, and return the tests that only other ways fail."""
    stock: dict[str, str] = {}
    broken = []
    for way in WAYS:
        outcomes = _outcomes(options, family, way)
        counts = Counter(outcomes.values())
        print(f"| {family} | {way} | {' | '.join(str(counts[x]) for x in OUTCOMES)} |", flush=True)
        if way == STOCK:
            stock = outcomes
        failed = [name for name, outcome in outcomes.items() if outcome == "failed"]
        broken += [f"{way}: {name}" for name in failed if stock.get(name) != "failed"]
    return broken


def _outcomes(options: argparse.Namespace, family: str, way: str) -> dict[str, str]:
    """Run a family's tests in one way, and return their outcomes by name."""
    name = FOLDERS[family]
    report = options.results.absolute() / f"{name}-{way}.xml"
    report.unlink(missing_ok=True)
    tests = f"tests/models/{name}/test_modeling_{name}.py"
    plugins = ["-p", "peers.ways", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, tests, f"--junitxml={report}"],
        cwd=options.transformers,
        env={**os.environ, "PYTHONPATH": str(BY_HAND), "HF_HUB_OFFLINE": "1", VARIABLE: way},
        capture_output=True,
        text=True,
    )
    report.with_suffix(".log").write_text(done.stdout + done.stderr)
    if done.returncode not in (0, 1) or not report.exists():  # 1: some tests failed
        sys.exit(f"pytest did not run {tests} {way}: see {report.with_suffix('.log')}")
    outcomes: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        test = f"{case.attrib['classname'].split('.')[-1]}::{case.attrib['name']}"
        if kinds & {"failure", "error"}:
            outcomes[test] = "failed"
        else:  # subtests have the name of their test
            outcomes.setdefault(test, "skipped" if "skipped" in kinds else "passed")
    return outcomes


def _cloned(parser: argparse.ArgumentParser) -> Path:
    """Return a clone of the installed version's tag, made on first use."""
    tag = f"v{transformers.__version__}"
    folder = ROOT / f"build/transformers-{tag}"
    if not folder.exists():
        command = ["git", "clone", "-q", "--depth=1", f"--branch={tag}", REPOSITORY, str(folder)]
        if subprocess.run(command).returncode:
            parser.error(f"git cannot clone {REPOSITORY} at {tag}: give a checkout of it")
    return folder


def _version(checkout: Path) -> str:
    """Return the version and, if git knows it, the commit of a checkout."""
    version = re.search(r'version="([^"]+)"', (checkout / "setup.py").read_text())
    git = ["git", "-C", str(checkout), "describe", "--always", "--tags"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return " ".join(filter(None, [version and version[1], f"({commit})" if commit else ""]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m peers", description=__doc__)
    parser.add_argument(
        "--transformers",
        metavar="PATH",
        type=Path,
        help="a checkout of transformers at the installed version; by default a clone of it",
    )
    parser.add_argument("--families", nargs="+", choices=FOLDERS, default=list(FOLDERS))
    parser.add_argument(
        "--results",
        metavar="PATH",
        type=Path,
        default=ROOT / "build/peers",
        help="for pytest's logs",
    )
    return parser


if __name__ == "__main__":
    main()
