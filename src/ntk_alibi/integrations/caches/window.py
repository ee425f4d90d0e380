"""A key-value cache of bounded size, for generation of any length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache

from ntk_alibi import _checks
from ntk_alibi._torch_state import is_followed
from ntk_alibi.integrations.arguments import CACHE
from ntk_alibi.integrations.caches import Bounded
from ntk_alibi.integrations.caches.growing import GrowingLayer, Pair


@dataclass
class Shared:
    """Settings and padding that all layers of a cache share.

    Attributes:
        window: number of last tokens to hold.
        sink: number of first tokens to hold, too.
        padding: number of padding columns to the left of each row, (batch,), or None.
        expected: number of tokens after the pass that a patched model announced, or None.
        masked: whether a model asked for the size of its mask since then.
    """

    window: int
    sink: int
    padding: torch.Tensor | None = None
    expected: int | None = None
    masked: bool = False

    @property
    def limit(self) -> int:
        """The greatest number of tokens held."""
        return self.window + self.sink

    def select_rows(self, rows: torch.Tensor) -> None:
        """Keep the padding of some rows."""
        if self.padding is not None:
            own = self.padding[rows.to(self.padding.device)]
            self.padding = own if bool(own.any()) else None


class WindowLayer(GrowingLayer):
    """One layer's sinks and window, contiguous in a buffer of twice their size.

    A new token is written behind the last one, and the sinks over the tokens that left the window.
    At the end of the buffer all tokens move back to its beginning. On average a new token therefore
    costs about two writes, besides the sinks' writes.

    Attributes:
        keys: (batch, heads, tokens, head_dim), a view of its buffer. A row with fewer real tokens
            than are held begins with padding.
        values: (batch, heads, tokens, head_dim), a view of its buffer.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(2 * shared.limit, 2 * shared.limit)
        self._shared = shared
        self._seen = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> Pair:
        """Append keys and values, and return those that the new tokens may see.

        Raises:
            ValueError: a model brings them that is not patched.
        """
        past, new = self._seen, key_states.shape[2]
        if self._shared.masked and self._shared.expected != past + new:
            raise ValueError(
                f"{CACHE} must not be a WindowCache in a model that is not patched with its "
                "window, which would see other tokens: na.patch(model, window=window, sink=sink)"
            )
        held = self.count_held()
        self.keys, self.values = everything = self.joined(key_states, value_states)
        self._seen = past + new
        evicted = held + new - self._shared.limit
        if evicted <= 0:
            return everything
        sinks = self._sinks(everything, past, held)
        if new > 1 or is_followed(*everything):
            # The attention that follows still reads the buffer: what is kept is copied.
            window = self._shared.window
            self.keys, self.values = (
                torch.cat([sink, x[:, :, -window:]], dim=2)
                for sink, x in zip(sinks, everything, strict=True)
            )
            return self.held() if new == 1 else everything
        self._begin += evicted
        self.keys, self.values = (x[:, :, evicted:] for x in everything)
        self._own_keys = self.keys
        for sink, x in zip(sinks, self.held(), strict=True):
            x[:, :, : self._shared.sink] = sink
        return self.held()

    def _sinks(self, everything: Pair, past: int, held: int) -> list[torch.Tensor]:
        """Return the sinks: the first tokens of each row, or all tokens of a shorter row."""
        sink, padding = self._shared.sink, self._shared.padding
        if padding is None:
            return [x[:, :, :sink].clone() for x in everything]
        new = everything[0].shape[2] - held
        real = past - padding.to(everything[0].device)
        begin = (real + new - self._shared.limit).clamp(max=0) + (held - real).clamp(min=0)
        columns = begin[:, None] + torch.arange(sink, device=begin.device)
        return [
            x.gather(2, columns[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
            for x in everything
        ]

    def get_seq_length(self) -> int:
        """Return the number of tokens seen, held or not."""
        return self._seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys that queries may see, and of tokens before these keys."""
        held = self.count_held()
        keys = held + query_length if query_length > 1 else min(held + 1, self._shared.limit)
        return keys, self._seen + query_length - keys

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens, as long as no token has left the window.

        Raises:
            ValueError: tokens were evicted that would be in the window again.
        """
        if self._seen > (held := self.count_held()):
            raise ValueError(
                "crop must come before the first token leaves a WindowCache, got it after "
                f"{self._seen} tokens, of which {held} are held: use GrowingCache where tokens are "
                "taken back"
            )
        super().crop(tokens_to_remove)
        self._seen = self.count_held()
        self._shared.expected = None

    def reset(self) -> None:
        """Remove all tokens and the buffers."""
        super().reset()
        self._seen = 0
        self._shared.expected = None


class WindowCache(Bounded, Cache):
    """A transformers cache of the last and the first few tokens: generation in constant memory.

    It is for models patched by `patch(..., window=window, sink=sink)`. They see no more tokens than
    the cache holds, and therefore generate the same tokens as with any other cache, or without one.
    Its layers have buffers of 2 (window + sink) tokens. Prompts may be padded on the left. Beam
    search works; prompt lookup works until the first token leaves the window. Models without such a
    patch, which would see other tokens, are refused when they bring theirs. Models take it by
    the argument of `GrowingCache`.

    Args:
        window: number of last tokens to hold, the newest included.
        sink: number of first tokens of the text to hold, too.

    Raises:
        TypeError, ValueError: window is no integer >= 1, or sink no integer >= 0; when tokens come,
            the model is not patched.

    Example:
        >>> import torch, transformers, ntk_alibi as na
        >>> sizes = {"vocab_size": 64, "hidden_size": 32, "n_layer": 1, "n_head": 4}
        >>> config = transformers.BloomConfig(**sizes)
        >>> model = transformers.BloomForCausalLM(config).eval()
        >>> cache = na.WindowCache(window=16, sink=2)
        >>> with na.patch(model, window=16, sink=2):
        ...     tokens = model.generate(
        ...         torch.arange(12)[None],
        ...         cache=cache,
        ...         max_new_tokens=50,
        ...         do_sample=False,
        ...     )
        >>> tokens.shape[1], cache.layers[0].keys.shape[2]
        (62, 18)

    Source: Xiao et al. 2023 (arXiv 2309.17453).
    """

    def __init__(self, window: int, sink: int = 0) -> None:
        self.shared = Shared(
            _checks.integer("window", window, minimum=1),
            _checks.integer("sink", sink, minimum=0),
        )
        new_layer: Any = partial(WindowLayer, self.shared)
        super().__init__(layer_class_to_replicate=new_layer)

    def __repr__(self) -> str:
        limits = f"{self.shared.window}, {self.shared.sink}"
        return f"{type(self).__name__}({limits}), {self.get_seq_length()} tokens seen"

    def expect(self, tokens: int) -> None:
        """Note how many tokens all layers will have seen after a pass; a patched model says it."""
        self.shared.expected = tokens
        self.shared.masked = False

    def get_mask_sizes(self, *arguments: Any, **options: Any) -> tuple[int, int]:
        """Return the number of keys that queries may see, and of tokens before these keys.

        transformers' models ask for it in each pass; those without a patch do not announce theirs.
        """
        self.shared.masked = True
        sizes: tuple[int, int] = super().get_mask_sizes(*arguments, **options)
        return sizes

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Reorder the rows of the batch by beam_idx."""
        super().reorder_cache(beam_idx)
        self.shared.select_rows(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch."""
        super().batch_repeat_interleave(repeats)
        if self.shared.padding is not None:
            self.shared.padding = self.shared.padding.repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some rows of the batch."""
        super().batch_select_indices(indices)
        self.shared.select_rows(indices)
