"""The results of a model in a study, stored together with their recipe and plan."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ntk_alibi import _files


class ResultsFile:
    """A JSON file with the results of one recipe and plan.

    Args:
        path: path of the file.
        recipe: settings of the training that is measured, a dataclass.
        plan: plan of the measurements, a dataclass.
    """

    def __init__(self, path: Path, recipe: Any, plan: Any) -> None:
        self._path = path
        self._work = json.loads(json.dumps({"recipe": asdict(recipe), "plan": asdict(plan)}))

    def read(self) -> dict[str, Any] | None:
        """Return the stored results; None if there is no file.

        Raises:
            ValueError: the file is damaged, or holds results of another recipe or plan.
        """
        if not self._path.exists():
            return None
        results: dict[str, Any] = _files.read_json(self._path)
        with _files.readable("results of the study; remove it to measure again", self._path):
            same = {key: results.pop(key) for key in self._work} == self._work
        if not same:
            raise ValueError(
                f"{self._path} holds results of other work than {self._work}; remove it to measure "
                "again"
            )
        return results

    def write(self, results: dict[str, Any]) -> None:
        """Write results, together with recipe and plan, in place of earlier ones."""
        with _files.replacing(self._path) as file:
            file.write_text(json.dumps({**self._work, **results}))
