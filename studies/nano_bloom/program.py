"""Train a nano BLOOM from scratch: `python -m studies.nano_bloom --output DIR`.

The model is a BLOOM of 4 layers with BLOOM's standard slopes, trained with the classes of
record_training.py. At its training length the flattest slope spans exp(-8), as in the published
BLOOMs. Interrupted training resumes from the checkpoint in the output folder and ends in the same
weights.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from tqdm import tqdm

from ntk_alibi import _checks, _files, patch
from ntk_alibi.evaluation.comparing import length_study
from ntk_alibi.evaluation.comparing.plan import QUICK, Plan
from ntk_alibi.evaluation.records.longeval import Lines
from ntk_alibi.evaluation.records.record import RecordKind
from ntk_alibi.evaluation.report import tables
from ntk_alibi.models import load
from studies import training
from studies.forms import HELD_OUT, Forms
from studies.nano_bloom import endpoint
from studies.record_training import RecordRecipe, RecordTraining
from studies.steeper import SteepenFlattest

#: Share of easy records just above the first length, which has no others, and from `HARDEST_FROM`
#: tokens on; see `Forms.easy`.
EASY_AT_FIRST, EASY_AT_LEAST, HARDEST_FROM = 0.8, 0.2, 512


@dataclass(frozen=True)
class NanoBloomRecipe(RecordRecipe):
    """All settings of the training of a nano BLOOM.

    Attributes:
        final_steps: number of steps at train_length; the learning rate falls over the last 70 % of
            them.
        lines: share of LongEval's lines, with open names, in the records; the others are of drawn
            forms.
        talks, amid_prose: see `Forms`.
        patience: number of steps at a length after which it grows at any accuracy.
        autocast: whether matrices are multiplied in bfloat16.
        slope_factor: factor of the flattest slope; it is 1 except in small test models, whose
            training length is too short for the standard slope.
    """

    start_length: int = 64
    threshold: float = 0.75
    patience: int = 500
    layers: int = 4
    hidden_size: int = 256
    first_weight: float = 3.0
    final_steps: int = 2400
    lines: float = 0.13
    talks: float = 0.25
    amid_prose: float = 0.3
    autocast: bool = True
    slope_factor: float = 1.0


#: A recipe for tests: about 45 CPU-seconds, enough to answer most lines.
SMALL = NanoBloomRecipe(
    train_length=256, start_length=64, slope_factor=8.0, final_steps=100, tokens=2048, layers=2,
    hidden_size=64, heads=4, prose=0.0, autocast=False,
)  # fmt: skip


@dataclass
class NanoBloomCurriculum(training.Curriculum):
    """A curriculum that ends final_steps steps after it has reached the training length.

    Attributes:
        final_step: steps done at the training length.
    """

    final_step: int = 0

    def advance(self, recipe: NanoBloomRecipe) -> None:
        """Count a step, and grow the length once it is mastered."""
        self.final_step += self.length == recipe.train_length
        super().advance(recipe)

    def mastered(self, recipe: NanoBloomRecipe) -> bool:
        """Return whether the accuracy is above the threshold, or patience is at its end."""
        return super().mastered(recipe) or self.steps_at_length >= recipe.patience

    def rate(self, recipe: NanoBloomRecipe) -> float:
        """Return the factor of the learning rates: warm-up, half above 1000 tokens, decay."""
        constant = 0.3 * recipe.final_steps
        decay = max(0.0, (self.final_step - constant) / (recipe.final_steps - constant))
        return self.warm_up() * (0.5 if self.length > 1000 else 1.0) * (1.0 - 0.98 * decay)

    def finished(self, recipe: NanoBloomRecipe) -> bool:
        """Return whether all steps are done."""
        return self.final_step >= recipe.final_steps


class NanoBloomTraining(RecordTraining):
    """The training of a BLOOM.

    Args:
        recipe: settings of the training.
    """

    def __init__(self, recipe: NanoBloomRecipe) -> None:
        super().__init__(recipe, NanoBloomCurriculum(recipe.start_length))
        backend = self.tokenizer.backend_tokenizer  # quicker for texts that come once
        self.encode = lambda texts: [
            encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)
        ]
        self._forms = replace(
            Forms.of(self.tokenizer, self.sentences),
            talks=recipe.talks,
            amid_prose=recipe.amid_prose,
        )

    def make_model(self) -> Any:
        """Build a BLOOM with random first weights."""
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

    def record_kind(self, length: int) -> RecordKind:
        """Return lines or forms, with more questions in longer records."""
        questions = max(16, length // 64)
        if length == self.recipe.start_length:
            return replace(self._forms, questions=questions, easy=1.0, simple=1.0)
        easy = EASY_AT_LEAST + (EASY_AT_FIRST - EASY_AT_LEAST) * min(1.0, self._ease(length))
        form = HELD_OUT["lines"] if self.rng.random() < self.recipe.lines else None
        return replace(self._forms, questions=questions, easy=easy, form=form)

    def _ease(self, length: int) -> float:
        """Return 1 at the first length, falling to 0 at `HARDEST_FROM` tokens."""
        first = self.recipe.start_length
        return max(0.0, math.log(HARDEST_FROM / length) / math.log(HARDEST_FROM / first))

    def logits(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Compute the model's logits at the wanted positions; see `Training`."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.recipe.autocast):
            logits: torch.Tensor = self.model(tokens, use_cache=False).logits
        return logits[wanted].float()

    def length_setting(self) -> dict[str, int]:
        """Return the entry of the config that holds the training length."""
        return {"seq_length": self.recipe.train_length}

    def export(self, output: Path) -> None:
        """Write float16 weights, config and tokenizer in the format of plain transformers."""
        half: Any = copy.deepcopy(self.model)
        half.half().save_pretrained(output)
        self.tokenizer.save_pretrained(output)
        # float32 is the dtype for computing; only the weights in the file are float16
        _amend_json(output / "config.json", dtype="float32", **self.length_setting())
        # transformers 4 knows this name, too.
        _amend_json(output / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")


class SmallTraining(NanoBloomTraining):
    """The training of a small model, which learns the lines of LongEval alone."""

    def record_kind(self, length: int) -> RecordKind:
        """Return lines, with more questions in longer records."""
        return Lines(max(1, min(length // 30, max(16, length // 64))))


def _amend_json(path: Path, **changes: Any) -> None:
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def train(
    recipe: NanoBloomRecipe,
    output: Path,
    *,
    quiet: bool = False,
    kind: type[NanoBloomTraining] = NanoBloomTraining,
) -> NanoBloomTraining:
    """Train with a recipe, resuming from a checkpoint in output if there is one, and export.

    Args:
        recipe: settings of the training.
        output: folder for the checkpoint, the log and the model.
        quiet: whether to hide the progress bar.
        kind: class of the training.
    """
    _files.writable_folder(output)
    trained = kind(recipe)
    slopes = SteepenFlattest(recipe.slope_factor) if recipe.slope_factor != 1.0 else None
    handle = patch(trained.model, slopes)

    def show(line: str) -> None:
        bar.set_description(line, refresh=False)
        bar.update(trained.curriculum.final_step - bar.n)

    with tqdm(total=recipe.final_steps, disable=quiet) as bar, handle:
        trained.run(output, show)
    trained.export(output)
    (output / training.CHECKPOINT).unlink()
    return trained


def main(arguments: list[str] | None = None) -> None:
    """Run the command line: train, evaluate the model and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.nano_bloom", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("nano-bloom"),
        help="folder for checkpoint, log and model (%(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of weights and data (%(default)s)"
    )
    one = parser.add_mutually_exclusive_group()
    one.add_argument(
        "--small", action="store_true", help="train a small model for tests, about a minute"
    )
    one.add_argument(
        "--endpoint",
        metavar="MODEL",
        help='read the endpoint of a finished model ("nano-bloom": the embedded one), and end',
    )
    one.add_argument(
        "--without-lines",
        action="store_true",
        help="train no line of LongEval, so that all forms of the endpoint are new",
    )
    options = parser.parse_args(arguments)
    if options.endpoint is not None:
        print(endpoint.table(*load(options.endpoint)))
        return
    _checks.integer("--seed", options.seed, minimum=0)
    recipe = SMALL if options.small else NanoBloomRecipe()
    if options.without_lines:
        recipe = replace(recipe, lines=0.0)
    recipe = replace(recipe, seed=options.seed)
    slopes = partial(SteepenFlattest, recipe.slope_factor)
    plan = replace(Plan(recipe.train_length), **QUICK)
    if options.small:  # the small model is trained on lines only
        plan = replace(plan, topic_records=0, line_records=32)
    with _files.only_run("--output", _files.writable_folder(options.output)):
        kind = SmallTraining if options.small else NanoBloomTraining
        trained = train(recipe, options.output, kind=kind)
        print(f"{options.output} holds a BLOOM trained at {recipe.train_length} tokens")
        summary = length_study.evaluate(
            trained.model.eval(),
            trained.tokenizer,
            plan,
            options.output / "evaluation",
            wrap=slopes if recipe.slope_factor != 1.0 else lambda scaling: scaling,
        )
    for table in tables.study_tables(summary):
        print(tables.printed(table, shutil.get_terminal_size().columns))
