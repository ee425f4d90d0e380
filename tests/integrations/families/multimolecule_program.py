"""A family for multimolecule's DNABERT-2, as the how-to page writes them; prints what it changes.

It runs in an environment with multimolecule: `python multimolecule_program.py`.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from multimolecule.models.dnabert2 import DnaBert2Config, DnaBert2ForMaskedLM

import ntk_alibi as na
from ntk_alibi.integrations import Attend, Family, register


def matches(module: torch.nn.Module) -> bool:
    return type(module).__name__ == "DnaBert2Model"


def layers(model: Any) -> list[torch.nn.Module]:
    return [layer.attention.self for layer in model.encoder.layer]


def slopes(model: Any) -> int:
    heads: int = model.config.num_attention_heads
    return heads


def forward(
    attend: Attend, layer: Any, hidden_states: Any, attention_mask: Any = None, **_: Any
) -> tuple[Any, Any]:
    parts = (layer.query(hidden_states), layer.key(hidden_states), layer.value(hidden_states))
    query, key, value = map(layer.transpose_for_scores, parts)
    dropout = layer.dropout.p if layer.training else 0.0
    output, weights = attend(query, key, value, mask=attention_mask, dropout=dropout)
    return output.transpose(1, 2).flatten(2), weights


def keep_padding(_: Any, attention_mask: Any, **__: Any) -> tuple[Any, None]:
    """Replace the making of a mask of all pairs: layers take the padding of the batch."""
    return attention_mask, None


FAMILY = Family(
    name="multimolecule's DNABERT-2",
    matches=matches,
    layers=layers,
    forward=forward,
    slopes=slopes,
    causal=False,
    replacements=lambda model: [(model, "_create_attention_masks", keep_padding)],
)


def small_model() -> Any:
    config = DnaBert2Config(
        vocab_size=64,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=6,
        intermediate_size=64,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    return DnaBert2ForMaskedLM(config).eval()


def main() -> None:
    register(FAMILY)
    model = small_model()
    ids = torch.randint(5, 60, (2, 70), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, 50:] = 0

    def logits() -> torch.Tensor:
        with torch.no_grad():
            made: torch.Tensor = model(ids, attention_mask=mask).logits
        return made[mask != 0]

    stock = logits()
    with na.patch(model):
        patched = logits()
    with na.patch(model, na.Interpolation(2.0)):
        stretched = logits()
    differences = {
        "patched": float((patched - stock).abs().max()),
        "stretched": float((stretched - stock).abs().max()),
        "undone": float((logits() - stock).abs().max()),
    }
    print(json.dumps(differences))


if __name__ == "__main__":
    main()
