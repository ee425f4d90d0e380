"""A study of methods on a model: retrieval at several lengths, perplexity by position."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from ntk_alibi import _checks, _files, _installed
from ntk_alibi.evaluation.comparing.plan import Plan
from ntk_alibi.evaluation.comparing.store import AnswerStore
from ntk_alibi.evaluation.comparing.study import Study, Text, digest, texts_of
from ntk_alibi.evaluation.comparing.summary import Summary, summarise
from ntk_alibi.methods import ORIGINAL, Method, parse_method
from ntk_alibi.scaling import Scaling

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: Packages by which the last digits of results may differ.
PACKAGES = ("ntk-alibi", "transformers", "torch")


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    quiet: bool = False,
    wrap: Callable[[Scaling | None], Scaling | None] = lambda scaling: scaling,
) -> Summary:
    """Run a study with a progress bar and summarise it; answers that are in path are taken over.

    Args:
        model: an unpatched decoder that `patch` takes.
        tokenizer: the model's tokenizer.
        plan: lengths, records and methods of the study.
        path: folder that keeps each answer, for the same study of the same model alone; None for
            none.
        quiet: whether to hide the progress bar, which terminals show.
        wrap: returns the scaling to patch with for the scaling of a method.

    Raises:
        TypeError, ValueError: an argument is wrong, or path has the answers of another study.
    """
    check_study(model, tokenizer, path)
    study = prepare(model, tokenizer, plan, wrap)
    if path is None:
        return answer(model, study, None, quiet=quiet)
    with _files.only_run("path", path):
        return answer(model, study, path, quiet=quiet)


def prepare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    plan: Plan,
    wrap: Callable[[Scaling | None], Scaling | None] = lambda scaling: scaling,
) -> Study:
    """Check a plan for a model, and return its study; the model may have no parameters yet.

    Raises:
        TypeError, ValueError: a method cannot patch the model; a text is too short for its
            questions.
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a Plan, got {_checks.briefly(plan)}")
    named = [parse_method(method, plan.train_length) for method in dict.fromkeys(plan.methods)]
    methods = [replace(method, scaling=wrap(method.scaling)) for method in named]
    for method in methods:
        with _patched(model, method):
            pass
    return Study(plan, methods, texts_of(plan, tokenizer))


def answer(
    model: PreTrainedModel,
    study: Study,
    path: str | os.PathLike[str] | None,
    *,
    quiet: bool = False,
    seconds: float | None = None,
    row: Callable[[Summary], None] = lambda _: None,
) -> Summary:
    """Run a study, and return what `evaluate` returns.

    Args:
        model: the model of the study.
        study: what `prepare` returns.
        path: folder of the answers, or None.
        quiet: whether to hide the progress bar, which terminals show.
        seconds: see `read`.
        row: called with the summary of the first method at the first length as soon as it is known,
            if that length is at most the training length.
    """
    from tqdm import tqdm

    settings = settings_of(model, study)
    store = AnswerStore(
        path, {**settings, "plan": asdict(study.plan), "texts": digest(study.texts)}
    )
    readings = read(model, study, store, seconds=seconds)
    groups = itertools.groupby(readings, lambda reading: (reading[0].name, reading[1].length))
    most = len(study.texts) * len(study.methods)
    with tqdm(total=most, unit=" texts", disable=True if quiet else None) as bar:
        for number, ((name, length), group) in enumerate(groups):
            bar.set_description(f"{name}, {length} tokens")
            for _ in group:
                bar.update()
            if number == 0 and length <= study.plan.train_length:
                first = replace(study, methods=study.methods[:1])
                row(summarise(first, store, settings=settings))
    return summarise(study, store, settings=settings)


def read(
    model: PreTrainedModel, study: Study, store: AnswerStore, *, seconds: float | None = None
) -> Iterator[tuple[Method, Text]]:
    """Let each method read the texts, the shortest first; yield method and text once it is stored.

    Args:
        model: the model of the study.
        study: what `prepare` returns.
        store: where answers go; a text that it has is not read again.
        seconds: time for all texts; the first length is read whole. Each further length has a share
            of the time in proportion to its tokens, for as many of its texts as fit; the study ends
            before a length of which none fits. A pass is taken to need time in proportion to the
            square of the text's length.
    """
    end = None if seconds is None else time.monotonic() + seconds
    lengths = list(dict.fromkeys(text.length for text in study.texts))
    cost = 0.0  # seconds of a pass for each squared token
    for place, length in enumerate(lengths):
        texts = [text for text in study.texts if text.length == length]
        if end is not None:
            left = end - time.monotonic()
            if left <= cost * length**2 * len(study.methods):
                return
            if cost:
                share = left * length / sum(lengths[place:])
                texts = texts[: max(1, int(share / (cost * length**2 * len(study.methods))))]
        for method in study.methods:
            for text in texts:
                begin = time.monotonic()
                if not store.has([method.name], text.name):
                    with _patched(model, method):
                        store.add(method.name, text.name, text.read(model))
                    cost = (time.monotonic() - begin) / length**2
                yield method, text


def _patched(model: Any, method: Method) -> Any:
    """Return the patch of a method, and of nothing that the model was saved with."""
    from ntk_alibi.integrations import patch

    scaling = ORIGINAL if method.scaling is None else method.scaling
    return patch(model, scaling, log_n=method.log_n)


def settings_of(model: PreTrainedModel, study: Study) -> dict[str, Any]:
    """Return what else the answers of a study depend on: weights, patches in force, versions."""
    patches = {}
    for method in study.methods:
        with _patched(model, method) as handle:
            patches[method.name] = repr(handle)
    return {
        "weights": weights_digest(model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "patches": patches,
        "versions": {name: _installed.version_of(name) for name in PACKAGES},
    }


class _Digest:
    """A file that keeps nothing but the digest of what is written to it."""

    def __init__(self) -> None:
        self.found = hashlib.sha256()

    def write(self, content: Any) -> int:
        self.found.update(content)
        return memoryview(content).nbytes

    def flush(self) -> None:
        """Do nothing, as a file with no buffer."""


def weights_digest(model: PreTrainedModel) -> str:
    """Return a digest of all weights and buffers that a model saves, in any form that torch has."""
    import torch

    file: Any = _Digest()
    torch.save(model.state_dict(), file)
    digested: str = file.found.hexdigest()[:16]
    return digested


def check_study(model: Any, tokenizer: Any, folder: Any) -> None:
    """Refuse a wrong model, tokenizer or folder of answers before any work."""
    for method in ("named_parameters", "get_output_embeddings"):
        if isinstance(model, type) or not callable(getattr(model, method, None)):
            got = _checks.briefly(model)
            raise TypeError(f"model must be a decoder that na.patch takes, got {got}")
    _checks.tokenizer(tokenizer)
    if folder is None:
        return
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"path must be a folder, got {folder!r}")
    with _files.naming("path", "a folder that can be written"):
        _files.writable_folder(folder)
