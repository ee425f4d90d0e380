"""`export`: a stretched model as the files of another engine.

`export` checks its arguments once, from top to bottom, and passes a `Request` to the format, which
writes to a temporary name beside the target. Renaming it is the last step, so after an error, a
full disk or Ctrl-C the path holds what it held before.

A format is a module of this folder with a `Format` called FORMAT, whose `check` refuses what the
format cannot hold, and whose `write` writes. The next one is added by three lines: its module in
`ntk_alibi.engines.FORMATS`, its packages in an extra of pyproject.toml, and the extra in
`_installed.EXTRAS`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ntk_alibi import _checks, _files, _installed
from ntk_alibi._core import __version__
from ntk_alibi.engines import FORMATS
from ntk_alibi.integrations import AS_SAVED, families, patch
from ntk_alibi.integrations.classes import PATCH
from ntk_alibi.integrations.family import Family
from ntk_alibi.integrations.settings import Settings

#: The file that describes an exported folder; only a folder with this file is replaced.
ABOUT = "ntk_alibi_export.json"


@dataclass(frozen=True)
class Request:
    """What to write.

    Attributes:
        model: the model with its head, which a format does not change.
        target: the module in it whose layers attend.
        family: the family of the target.
        settings: the settings to write: scaling, log_n, mask and bias.
        tokenizer: the model's tokenizer, or None.
        dtype: one of the format's dtypes.
        cache: whether a graph takes and returns keys and values.
        report: a function that takes a line about the progress.
    """

    model: Any
    target: Any
    family: Family
    settings: Settings
    tokenizer: Any
    dtype: str
    cache: bool
    report: Callable[[str], object]

    @property
    def method(self) -> str:
        """The scaling and log_n to write, in words."""
        scaling, log_n = self.settings.scaling, self.settings.log_n
        stretched = self.family.own_bias if scaling is None else repr(scaling)
        return stretched if log_n is None else f"{stretched}, log_n={log_n!r}"


@dataclass(frozen=True)
class Written:
    """What a format has written.

    Attributes:
        inputs: a line for each input of the engine.
        outputs: a line for each output.
        checked: a sentence that tells how the result was checked, with what was measured.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    checked: str


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        dtypes: the names of the dtypes that its parameters may have.
        is_folder: True for a folder with a configuration and a tokenizer, False for one file.
        check: refuses a request that the format cannot hold; the model may lack its weights.
        write: writes a checked request to a path, which is no file yet, or an empty folder.
        packages: the packages that `write` imports. `check` needs none of them: what is impossible
            is refused before a package is asked for.
    """

    dtypes: tuple[str, ...]
    is_folder: bool
    check: Callable[[Request], object]
    write: Callable[[Request, Path], Written]
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exported:
    """What `export` has written; as a string, a summary.

    Attributes:
        path: the file or folder.
        format: its format.
        family: the family of the model.
        method: the scaling, and log_n if there is one.
        dtype: the dtype of the parameters.
        size: the size in bytes.
        inputs: a line for each input of the engine.
        outputs: a line for each output.
        checked: how the result was checked.
        version: the version of this package.
    """

    path: str
    format: str
    family: str
    method: str
    dtype: str
    size: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    checked: str
    version: str = __version__

    def __str__(self) -> str:
        kind = "folder" if os.path.isdir(self.path) else "file"
        lines = [
            f"{kind} {self.path}: {self.format}, {self.dtype}, {self.size / 2**20:.1f} MiB",
            f"model: {self.family}, {self.method}",
            *(f"input: {line}" for line in self.inputs),
            *(f"output: {line}" for line in self.outputs),
            f"checked: {self.checked}",
        ]
        return "\n".join(lines)


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    method: Any = None,
    *,
    format: Literal["gguf", "onnx", "torch"] | None = None,
    dtype: Any = None,
    tokenizer: Any = None,
    cache: bool = True,
    overwrite: bool = False,
    progress: Callable[[str], object] | None = None,
) -> Exported:
    """Write a stretched model as files for another engine, which runs them without ntk_alibi.

    docs/run-elsewhere.md lists the engines, what each format can hold, and how it was checked.
    After an error the path holds what it held before.

    Args:
        model: a decoder with ALiBi of transformers, with its language model head.
        path: the file to write ("gguf"), or the folder (all other formats).
        method: as `patch` takes it: a method's name such as "max-bias:4", a scaling or its dict.
            None exports the patch in force, or else what `patch(model)` would put in force.
        format: "gguf" for llama.cpp, "onnx" for ONNX Runtime and OpenVINO, or "torch" for a program
            of torch.export; None takes the format that the path ends in. A GGUF file holds BLOOM
            and MPT, with `MaxBias` or a scaling that gives the same slopes. The other formats are
            graphs, and hold what `patch` accepts with attention="traceable".
        dtype: the dtype of the parameters: "float32", "float16", "bfloat16" ("gguf" and "torch"),
            or "q8_0" ("gguf"); None keeps the model's dtype. GGUF files keep norms and biases in
            float32.
        tokenizer: the model's fast tokenizer; None loads it from the folder or hub name from which
            the model was loaded.
        cache: whether a graph takes and returns keys and values, besides tokens, mask and logits;
            must be True for "gguf".
        overwrite: whether to replace what is at the path.
        progress: a function such as `print` that is called with a line about each step.

    Returns:
        What was written: path, format, method, size and so on; as a string, a summary.

    Raises:
        TypeError: model is not a torch module; method, tokenizer or progress has a wrong type.
        ValueError: the format is not clear, or cannot hold the model, the method or the dtype;
            method is given for a patched model; there is something at the path.
        OSError: the file cannot be written; the message names the path.
        ImportError: the format's packages are not installed.

    Example:
        >>> import tempfile
        >>> import ntk_alibi as na
        >>> from ntk_alibi.models import load
        >>> model, tokenizer, train_length = load()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = f"{folder}/nano.gguf"
        ...     exported = na.export(model, path, na.MaxBias(4.0), dtype="q8_0")
        >>> exported.format, exported.dtype
        ('gguf', 'q8_0')
    """
    name, kind, request = make_request(
        model,
        path,
        method,
        format=format,
        dtype=dtype,
        tokenizer=tokenizer,
        cache=cache,
        overwrite=overwrite,
        progress=progress,
    )
    target = Path(path)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError('model must have its weights in memory, got weights on device "meta"')
    with _files.replacing(target) as unfinished:
        if kind.is_folder:
            unfinished.mkdir()
        result = kind.write(request, unfinished)
        files = (part for part in (unfinished, *unfinished.rglob("*")) if part.is_file())
        size = sum(file.stat().st_size for file in files)
        about = os.fspath(target), name, request.family.name, request.method, request.dtype, size
        exported = Exported(*about, **vars(result))
        if kind.is_folder:
            (unfinished / ABOUT).write_text(f"{_files.json_text(asdict(exported), indent=2)}\n")
    return exported


def make_request(
    model: nn.Module,
    path: str | os.PathLike[str],
    method: Any,
    *,
    format: str | None,
    dtype: Any,
    tokenizer: Any,
    cache: bool = True,
    overwrite: bool,
    progress: Callable[[str], object] | None = None,
) -> tuple[str, Format, Request]:
    """Return a format with its name, and what it is to write, for the arguments of `export`.

    The model may lack its weights: a command checks its arguments before it loads them.
    """
    name, kind = choose_format(path, format, overwrite)
    family, targets = families.found(model)
    if family is None or len(targets) != 1:
        raise ValueError(
            f"model must hold one decoder with ALiBi attention of a known family to be exported, "
            f"got {type(model).__name__}"
        )
    (decoder,) = targets
    if method is not None and hasattr(decoder, PATCH):
        raise ValueError(
            "method must be None for a model that is patched, whose patch is written, got "
            f"{_checks.briefly(method)}"
        )
    chosen = AS_SAVED if method is None else method
    with contextlib.nullcontext() if hasattr(decoder, PATCH) else patch(model, chosen):
        settings = getattr(decoder, PATCH).settings
    dtype = str(next(decoder.parameters()).dtype if dtype is None else dtype)
    dtype = _checks.choice(f"dtype for format {name!r}", dtype.removeprefix("torch."), kind.dtypes)
    tokenizer = _find_tokenizer(model) if tokenizer is None else tokenizer
    if tokenizer is not None:
        _checks.tokenizer(tokenizer)
    _checks.boolean("cache", cache)
    if not (progress is None or callable(progress)):
        raise TypeError(
            f"progress must be a function of a line, or None, got {_checks.briefly(progress)}"
        )
    report = progress or (lambda _: None)
    request = Request(model, decoder, family, settings, tokenizer, dtype, cache, report)
    kind.check(request)
    with _installed.needed_by(f"export to {name!r}"):
        for package in kind.packages:
            import_module(package)
    return name, kind, request


def choose_format(path: Any, format: str | None, overwrite: bool) -> tuple[str, Format]:
    """Return the name of the format and the format, after a check that it can go to a path.

    A path may tell the format by its end, such as bloom.gguf.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be the path of a file or folder, got {_checks.briefly(path)}")
    path = Path(path)
    got = f"got {os.fspath(path)!r}"
    names = f"{', '.join(map(repr, FORMATS))} (OpenVINO reads the folder of 'onnx')"
    if format is None:
        format = next((name for name in FORMATS if path.name.lower().endswith(name)), None)
        if format is None:
            raise ValueError(
                f"format must be given where the path does not end in one of {names}, {got}"
            )
    if format not in FORMATS:
        raise ValueError(f"format must be one of {names}, got {_checks.briefly(format)}")
    kind: Format = import_module(FORMATS[format]).FORMAT
    _checks.boolean("overwrite", overwrite)
    if not path.name or not path.parent.is_dir():
        raise ValueError(f"path must be a name in a folder that exists, {got}")
    if not os.path.lexists(path):
        return format, kind
    if not overwrite:
        raise ValueError(f"path must be new unless overwrite is True, {got}, which exists")
    if path.is_dir() != kind.is_folder:
        needed = "a folder" if kind.is_folder else "a file"
        raise ValueError(f"path must be {needed} for format {format!r}, {got}")
    if kind.is_folder and not (path / ABOUT).is_file():
        raise ValueError(
            f"path must be a new folder, or one that export wrote, {got}, which has no {ABOUT}"
        )
    return format, kind


def _find_tokenizer(model: Any) -> Any:
    """Return the tokenizer of the folder or hub name from which a model was loaded, or None."""
    from transformers import AutoTokenizer

    source = getattr(model, "name_or_path", "")
    try:
        return AutoTokenizer.from_pretrained(source) if source else None
    except (OSError, ValueError, ImportError):  # there is none, or none that can be read
        return None
