"""The models of the study: seeds of the nano BLOOM, and nano MPTs of four regimes.

A regime is the product of training length and flattest slope: the exponent by which the flattest
head weakens the farthest token of a text as long as in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from studies.nano_bloom import program
from studies.nano_bloom.program import NanoBloomRecipe, NanoBloomTraining

#: Exponents of the flattest slopes of the nano MPTs, which all have this training length.
BIAS_MAXIMA, MPT_TRAIN_LENGTH = (8, 7, 6, 5), 512

#: Steps at the training length; the nano BLOOM has more.
MPT_STEPS = 600

#: BLOOM's regime, and pairs of a multiple of the training length and how many records of lines
#: are read there, by nano MPTs of this regime only.
BLOOM_REGIME = 8.0
FARTHER = ((64, 2), (128, 1))


@dataclass(frozen=True)
class NanoMPTRecipe(NanoBloomRecipe):
    """All settings of the training of a nano MPT.

    Attributes:
        alibi_bias_max: b; the slopes of H heads are 2^(-b / H), 2^(-2b / H), ..., 2^-b.
    """

    alibi_bias_max: int = 8


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


@dataclass(frozen=True)
class NanoModel:
    """A model of the study.

    Attributes:
        recipe: settings of its training.
        training: class of its training.
        family: name of the architecture.
        flattest_slope: the flattest slope.
        tasks: kinds of records that it is tested on, as the fields of a plan name them.
        farther: pairs of a multiple of the training length, beyond the plan of all models, and how
            many records of lines are read there.
    """

    recipe: NanoBloomRecipe
    training: type[NanoBloomTraining]
    family: str
    flattest_slope: float
    tasks: tuple[str, ...]
    farther: tuple[tuple[int, int], ...] = ()

    @property
    def name(self) -> str:
        """Name of the model's folder."""
        return f"{self.family}-{self.recipe.train_length}-{self.regime:g}-seed-{self.recipe.seed}"

    @property
    def regime(self) -> float:
        """Product of training length and flattest slope."""
        return self.recipe.train_length * self.flattest_slope

    def train(self, folder: Path) -> None:
        """Train the model, resuming from a checkpoint; nothing happens if it is finished."""
        if not (folder / "model.safetensors").exists():
            program.train(self.recipe, folder, quiet=True, kind=self.training)


def make_nano_bloom(seed: int) -> NanoModel:
    """Return the nano BLOOM of a seed, whose training left out whole books."""
    recipe = NanoBloomRecipe(seed=seed, held_out="books")
    return NanoModel(recipe, NanoBloomTraining, "bloom", 2.0**-8, ("line", "topic"))


def make_nano_mpt(seed: int, bias_max: int) -> NanoModel:
    """Return the nano MPT of a seed and a flattest slope of 2^-bias_max."""
    recipe = NanoMPTRecipe(
        seed=seed,
        alibi_bias_max=bias_max,
        train_length=MPT_TRAIN_LENGTH,
        final_steps=MPT_STEPS,
        held_out="books",
    )
    tasks = ("line", "passkey", "multikey", "other_line")
    slope = 2.0**-bias_max
    farther = FARTHER if slope * MPT_TRAIN_LENGTH == BLOOM_REGIME else ()
    return NanoModel(recipe, NanoMPTTraining, "mpt", slope, tasks, farther)


#: The models by the name of their group.
GROUPS = {
    "seeds": [make_nano_bloom(seed) for seed in (1, 2, 3, 4, 5)],
    "regimes": [make_nano_mpt(seed, bias) for seed in (1, 2, 3) for bias in BIAS_MAXIMA],
}
