"""ALiBi, NTK-ALiBi and a model that needs it, in plain torch: the idea without this package.

    python examples/stretching.py

One attention layer learns to find a value by its key among 256 others. Among more it fails, since
its slopes push the scores of what is far back too low; flatter slopes find it again, without
training. The package computes the same for real models, and dynamic factors, and fast.
"""

from __future__ import annotations

import torch
from torch import nn

HEADS, CHANNELS, VALUES, TRAINED = 4, 32, 16, 256


def alibi_slopes(heads: int) -> torch.Tensor:
    """Return ALiBi's slopes for a power of two: 2^(-8/heads), 2^(-16/heads), ..., 2^-8."""
    return 2.0 ** (-8.0 / heads * torch.arange(1, heads + 1))


def ntk_slopes(heads: int, factor: float) -> torch.Tensor:
    """Return NTK-ALiBi's slopes: the steepest stays, the flattest is divided by the factor."""
    return alibi_slopes(heads) * factor ** -(torch.arange(heads) / (heads - 1))


class Lookup(nn.Module):
    """One query over keys and values, by attention with a bias of minus slope times distance."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = (nn.Linear(CHANNELS, HEADS * CHANNELS) for _ in range(2))
        self.head = nn.Linear(HEADS * VALUES, VALUES)

    def forward(
        self, asked: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slopes: torch.Tensor
    ) -> torch.Tensor:
        """Return logits of the value; asked (B, C), keys (B, K, C), values (B, K), slopes (H,)."""
        query, key = (
            layer(x).unflatten(-1, (HEADS, CHANNELS))
            for layer, x in ((self.query, asked), (self.key, keys))
        )
        distance = torch.arange(keys.shape[1], 0, -1)
        scores = torch.einsum("bhc,bkhc->bhk", query, key) / CHANNELS**0.5
        weights = torch.softmax(scores - slopes[:, None] * distance, dim=-1)
        found = torch.einsum("bhk,bkv->bhv", weights, nn.functional.one_hot(values, VALUES).float())
        logits: torch.Tensor = self.head(found.flatten(1))
        return logits


def texts(count: int, length: int, random: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Return questions, keys, values and answers; what is asked for is anywhere in a text."""
    keys = torch.randn(count, length, CHANNELS, generator=random)
    values = torch.randint(VALUES, (count, length), generator=random)
    place = torch.randint(length, (count,), generator=random)
    row = torch.arange(count)
    return keys[row, place], keys, values, values[row, place]


def main() -> None:
    """Train at one length, and print what is found at longer ones."""
    random = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model, slopes = Lookup(), alibi_slopes(HEADS)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(400):
        asked, keys, values, answers = texts(32, TRAINED, random)
        loss = nn.functional.cross_entropy(model(asked, keys, values, slopes), answers)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    print("training lengths    found by ALiBi    stretched by NTK")
    for times in (1, 4, 16):
        asked, keys, values, answers = texts(128, times * TRAINED, random)
        with torch.no_grad():
            found = [
                (model(asked, keys, values, each).argmax(-1) == answers).float().mean()
                for each in (slopes, ntk_slopes(HEADS, 2.0 * times))
            ]
        print(f"{times:16d} {100 * found[0]:15.0f} % {100 * found[1]:17.0f} %")


if __name__ == "__main__":
    main()
