"""The harness's cache keeps answers through interruptions; damage and a full disk are sentences."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commands import full_disk, search_tasks_in
from ntk_alibi.evaluation.harness import run as harness
from ntk_alibi.evaluation.harness import stored_answers
from ntk_alibi.evaluation.harness.model import StretchedLM

pytestmark = pytest.mark.slow  # needs the evaluation harness

#: What ends a process at once: on Windows every signal does, with its number as the status.
KILL = int(getattr(signal, "SIGKILL", signal.SIGTERM))

REQUESTS = [SimpleNamespace(args=("text " * 100 + str(number), " x")) for number in range(300)]


class Model:
    """A model that stores its answers after each pass of 32, as StretchedLM does."""

    rank = 0

    def set_cache_hook(self, hook: Any) -> None:
        self.cache_hook = hook

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        self.asked = len(requests)
        for number, request in enumerate(requests, 1):
            self.cache_hook.add_partial("loglikelihood", request.args, (-1.5, True))
            if number % 32 == 0:
                self.cache_hook.dbdict.commit()
        return [(-1.5, True)] * len(requests)


def asked(path: Path) -> int:
    """Return how many of the requests the model is asked, since the cache has no answer."""
    model: Any = Model()
    model.asked = 0
    with harness.quiet(), stored_answers.kept(model, path) as cached:
        assert cached.loglikelihood(REQUESTS) == [(-1.5, True)] * len(REQUESTS)
    return int(model.asked)


def test_answers_come_back(tmp_path: Path) -> None:
    assert asked(tmp_path / "answers") == 300
    assert asked(tmp_path / "answers") == 0


def test_a_killed_process_has_kept_its_passes(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        f"sys.path[:0] = [{str(Path(__file__).parent)!r}, *{sys.path!r}]\n"
        "import test_cache\n"
        "from ntk_alibi.evaluation.harness import stored_answers\n"
        "with stored_answers.kept(test_cache.Model(), Path(sys.argv[1])) as cached:\n"
        "    cached.lm.loglikelihood(test_cache.REQUESTS[:64])\n"
        f"    os.kill(os.getpid(), {KILL})\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "answers")], check=False)
    assert done.returncode == (KILL if os.name == "nt" else -KILL)
    assert asked(tmp_path / "answers") == 300 - 64


def test_answers_of_another_method_or_model_are_refused(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness itself finds stored answers by the request alone."""
    monkeypatch.chdir(tmp_path)
    search_tasks_in(tmp_path, monkeypatch)
    batches, answer_batch = [], StretchedLM.answer_batch
    monkeypatch.setattr(
        StretchedLM, "answer_batch", lambda lm, x: batches.append(1) or answer_batch(lm, x)
    )

    def run(settings: str, cache: str = "answers") -> None:
        words = ["--model", "ntk_alibi", "--model_args", f"pretrained={tiny_checkpoint},{settings}"]
        words += ["--tasks", "ntk_alibi_lines", "--metadata", "lengths=[256]", "records=2"]
        harness.main([*words, "--use_cache", cache])

    for _ in range(2):
        run("method=ntk:4")
        assert len(batches) == 2
    for settings in ("method=ntk:2", "method=ntk:4:logn=1", "method=ntk:4,dtype=bfloat16"):
        with pytest.raises(ValueError, match="use_cache must be a file of answers of this model"):
            run(settings)
    asked(tmp_path / "theirs")
    with pytest.raises(ValueError, match=r"got '.*theirs_rank0.db', which has answers of another"):
        run("method=ntk:4", "theirs")
    run("method=ntk:2", "others")
    assert len(batches) == 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"not a database" * 100,
        lambda content: content[:4096] + bytes(len(content) - 4096),
    ],
    ids=["truncated", "of another format", "zeros inside"],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    asked(tmp_path / "answers")
    file = tmp_path / "answers_rank0.db"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"answers_rank0.db' must be a file of answers; remove it"):
        asked(tmp_path / "answers")


def test_a_damaged_answer_is_refused(tmp_path: Path) -> None:
    asked(tmp_path / "answers")
    with closing(sqlite3.connect(tmp_path / "answers_rank0.db")) as connection:
        connection.execute("UPDATE unnamed SET value = ?", (b"nonsense",))
        connection.commit()
    with pytest.raises(OSError, match=r"answers_rank0.db: invalid load key"):
        asked(tmp_path / "answers")


def test_a_full_disk_is_an_error_and_answers_before_it_are_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with full_disk(24_000), pytest.raises(OSError, match=re.escape("answers_rank0.db: ")):
        asked(tmp_path / "answers")
    assert capfd.readouterr().err == ""
    assert asked(tmp_path / "answers") < 300
