"""The search for a factor: its criteria, its certainty, and its choice on nano BLOOM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ntk_alibi.evaluation.comparing import tuning
from ntk_alibi.models import load

ALL = np.arange(8)


def right(*accuracies: float) -> tuning.Floats:
    """Make records of ten questions of which each method answers about the given share."""
    noise = np.array([0, 1, 0, -1, 0, 1, 0, -1])
    counts = np.array([np.clip(10 * a + noise, 0, 10) for a in accuracies])
    return np.stack([counts, np.full_like(counts, 10)], axis=-1)


def test_retrieval_decides() -> None:
    nats = np.array([[2.0], [2.1], [2.2]])
    assert tuning._choose(right(0.2, 0.5, 0.9), nats, ALL) == 2


def test_perplexity_decides_among_those_that_retrieve_alike() -> None:
    nats = np.array([[2.0, 2.0], [2.2, 2.2], [2.1, 2.1]])
    assert tuning._choose(right(0.2, 0.9, 0.9), nats, ALL) == 2


def test_how_sure_it_is() -> None:
    nats = np.array([[2.0], [2.1]])
    assert tuning._best_shares(right(0.2, 0.9), nats, 0) == [0.0, 1.0]
    rng = np.random.default_rng(0)
    close = np.stack([rng.binomial(10, 0.5, (2, 8)), np.full((2, 8), 10)], axis=-1).astype(float)
    shares = tuning._best_shares(close, np.array([[2.0], [2.0]]), 0)
    assert sum(shares) == pytest.approx(1)
    assert max(shares) < 1


def test_candidates_follow_the_length() -> None:
    search = tuning.Search(8192, 2048)
    assert search.candidates[0] == "original"
    assert {"ntk:2", "ntk:4", "ntk:8", "ntk:16", "interpolation:4"} <= set(search.candidates)
    assert not any(name.endswith(":1") for name in tuning.Search(512, 2048).candidates[:-2])
    assert tuning.Search(8192, 2048, ("ntk:3", "original")).candidates == ("original", "ntk:3")


def test_wrong_candidates_are_named_before_any_work(tmp_path: Path) -> None:
    model, tokenizer, length = load()
    with pytest.raises(ValueError, match="method must be original or one of"):
        tuning.search(model, tokenizer, tuning.Search(4096, length, ("yarn:2",)), tmp_path)


@pytest.mark.slow
def test_nano_bloom_is_stretched_where_it_forgets(tmp_path: Path) -> None:
    """At three times the training length NTK a=4 answers nearly all questions, the original few."""
    model, tokenizer, length = load()
    wanted = tuning.Search(3 * length, length, ("ntk:4", "interpolation:4"), records=4, windows=2)
    found = tuning.search(model, tokenizer, wanted, tmp_path, quiet=True)
    assert found["chosen"] == "ntk:4"
    assert found["sure"] > 0.9
    assert found["fresh"]["ntk:4"]["low"] > found["fresh"]["original"]["high"]
    shares = [entry["best_share"] for entry in found["candidates"]]
    assert sum(shares) == pytest.approx(1)
    assert found["candidates"][0]["difference"] == 0
