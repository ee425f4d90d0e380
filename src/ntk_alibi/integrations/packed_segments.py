"""The packed segments in the rows of a patched model, which its callers describe.

transformers' collators and its continuous batching pack several texts into one row, and tell it in
arguments of the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from ntk_alibi.integrations.arguments import CACHE, cache_of, inputs_of, paged_cache_of

#: Arguments beside the paged cache of transformers' continuous batching.
OF_PAGED_CACHE = ("read_index", "write_index", "block_table")


@dataclass(frozen=True)
class PackedSegments:
    """The packed segments of rows.

    Attributes:
        queries: the number of its segment for each new token, (rows, tokens).
        keys: the same for each key, (rows, keys).
        cache: what adds new keys to a paged cache, or None.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    cache: Any = None


@dataclass(frozen=True)
class Rows:
    """The rows of a pass.

    Attributes:
        count: the number of rows.
        tokens: the number of new tokens of each.
        past: the number of cached tokens of each.
        mask: the mask that the caller gave, or None.
    """

    count: int
    tokens: int
    past: int
    mask: Any

    def real_tokens(self, like: torch.Tensor) -> torch.Tensor | None:
        """Return which new tokens are real, (batch, tokens), or None if each follows the last."""
        mask, real = self.mask, torch.ones_like(like, dtype=torch.bool)
        if isinstance(mask, torch.Tensor) and mask.ndim == 2:  # others are refused later
            given = mask[:, self.past : self.past + self.tokens] != 0
            real = given if given.shape[-1] == like.shape[-1] else real
        return None if bool(real.all()) else real

    @property
    def padded(self) -> bool:
        """Whether there is a mask that hides tokens, or may do so."""
        mask = self.mask
        return mask is not None and (mask.ndim != 2 or not bool((mask != 0).all()))


@dataclass(frozen=True)
class PagedCache:
    """The paged cache of a pass of continuous batching.

    Attributes:
        cache: transformers' cache.
        given: the arguments with which it finds the places of this pass.
    """

    cache: Any
    given: Mapping[str, Any]

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add keys and values of new tokens, and return all keys and values of this pass."""
        # It may have a head of keys for each head of queries where Falcon has fewer.
        heads = self.cache.layer_to_allocator[layer].num_key_value_heads
        key, value = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
        of_layer = dict(self.given)  # transformers writes the layer's entries into it
        both: tuple[torch.Tensor, torch.Tensor] = self.cache.update(key, value, layer, of_layer)
        return both


def _by_positions(_: str, value: Any, rows: Rows) -> torch.Tensor:
    """Read position_ids: a position that is not the next one begins a text.

    Padding may have any position, and a real token any greater one than those before it, where
    there is padding. A token that generate() adds behind padding on the right
    has the position after the padding's last one.
    """
    positions = torch.as_tensor(value)
    positions = positions[None] if positions.ndim == 1 else positions
    real, jumps = rows.real_tokens(positions), positions.diff(dim=-1) != 1
    if real is None:
        return jumps
    behind = torch.where(real, positions, positions.min() - 1).cummax(dim=-1).values[:, :-1]
    return real[:, 1:] & (positions[:, 1:] <= behind) & jumps


def _by_ends(name: str, value: Any, rows: Rows) -> torch.Tensor:
    """Read cumulative lengths: 0 and the end of each text in all rows together."""
    ends = torch.as_tensor(value).cpu()
    columns = torch.arange(rows.count * rows.tokens + 1)
    rising = bool((ends.diff() >= 0).all()) and [ends[0], ends[-1]] == [0, columns[-1]]
    if not rising or not bool(torch.isin(columns[:: rows.tokens], ends).all()):
        raise ValueError(
            f"{name} must rise from 0 to the last token by way of the ends of all rows, "
            f"{columns[:: rows.tokens].tolist()}, for a patched model, got {value}"
        )
    return torch.isin(columns[:-1], ends).view(rows.count, -1)[:, 1:]


def _by_ids(name: str, value: Any, rows: Rows) -> torch.Tensor:
    """Read segment ids, each of which has one run of tokens."""
    ids = torch.as_tensor(value).reshape(rows.count, -1)
    if any(len(row.unique()) != len(row.unique_consecutive()) for row in ids):
        raise ValueError(
            f"{name} must give each text one run of tokens for a patched model, got {value}"
        )
    return ids.diff(dim=-1) != 0


#: For each argument that may describe several segments in a row: a function of its name, its value
#: and the rows that returns which tokens but the first begin a segment, and what one text a row
#: must do.
SOURCES: dict[str, tuple[Callable[..., torch.Tensor], str]] = {
    "position_ids": (_by_positions, "rise by one from real token to real token"),
    "cu_seq_lens_q": (_by_ends, "be the ends of whole rows"),
    "cu_seq_lens_k": (_by_ends, "be the ends of whole rows"),
    "seq_idx": (_by_ids, "be one id a row"),
}

#: Arguments with the length of the longest segment.
LENGTHS = ("max_length_q", "max_length_k")

_DESCRIBING = (*OF_PAGED_CACHE, *SOURCES, *LENGTHS)


def describing(given: Mapping[str, Any]) -> list[str]:
    """Return the names of a call's arguments that describe segments."""
    paged = given.get("cache") is not None and paged_cache_of(given) is not None
    names = ["cache"] if paged else []
    for name in _DESCRIBING:
        if given.get(name) is not None:
            names.append(name)
    return names


def segments_of_rows(
    model_name: str, given: Mapping[str, Any], why_one: str
) -> PackedSegments | None:
    """Return the packed segments that a caller describes, or None if each row is one text.

    Args:
        model_name: name of the model in messages.
        given: the arguments of its forward, by name.
        why_one: with what the model reads each row as one text, or nothing.

    Raises:
        ValueError: an argument describes several segments in a row where it cannot, or contradicts
            another.
    """
    if paged_cache_of(given) is not None:
        return _paged(model_name, given, why_one)
    for name in OF_PAGED_CACHE:
        if given.get(name) is not None:
            raise ValueError(
                f"cache must be a paged one with {name} for a patched {model_name}, got "
                f"{type(given.get('cache')).__name__}"
            )
    inputs = inputs_of(given)
    if inputs is None or inputs.shape[1] == 0:
        return None  # the model itself raises the error
    cache = cache_of(given)
    past = 0 if cache is None else int(cache.get_seq_length())
    count, tokens = inputs.shape[:2]
    rows = Rows(count, tokens, past, given.get("attention_mask"))
    if not why_one and cache is not None:
        why_one = CACHE
    if not why_one and given.get("use_cache") is True:
        why_one = "use_cache=True"
    if not why_one and rows.padded:
        why_one = "an attention_mask that hides tokens"
    one = torch.zeros((count, tokens - 1), dtype=torch.bool)
    begins: dict[str, torch.Tensor] = {}
    for name, (read, of_one) in SOURCES.items():
        value = given.get(name)
        if value is None:
            continue
        found = read(name, value, rows).cpu()
        if found.shape[1:] != one.shape[1:] or len(found) not in (1, count):
            if not bool(found.any()):
                continue  # no model of these families reads it
            raise ValueError(
                f"{name} must have a value for each of the {(count, tokens)} tokens of a patched "
                f"{model_name}, got shape {tuple(torch.as_tensor(value).shape)}"
            )
        if why_one and bool(found.any()):
            raise ValueError(
                f"{name} must {of_one} for a patched {model_name} with {why_one}, which reads each "
                f"row as one text, got {value}: pass one text a row, padded"
            )
        begins[name] = found.expand(count, -1)
    first, chosen = next(iter(begins.items()), ("input_ids", one))
    for name, other in begins.items():
        if not torch.equal(other, chosen):
            raise ValueError(
                f"{name} must say the same segments as {first} for a patched {model_name}, got "
                f"{given[name]} and {given[first]}"
            )
    ids = F.pad(chosen, (1, 0)).cumsum(dim=-1)
    longest = max(int(row.bincount().max()) for row in ids)
    for name in LENGTHS:
        if given.get(name) is not None and int(given[name]) < longest:
            raise ValueError(
                f"{name} must be at least the length of the longest text, {longest}, for a patched "
                f"{model_name}, got {given[name]}"
            )
    return PackedSegments(ids, ids) if bool(chosen.any()) else None


def _paged(model_name: str, given: Mapping[str, Any], why_one: str) -> PackedSegments:
    """Return the segments of a pass of continuous batching."""
    if why_one:
        raise ValueError(
            f"cache must be None for a patched {model_name} with {why_one}, which reads each row "
            "as one text, got a paged cache: call generate()"
        )
    if given.get("block_table") is not None:
        raise ValueError(
            f"block_table must be None for a patched {model_name}, got one: "
            "ContinuousBatchingConfig(max_blocks_per_request=0)"
        )
    if len(inspect.signature(given["cache"].update).parameters) != 4:
        raise ValueError(
            f"cache must have the method update(keys, values, layer, arguments) for a patched "
            f"{model_name}, as since transformers 5.23, got the method of another version: call "
            "generate()"
        )
    names = "cu_seq_lens_k", "max_length_k", "read_index", "write_index", "block_table"
    ends = given["cu_seq_lens_q"], *given["cu_seq_lens_k"].values()
    if len(ends) != 2:
        raise ValueError(
            f"cu_seq_lens_k must be of one kind of layers for a patched {model_name}, got "
            f"{list(given['cu_seq_lens_k'])}"
        )
    of_queries, of_keys = (x.long() for x in ends)
    columns = torch.arange(given["input_ids"].shape[1], device=of_queries.device)
    ids = torch.searchsorted(of_queries, columns, right=True)
    places = torch.arange(int(of_keys[-1]), device=of_keys.device)
    cache = PagedCache(given["cache"], {name: given.get(name) for name in names})
    keys = torch.searchsorted(of_keys, places, right=True)
    return PackedSegments(ids[None], keys[None], cache)
