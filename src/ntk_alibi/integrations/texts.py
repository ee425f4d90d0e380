"""What the callers of a patched model say about the texts of its rows.

transformers' collators and its continuous batching pack several texts into one row, and say so in
arguments that BLOOM and MPT drop before their inner model could read them. A hook therefore reads
these arguments on each model from the one that was patched to the one whose layers attend.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from ntk_alibi import _arrays
from ntk_alibi.integrations.forward_pass import untraced
from ntk_alibi.integrations.passed_through import Padding
from ntk_alibi.integrations.settings import TRACEABLE, current

#: The attribute of a patched model that keeps the models with the hook, each with its handle.
_HOOKED = "_ntk_alibi_hooked"

#: Arguments of the paged cache of transformers' continuous batching.
OF_PAGED_CACHE = ("cache", "read_index", "write_index", "block_table")


@dataclass(frozen=True)
class Rows:
    """The rows of a pass.

    Attributes:
        count: the number of rows.
        tokens: the number of new tokens of each.
        past: the number of cached tokens of each.
        mask: the caller's attention_mask, or None.
        parts: whether a row may be two parts of a text, with other tokens between them.
    """

    count: int
    tokens: int
    past: int
    mask: Any
    parts: bool

    def real_tokens(self, like: torch.Tensor) -> torch.Tensor | None:
        """Return which new tokens are real, (batch, tokens), or None if each follows the last."""
        mask = self.mask.mask if isinstance(self.mask, Padding) else self.mask
        real = torch.ones_like(like, dtype=torch.bool)
        if isinstance(mask, torch.Tensor):
            if mask.ndim == 4:  # of generate() for a static cache; the last query sees real keys
                mask = (mask if mask.dtype == torch.bool else mask == 0)[:, 0, -1]
            given = mask[:, self.past : self.past + self.tokens] != 0
            real = given if given.shape[-1] == like.shape[-1] else real
        return real if self.parts or not bool(real.all()) else None


def _of_positions(value: Any, rows: Rows) -> torch.Tensor:
    """Return the texts of position_ids: a position that is not the next one begins a text.

    Padding may have any position, and a real token any greater one than those before it, where
    there is padding or a part of a text.
    """
    positions = torch.as_tensor(value)
    positions = positions[None] if positions.ndim == 1 else positions
    real = rows.real_tokens(positions)
    if real is None:
        begins = positions.diff(dim=-1) != 1
    else:
        behind = torch.where(real, positions, positions.min() - 1).cummax(dim=-1).values[:, :-1]
        begins = real[:, 1:] & (positions[:, 1:] <= behind)
    return F.pad(begins.cumsum(dim=-1), (1, 0))


def _of_cumulative(value: Any, rows: Rows) -> torch.Tensor:
    """Return the texts of cumulative lengths, 0 and the end of each text in all rows together."""
    ends = torch.as_tensor(value)
    total = max(int(ends[-1]), rows.count * rows.tokens)
    columns = torch.arange(total, device=ends.device)
    texts = torch.searchsorted(ends, columns, right=True)
    return texts.view(rows.count, -1) if total % rows.count == 0 else texts[None]


def _of_lengths(value: Any, rows: Rows) -> torch.Tensor:
    """Return the least texts of the greatest length of a text."""
    return torch.arange(rows.tokens)[None] // max(int(value), 1)


def _of_numbers(value: Any, rows: Rows) -> torch.Tensor:
    """Return the texts of numbers of texts."""
    return torch.as_tensor(value).reshape(rows.count, -1)


#: For each argument that may say that a row holds several texts: a function of its value and the
#: rows that returns a number of a text for each token, and what the value must be.
SOURCES: dict[str, tuple[Callable[..., torch.Tensor], str]] = {
    "position_ids": (_of_positions, "rise by one from real token to real token"),
    "cu_seq_lens_q": (_of_cumulative, "be the ends of whole rows"),
    "cu_seq_lens_k": (_of_cumulative, "be the ends of whole rows"),
    "max_length_q": (_of_lengths, "be the length of a row"),
    "max_length_k": (_of_lengths, "be the length of a row"),
    "seq_idx": (_of_numbers, "be one number a row"),
}


def texts_of_rows(model_name: str, given: Mapping[str, Any], *, parts: bool = False) -> None:
    """Read what a caller says about the texts of its rows, and refuse more than one a row.

    Args:
        model_name: name of the model in messages.
        given: the arguments of its forward, by name.
        parts: whether a row may be two parts of a text, with other tokens between them.

    Raises:
        ValueError: an argument says that a row holds several texts, or is one of a paged cache.
    """
    for name in OF_PAGED_CACHE:
        if given.get(name) is not None:
            raise ValueError(
                f"{name} must be None for a patched {model_name}, got that of a paged cache: "
                "generate_batch packs several texts into a row, which the patch would read as one; "
                "call generate()"
            )
    inputs = given.get("input_ids")
    inputs = given.get("inputs_embeds") if inputs is None else inputs
    if inputs is None:
        return  # the model itself raises the error
    cache: Any = given.get("past_key_values")
    past = 0 if cache is None else int(cache.get_seq_length())
    count, tokens = inputs.shape[:2]
    rows = Rows(count, tokens, past, given.get("attention_mask"), parts)
    for name, (texts_of, must) in SOURCES.items():
        value = given.get(name)
        if value is None:
            continue
        texts = texts_of(value, rows)
        if bool((texts != texts[:, :1]).any()):
            raise ValueError(
                f"{name} must {must} for a patched {model_name}, which reads each row as one text, "
                f"got {value}: pass one text a row, padded"
            )


def keep_hooks(model: nn.Module, target: nn.Module) -> None:
    """Let the models of transformers and PEFT from `model` down to a target read these arguments.

    Modules of others hand on what they mean to.
    """
    hooked = getattr(target, _HOOKED, ())
    for part in model.modules():
        ours = isinstance(part, PreTrainedModel) or hasattr(part, "peft_config")
        if ours and all(x is not part for x, _ in hooked) and target in part.modules():
            parameters = inspect.signature(type(part).forward).parameters.values()
            names = [x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD]
            check = functools.partial(_check, tuple(names[1:]), target)
            handle = part.register_forward_pre_hook(check, prepend=True, with_kwargs=True)
            hooked = (*hooked, (part, handle))
    setattr(target, _HOOKED, hooked)


def give_back(target: nn.Module) -> None:
    """Undo `keep_hooks`."""
    for _, handle in getattr(target, _HOOKED, ()):
        handle.remove()
    delattr(target, _HOOKED)


def _check(
    names: tuple[str, ...],
    target: nn.Module,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Check the arguments of a model, the first of which have these names."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    said = [name for name in (*OF_PAGED_CACHE, *SOURCES) if given.get(name) is not None]
    if not said:
        return
    if hasattr(target, TRACEABLE) and _arrays.is_tracing():
        _check_traced(said, names, model)
    else:
        _check_values(said, target, model, given)


def _check_traced(said: list[str], names: tuple[str, ...], model: nn.Module) -> None:
    """Refuse what a graph could not check, but the position_ids that generate() gives."""
    for name in said:
        if name not in names:
            raise ValueError(
                f"{name} must be None where torch traces a patched {type(model).__name__}, which "
                "reads each row as one text, got a value that a graph cannot check"
            )


@untraced
def _check_values(
    said: list[str], target: nn.Module, model: nn.Module, given: Mapping[str, Any]
) -> None:
    ranks, name = current(target).ranks, type(model).__name__
    if ranks is None:
        texts_of_rows(name, given)
        return

    def describe() -> dict[str, Any]:
        texts_of_rows(name, given, parts=True)
        return {"arguments that say what is one text": said}

    ranks.in_step(describe)
