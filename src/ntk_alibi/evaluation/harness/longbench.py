"""LongBench's TREC and MultiFieldQA-en as harness tasks on local files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lm_eval.tasks
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

from ntk_alibi import _checks
from ntk_alibi.evaluation.harness.case_file import read_lines, text, texts


class LocalTask(ConfigurableTask):  # type: ignore[misc]
    """The harness's task longbench_NAME with its prompts and metrics, on a local file."""

    def __init__(self, config: dict[str, Any]) -> None:
        name = config["dataset_kwargs"]["name"]
        folder = Path(str(lm_eval.tasks.__file__)).parent / "longbench"
        theirs = load_yaml(folder / f"{name}.yaml", resolve_func=True)
        for key in ("tag", "dataset_path", "dataset_name"):
            theirs.pop(key, None)
        ours = {key: value for key, value in config.items() if key not in ("class", "tag")}
        super().__init__(config={**theirs, **ours, "custom_dataset": documents})


def documents(name: str, data: str | None = None, **_: Any) -> dict[str, Any]:
    """Read a LongBench file into the form in which the harness takes a data set.

    Args:
        name: "trec" or "multifieldqa_en".
        data: path of the .jsonl file, or of a folder that holds it as NAME.jsonl.
    """
    from datasets import Dataset

    if data is None:
        _checks.missing("data", f"(LongBench's {name}.jsonl, or its folder: --metadata data=…)")
    path = Path(data) / f"{name}.jsonl" if Path(data).is_dir() else Path(data)
    read = read_lines(path, f"longbench-{name}", _document, blanks=True)
    return {"test": Dataset.from_list([document for _, document in read])}


def _document(entry: dict[str, Any]) -> dict[str, Any]:
    """Rename the keys of an entry to those of the harness's prompts."""
    classes = entry.get("all_classes") or []
    return {
        "context": text(entry, "context"),
        "question": text(entry, "question" if "question" in entry else "input"),
        "answers": texts(entry, "answers"),
        "all_classes": texts(entry, "all_classes") if classes else [],
    }
