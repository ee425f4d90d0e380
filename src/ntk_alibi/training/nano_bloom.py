"""Train a nano BLOOM from scratch: `python -m ntk_alibi.training --output DIR`.

A BLOOM of 3 layers with BLOOM's own slopes, trained as training.py does, at a training length at
which the flattest slope spans exp(-8) as in real BLOOMs. Interrupted training resumes from the
checkpoint in the output folder and ends in the same weights.
"""

from __future__ import annotations

import argparse
import copy
import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ntk_alibi.evaluation.comparing import length_study
from ntk_alibi.evaluation.comparing.plan import QUICK, Plan
from ntk_alibi.evaluation.report import tables
from ntk_alibi.integrations import patch
from ntk_alibi.integrations.settings import ATTENTIONS
from ntk_alibi.training import training
from ntk_alibi.training.steeper import SteepenFlattest


@dataclass(frozen=True)
class NanoBloomRecipe(training.Recipe):
    """All choices of a training.

    Attributes:
        final_steps: at train_length; the learning rate falls over the last 70 % of them.
        slope_factor: multiplies the flattest slope; 1 but for small test models, whose training
            length would otherwise not be long for it.
        attention: of `patch`, for forward and backward pass; those differ by rounding only.
    """

    final_steps: int = 900
    slope_factor: float = 1.0
    attention: Literal["fused", "sdpa", "eager"] = "fused"


#: About 100 CPU-seconds: shows the order of the methods, nothing more. For tests.
SMALL = NanoBloomRecipe(
    train_length=256, slope_factor=8.0, final_steps=100, layers=2, shares=(0.0, 1.0, 0.0)
)


@dataclass
class NanoBloomCurriculum(training.Curriculum):
    """Ends so many steps after it has reached the training length."""

    final_step: int = 0

    def advance(self, recipe: NanoBloomRecipe) -> None:
        """Count a step; grow the length when the lines are answered well."""
        self.final_step += self.length == recipe.train_length
        super().advance(recipe)

    def rate(self, recipe: NanoBloomRecipe) -> float:
        """Factor of the learning rates: warm-up, half beyond 1000 tokens, decay at the end."""
        constant = 0.3 * recipe.final_steps
        decay = max(0.0, (self.final_step - constant) / (recipe.final_steps - constant))
        return self.warm_up() * (0.5 if self.length > 1000 else 1.0) * (1.0 - 0.98 * decay)

    def finished(self, recipe: NanoBloomRecipe) -> bool:
        """Whether all steps are done."""
        return self.final_step >= recipe.final_steps


class NanoBloomTraining(training.Training):
    """Of a BLOOM.

    Args:
        recipe: what to do.
    """

    def __init__(self, recipe: NanoBloomRecipe) -> None:
        super().__init__(recipe, NanoBloomCurriculum(recipe.start_length))

    def make_model(self) -> Any:
        """A BLOOM with its first weights."""
        return transformers.BloomForCausalLM(
            transformers.BloomConfig(
                vocab_size=len(self.tokenizer),
                hidden_size=self.recipe.hidden_size,
                n_layer=self.recipe.layers,
                n_head=self.recipe.heads,
                hidden_dropout=0.0,
                attention_dropout=0.0,
                pad_token_id=self.tokenizer.pad_token_id,
            )
        )

    def logits(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Of the model for tokens (rows, length), where wanted; (wanted, vocabulary)."""
        logits: torch.Tensor = self.model(tokens, use_cache=False).logits
        return logits[wanted]

    def export(self, output: Path) -> None:
        """Write what plain transformers loads: float16 weights, config, tokenizer."""
        half: Any = copy.deepcopy(self.model)
        half.half().save_pretrained(output)
        self.tokenizer.save_pretrained(output)
        _amend_json(
            output / "config.json",
            seq_length=self.recipe.train_length,
            dtype="float32",  # to compute in; only the file is float16
        )
        # The name that transformers 4 knows too.
        _amend_json(output / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")


def _amend_json(path: Path, **changes: Any) -> None:
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def train(recipe: NanoBloomRecipe, output: Path, *, quiet: bool = False) -> NanoBloomTraining:
    """Train by a recipe, resume if output holds a checkpoint, and export to output.

    Args:
        recipe: what to do.
        output: folder for the checkpoint (train.ckpt), a log (train.jsonl) and the model.
        quiet: no progress bar.
    """
    output.mkdir(parents=True, exist_ok=True)
    checkpoint, log = output / "train.ckpt", output / "train.jsonl"
    training = NanoBloomTraining(recipe)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    slopes = SteepenFlattest(recipe.slope_factor) if recipe.slope_factor != 1.0 else None
    handle = patch(training.model, slopes, attention=recipe.attention)
    with Progress(*columns, disable=quiet) as progress, handle:
        bar = progress.add_task("", total=recipe.final_steps)
        training.run(
            checkpoint,
            log,
            lambda line: progress.update(
                bar, completed=training.curriculum.final_step, description=line
            ),
        )
    training.export(output)
    checkpoint.unlink(missing_ok=True)
    return training


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ntk_alibi.training", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--output", type=Path, default=Path("nano-bloom"), help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data (%(default)s)")
    parser.add_argument("--small", action="store_true", help="two minutes' worth, for tests")
    parser.add_argument(
        "--attention", choices=ATTENTIONS, default=NanoBloomRecipe.attention, help="(%(default)s)"
    )
    options = parser.parse_args(arguments)
    recipe = SMALL if options.small else NanoBloomRecipe()
    recipe = replace(recipe, seed=options.seed, attention=options.attention)
    training = train(recipe, options.output)
    print(f"{options.output} holds a BLOOM trained at {recipe.train_length} tokens")
    slopes = partial(SteepenFlattest, recipe.slope_factor)
    plan = replace(Plan(recipe.train_length), **QUICK)
    if options.small:  # which was trained on lines only
        plan = replace(plan, topic_records=0, line_records=32)
    summary = length_study.evaluate(
        training.model.eval(),
        training.tokenizer,
        plan,
        options.output / "evaluation",
        wrap=slopes if recipe.slope_factor != 1.0 else lambda scaling: scaling,
    )
    for table in tables.study_tables(summary):
        Console().print(table)
