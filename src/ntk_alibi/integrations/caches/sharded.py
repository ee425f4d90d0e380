"""A key-value cache whose tokens are spread over the ranks of a process group."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache

from ntk_alibi.distributed.ranks import Ranks
from ntk_alibi.fused.key_norms import KeyNorms
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.integrations.caches.growing import GrowingLayer

#: Room for new tokens in the first buffers.
CAPACITY = 64

#: Least number of new tokens that stay together on one rank.
LEAST_RUN = 64


class ShardedCache(Cache):
    """A transformers cache for generation over a context that no single memory holds.

    The model must be patched with the same group. All ranks call `generate()` with the same whole
    prompt. The first pass cuts the prompt: each rank computes its part, and keeps the keys and
    values of it. Every later token is computed by all ranks. Each attends to the keys that it
    holds; outputs and logsumexps, 4 (head_dim + 1) bytes a head, are gathered and merged. A rank
    whose keys are proven to be too far for all heads does neither, and sends one byte. New keys
    stay with one rank, at first the rank with the text's end, until it holds an eighth more than
    another (64 tokens more in short texts), which then gets them. New keys of another long pass,
    such as the next turn of a conversation, are dealt out in runs, so that all ranks hold equally
    many.

    All ranks get the same logits to the bit, and so the same tokens: greedy, by beam search, or
    sampled from generators of one seed. The logits of a long first pass are those that
    logits_to_keep asks for, by default of its last token only.

    Args:
        group: a torch.distributed.ProcessGroup, or a DeviceMesh with one dimension.

    Attributes:
        columns: the columns of the text whose keys this rank holds, ascending int64.

    Raises:
        TypeError, ValueError: group is no such group, or this process is not in it.

    Example:
        >>> import ntk_alibi as na
        >>> na.ShardedCache(group="gloo")
        Traceback (most recent call last):
            ...
        TypeError: group must be a torch.distributed.ProcessGroup or a DeviceMesh, got str

    See docs/distributed.md for a whole program.
    """

    def __init__(self, group: Any) -> None:
        new_layer: Any = partial(GrowingLayer, CAPACITY)
        super().__init__(layer_class_to_replicate=new_layer)
        self.ranks = Ranks.from_group(group)
        self._lengths = [0] * self.ranks.size
        self._owner = self.ranks.size - 1
        self.columns = torch.zeros(0, dtype=torch.int64)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens on all ranks together."""
        return sum(self._lengths)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return the number of keys of the whole text, and 0, its first column."""
        return self.get_seq_length() + query_length, 0

    def update(
        self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Append this rank's keys and values of a layer, and return all that it holds."""
        keys, values = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if keys.shape[2] > len(self.columns):
            raise ValueError(
                f"{CACHE} must not be a ShardedCache in a model that is not patched with "
                f"its group, got one with {keys.shape[2]} keys for {len(self.columns)} columns: "
                "patch(model, scaling, group=group)"
            )
        return keys, values

    def hold(self, lengths: list[int]) -> slice:
        """Note that the next tokens go to the ranks, `lengths[rank]` to each in their order.

        Return which of them go to this rank.
        """
        begin, past = sum(lengths[: self.ranks.rank]), self.get_seq_length()
        own = slice(begin, begin + lengths[self.ranks.rank])
        self.columns = torch.cat([self.columns, torch.arange(past + own.start, past + own.stop)])
        self._lengths = [x + y for x, y in zip(self._lengths, lengths, strict=True)]
        return own

    def deal(self, tokens: int) -> slice:
        """Note where the next tokens go, and return which of them go to this rank.

        Many are dealt out in runs, so that all ranks hold equally many; a few stay together.
        """
        if tokens >= LEAST_RUN * self.ranks.size:
            lengths = self._level(tokens)
        else:
            fewest = min(self._lengths)
            if self._lengths[self._owner] - fewest >= max(LEAST_RUN, fewest // 8):
                self._owner = self._lengths.index(fewest)
            lengths = [tokens if x == self._owner else 0 for x in range(self.ranks.size)]
        return self.hold(lengths)

    def _level(self, tokens: int) -> list[int]:
        """Return how many new tokens each rank gets, so that the emptiest ranks become even."""
        held = sorted(self._lengths)
        count = len(held)
        while (tokens + sum(held[:count])) // count < held[count - 1]:
            count -= 1
        level, rest = divmod(tokens + sum(held[:count]), count)
        lengths = []
        for length in self._lengths:
            one_more = int(length <= level and rest > 0)
            rest -= one_more
            lengths.append(max(level - length, 0) + one_more)
        return lengths

    def held(self, layer_idx: int) -> tuple[Any, Any]:
        """Return the keys and values that this rank holds, or None and None."""
        layer: Any = self.layers[layer_idx] if layer_idx < len(self.layers) else None
        if layer is None or layer.get_seq_length() == 0:
            return None, None
        keys, values = layer.held()
        return keys, values

    def norms(self, layer_idx: int) -> KeyNorms:
        """Return the norms of the keys that this rank holds."""
        layer: Any = self.layers[layer_idx]
        return layer.norms()  # type: ignore[no-any-return]

    def crop(self, max_length: int) -> None:
        """Remove -max_length tokens, or keep the first max_length tokens of the text if above 0.

        transformers gives the number of tokens to remove, which may be 0; older versions give the
        number of tokens to keep, which is not.
        """
        if max_length == 0:
            return
        length = self.get_seq_length()
        kept = max(length + max_length, 0) if max_length < 0 else min(max_length, length)
        every = self.ranks.gather_objects(self.columns)
        self._lengths = [int((x < kept).sum()) for x in every]
        self.columns = self.columns[self.columns < kept]
        layers: list[Any] = self.layers
        for layer in layers:
            surplus = layer.get_seq_length() - len(self.columns)
            if surplus > 0:
                layer.crop(-surplus)

    def reset(self) -> None:
        """Remove all tokens."""
        super().reset()  # type: ignore[no-untyped-call]
        self._lengths = [0] * self.ranks.size
        self._owner = self.ranks.size - 1
        self.columns = self.columns[:0]
