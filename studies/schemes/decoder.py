"""A small decoder with exchangeable position schemes: BLOOM's layers with `ntk_alibi.attention`.

The BLOOM of transformers supports ALiBi only. In this decoder each layer has a module of schemes.py
that provides the position arguments of `attention`: a bias, a rotation, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ntk_alibi import attention
from studies.schemes.schemes import AttentionView, Positions

#: Usual standard deviation of the random first weights, equal to BLOOM's initializer_range.
FIRST_WEIGHTS_STD = 0.02


class Layer(nn.Module):
    """Attention and a feed-forward network of four times the width, each after a layer norm.

    Args:
        hidden_size: size of the inputs and outputs, a multiple of heads.
        heads: number of attention heads.

    Attributes:
        positions: position scheme of the layer, which the decoder sets.
    """

    positions: Positions

    def __init__(self, hidden_size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(hidden_size)
        self.query, self.key, self.value, self.out = (
            nn.Linear(hidden_size, hidden_size) for _ in range(4)
        )
        self.feed_forward_norm = nn.LayerNorm(hidden_size)
        self.up = nn.Linear(hidden_size, 4 * hidden_size)
        self.down = nn.Linear(4 * hidden_size, hidden_size)

    def forward(self, hidden: torch.Tensor, view: AttentionView) -> torch.Tensor:
        """Compute the layer's output, (rows, length, hidden_size) like its input."""
        normed = self.attention_norm(hidden)
        with torch.autocast("cpu", enabled=False):  # bfloat16 would round positions
            positions: dict[str, Any] = self.positions(normed.float(), view)
        query, key, value = (
            x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for x in (self.query(normed), self.key(normed), self.value(normed))
        )
        attended = attention(
            self.positions.queries(query, view),
            key,
            value,
            window=view.window,
            causal_block=view.causal_block,
            log_n=view.log_n,
            **positions,
        )
        hidden = hidden + self.out(attended.transpose(1, 2).flatten(2))
        fed = self.down(F.gelu(self.up(self.feed_forward_norm(hidden)), approximate="tanh"))
        return hidden + fed  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """A language model with tied embeddings: embeddings, layers, and logits by the embeddings.

    Args:
        vocabulary: number of tokens in the vocabulary.
        layers: number of layers.
        hidden_size: hidden size, a multiple of heads.
        heads: number of attention heads of each layer.
        make_positions: function that makes the position scheme of a layer. It is called after all
            other weights are drawn, so that those depend on torch's seed alone and not on the
            scheme.
        autocast: whether matrices are multiplied in bfloat16.
        first_weights_std: standard deviation of the random first weights of embeddings and
            matrices.

    Attributes:
        view: attention options and scaling of the forward pass; training uses the defaults.
    """

    def __init__(
        self,
        vocabulary: int,
        layers: int,
        hidden_size: int,
        heads: int,
        make_positions: Callable[[], Positions],
        *,
        autocast: bool = False,
        first_weights_std: float = FIRST_WEIGHTS_STD,
    ) -> None:
        super().__init__()
        self.view = AttentionView()
        self.autocast = autocast
        self.word_embeddings = nn.Embedding(vocabulary, hidden_size)
        self.embeddings_norm = nn.LayerNorm(hidden_size)
        self.layers = nn.ModuleList(Layer(hidden_size, heads) for _ in range(layers))
        self.final_norm = nn.LayerNorm(hidden_size)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=first_weights_std)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        for layer in self.layers:
            layer.positions = make_positions()

    def forward(self, tokens: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Compute the logits of the next tokens.

        Args:
            tokens: (rows, length) int64.
            keep: positions that need logits, bool (rows, length); None for all positions.

        Returns:
            (rows, length, vocabulary); with keep, (number of those positions, vocabulary).
        """
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            hidden: Any = self.embeddings_norm(self.word_embeddings(tokens))
            for layer in self.layers:
                hidden = layer(hidden, self.view)
            hidden = self.final_norm(hidden if keep is None else hidden[keep])
            return F.linear(hidden, self.word_embeddings.weight).float()
