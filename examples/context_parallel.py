"""Train a small decoder of one's own on a text that several processes share.

    torchrun --nproc_per_node 2 examples/context_parallel.py --tokens 4096

Each process holds a part of the text, its keys and its activations; attention asks the other
processes for the blocks of keys that may matter. The losses equal one process's.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional as F

import ntk_alibi as na

VOCABULARY, WIDTH, HEADS = 64, 64, 8


class Decoder(nn.Module):
    """A decoder of two layers with ALiBi."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.projections = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor, group: Any = None) -> torch.Tensor:
        """Return logits; with a group, of this rank's part of the text."""
        states = self.embedding(ids)
        for projection in self.projections:
            query, key, value = (
                projection(states).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            )
            if group is None:
                output = na.attention(query, key, value, na.ALiBi(HEADS))
            else:
                output = na.distributed.attention(query, key, value, na.ALiBi(HEADS), group=group)
            states = states + output.transpose(1, 2).flatten(2)
        logits: torch.Tensor = self.head(F.rms_norm(states, (WIDTH,)))
        return logits


def losses(ids: torch.Tensor, steps: int, group: Any = None) -> list[float]:
    """Return the mean loss of each step of training."""
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    labels = F.pad(ids[:, 1:], (0, 1), value=-100)  # shifted before the text is cut
    counted = int((labels >= 0).sum())
    if group is not None:
        own = torch.arange(ids.shape[1]).tensor_split(group.size())[group.rank()]
        ids, labels = ids[:, own], labels[:, own]
    found = []
    for _ in range(steps):
        logits = model(ids, group).flatten(0, 1)
        loss = F.cross_entropy(logits, labels.flatten(), reduction="sum") / counted
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach()
        if group is not None:  # each rank has the loss and the gradients of its own tokens
            for x in (total, *(x.grad for x in model.parameters())):
                distributed.all_reduce(x, group=group)
        optimizer.step()
        found.append(float(total))
    return found


def main() -> None:
    """Run on the processes that torchrun has started."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=2048, help="length of the text (2048)")
    parser.add_argument("--steps", type=int, default=5, help="steps of training (5)")
    options = parser.parse_args()
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    ids = torch.arange(options.tokens)[None] ** 2 % 61
    shared = losses(ids, options.steps, distributed.group.WORLD)
    if distributed.get_rank() == 0:
        print(f"{options.tokens} tokens on {distributed.get_world_size()} processes")
        for name, values in (("shared", shared), ("one process", losses(ids, options.steps))):
            print(f"{name}: {' '.join(f'{x:.4f}' for x in values)}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
