"""The models of the study: nano MPTs of three sizes.

Their flattest slope, 2^-6, times their training length is 8, as in the published BLOOMs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import transformers

from studies.nano_bloom.program import NanoBloomRecipe, NanoBloomTraining

#: Widths of the models, by the name of a group, and the seeds of each.
WIDTHS = {"small": 64, "middle": 128, "large": 224}
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class NanoMPTRecipe(NanoBloomRecipe):
    """All settings of the training of a nano MPT.

    Attributes:
        alibi_bias_max: b; the slopes of H heads are 2^(-b / H), 2^(-2b / H), ..., 2^-b.
    """

    alibi_bias_max: int = 6
    train_length: int = 512
    final_steps: int = 400
    held_out: Literal["chapters", "books"] = "books"
    lines: float = 0.0
    talks: float = 0.0
    amid_prose: float = 0.15

    @property
    def name(self) -> str:
        """Name of the model's folder."""
        return f"width-{self.hidden_size}-seed-{self.seed}"


class NanoMPTTraining(NanoBloomTraining):
    """The training of an MPT.

    Args:
        recipe: settings of the training.
    """

    def make_model(self) -> Any:
        """Build an MPT with random first weights."""
        recipe = self.recipe
        return transformers.MptForCausalLM(
            transformers.MptConfig(
                vocab_size=len(self.tokenizer),
                d_model=recipe.hidden_size,
                n_layers=recipe.layers,
                n_heads=recipe.heads,
                max_seq_len=recipe.train_length,
                attn_config={"alibi": True, "alibi_bias_max": recipe.alibi_bias_max},
                pad_token_id=self.tokenizer.pad_token_id,
                bos_token_id=self.tokenizer.bos_token_id,
                eos_token_id=self.tokenizer.eos_token_id,
            )
        )

    def length_setting(self) -> dict[str, int]:
        """Return the entry of the config that holds the training length."""
        return {"max_seq_len": self.recipe.train_length}


def recipes(group: str) -> list[NanoMPTRecipe]:
    """Return the recipes of a size's models, one for each seed."""
    return [NanoMPTRecipe(hidden_size=WIDTHS[group], seed=seed) for seed in SEEDS]
