"""Train a nano BLOOM from scratch: `python -m ntk_alibi.models.train --output DIR`.

A BLOOM of 3 layers with BLOOM's own slopes, trained on the tasks of evaluation/tasks.py and on
prose, at a training length at which the flattest slope spans exp(-8) as in real BLOOMs. What makes
it learn within minutes on two cores:

- a curriculum of lengths: records start with a line or two and grow by half whenever the running
  accuracy of the answers passes a threshold;
- Muon for the matrices of the blocks, AdamW for the rest;
- a loss that weighs answers fully, prose by half, and the unpredictable rest of records by a tenth.

Interrupted training resumes from the checkpoint in the output folder and ends in the same weights.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn
from torch.nn import functional as F

from ntk_alibi.evaluation import corpus, report, study
from ntk_alibi.evaluation.retrieval import encoder
from ntk_alibi.evaluation.tasks import Case, Lines, Topics, cached_encoder
from ntk_alibi.integrations import patch
from ntk_alibi.integrations.patching import ATTENTIONS
from ntk_alibi.models.tokenizer import SPECIAL_TOKENS, build_tokenizer
from ntk_alibi.scaling import NTK, Scaling


@dataclass(frozen=True)
class Recipe:
    """All choices of a training.

    Attributes:
        train_length: tokens; the last phase trains at this length.
        start_length: of the curriculum.
        final_steps: at train_length; the learning rate falls over the last 70 % of them.
        threshold: running accuracy of the lines at which the length grows.
        slope_factor: multiplies the flattest slope; 1 but for small test models, whose training
            length would otherwise not be long for it.
        tokens: a step, while lengths are below 1000; twice that beyond.
        shares: of prose, lines and topics.
        seed: of weights and records.
        attention: of `patch`, for forward and backward pass; those differ by rounding only.
    """

    train_length: int = 2048
    start_length: int = 64
    final_steps: int = 900
    threshold: float = 0.7
    slope_factor: float = 1.0
    tokens: int = 4096
    layers: int = 3
    hidden_size: int = 128
    heads: int = 8
    shares: tuple[float, float, float] = (0.3, 0.5, 0.2)
    muon_rate: float = 0.02
    adam_rate: float = 2e-3
    seed: int = 0
    attention: Literal["fused", "sdpa", "eager"] = "fused"


#: Weights in the loss; answers have 1.
PROSE_WEIGHT, RECORD_WEIGHT = 0.5, 0.1

#: Marks of answers in a batch.
_LINES, _TOPICS = 1, 2

CHECKPOINT_SECONDS = 30.0
LOG_STEPS = 25

#: About 100 CPU-seconds: shows the order of the methods, nothing more. For tests.
SMALL = Recipe(
    train_length=256, slope_factor=8.0, final_steps=100, layers=2, shares=(0.0, 1.0, 0.0)
)


@dataclass(frozen=True)
class Steeper:
    """The reverse of NTK, and then another scaling: multiplies the flattest slope by the factor."""

    factor: float
    then: Scaling | None = None

    @property
    def per(self) -> str | None:
        """As the other scaling's."""
        return getattr(self.then, "per", None)

    def scale_exponents(
        self, exponents: NDArray[np.float64], lengths: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """See `ntk_alibi.Scaling`."""
        steeper = 2.0 * exponents - NTK(self.factor).scale_exponents(exponents)
        return steeper if self.then is None else self.then.scale_exponents(steeper, lengths)


@dataclass
class Curriculum:
    """How far a training is, but for weights, optimizers and random numbers."""

    length: int
    step: int = 0
    final_step: int = 0
    steps_at_length: int = 0
    lines_accuracy: float = 0.0
    topics_accuracy: float = 0.0

    def advance(self, recipe: Recipe) -> None:
        """Count a step; grow the length when the lines are answered well."""
        self.step += 1
        self.steps_at_length += 1
        if self.length == recipe.train_length:
            self.final_step += 1
        elif self.lines_accuracy > recipe.threshold and self.steps_at_length > 10:
            self.length = min(recipe.train_length, self.length * 3 // 2)
            self.steps_at_length = 0

    def rate(self, recipe: Recipe) -> float:
        """Factor of the learning rates: warm-up, half beyond 1000 tokens, decay at the end."""
        warm_up = min(1.0, (self.step + 1) / 60)
        constant = 0.3 * recipe.final_steps
        decay = max(0.0, (self.final_step - constant) / (recipe.final_steps - constant))
        return warm_up * (0.5 if self.length > 1000 else 1.0) * (1.0 - 0.98 * decay)


class Training:
    """A training that can stop after any step and go on later."""

    def __init__(self, recipe: Recipe) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=build_tokenizer(),
            **SPECIAL_TOKENS,
            padding_side="left",
            clean_up_tokenization_spaces=False,
        )
        self.model = transformers.BloomForCausalLM(
            transformers.BloomConfig(
                vocab_size=len(self.tokenizer),
                hidden_size=recipe.hidden_size,
                n_layer=recipe.layers,
                n_head=recipe.heads,
                hidden_dropout=0.0,
                attention_dropout=0.0,
                pad_token_id=self.tokenizer.pad_token_id,
            )
        )
        matrices, others = _parameter_groups(self.model)
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=recipe.muon_rate, momentum=0.95, weight_decay=0.1),
            torch.optim.AdamW(others, lr=recipe.adam_rate, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.rng = np.random.default_rng(recipe.seed)
        self.curriculum = Curriculum(recipe.start_length)
        self._encode = cached_encoder(encoder(self.tokenizer))
        self._sentences = corpus.sentences(corpus.training_text())
        chapters = self._encode([chapter + "\n" for chapter in corpus.training_text()])
        self._prose = np.concatenate([np.array(chapter, np.int64) for chapter in chapters])

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.curriculum.final_step >= self.recipe.final_steps

    def step(self) -> float:
        """One step on one batch; the loss."""
        tokens, weights, answers = self._batch()
        for optimizer, rate in zip(
            self.optimizers, (self.recipe.muon_rate, self.recipe.adam_rate), strict=True
        ):
            optimizer.param_groups[0]["lr"] = rate * self.curriculum.rate(self.recipe)
            optimizer.zero_grad()
        logits = self.model(tokens[:, :-1], use_cache=False).logits
        nats = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        loss = (nats * weights[:, 1:].flatten()).sum() / weights[:, 1:].sum()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self._record(logits.argmax(-1) == tokens[:, 1:], answers[:, 1:])
        self.curriculum.advance(self.recipe)
        return loss.item()

    def _record(self, right: torch.Tensor, answers: torch.Tensor) -> None:
        for name, kind in (("lines_accuracy", _LINES), ("topics_accuracy", _TOPICS)):
            asked = answers == kind
            if asked.any():
                now = float(right[asked].float().mean())
                before = getattr(self.curriculum, name)
                setattr(self.curriculum, name, 0.9 * before + 0.1 * now)

    def _batch(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens, loss weights and where the answers are, each (rows, length)."""
        length = self.curriculum.length
        per_step = self.recipe.tokens * (1 if length < 1000 else 2)
        rows = [self._row(length) for _ in range(max(2, per_step // length))]
        parts = zip(*rows, strict=True)
        tokens, weights, answers = (torch.from_numpy(np.stack(part)) for part in parts)
        return tokens, weights, answers

    def _row(self, length: int) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int8]]:
        tokens = np.full(length, self.tokenizer.pad_token_id, np.int64)
        weights = np.zeros(length, np.float32)
        answers = np.zeros(length, np.int8)
        kind = self.rng.choice(3, p=self.recipe.shares)
        if kind == 0:
            begin = int(self.rng.integers(len(self._prose) - length))
            tokens[:] = self._prose[begin : begin + length]
            weights[:] = PROSE_WEIGHT
            return tokens, weights, answers
        case = self._case(kind, length)
        tokens[: len(case.tokens)] = case.tokens
        weights[: len(case.tokens)] = RECORD_WEIGHT
        for begin, end in case.answers:
            weights[begin:end] = 1.0
            answers[begin:end] = kind
        return tokens, weights, answers

    def _case(self, kind: int, length: int) -> Case:
        if kind == _LINES:
            questions = max(1, min(length // 30, max(16, length // 64)))
            return Lines(questions).case(self._encode, length, self.rng)
        questions = max(1, min(8, length // 100))
        task = Topics(self._sentences, questions, ask_any=True)
        return task.case(self._encode, length, self.rng)

    def save(self, path: Path) -> None:
        """Write a checkpoint, whole or not at all."""
        state = {
            "recipe": asdict(self.recipe),
            "curriculum": asdict(self.curriculum),
            "rng": self.rng.bit_generator.state,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint.

        Raises:
            ValueError: it belongs to another recipe.
        """
        state = torch.load(path, weights_only=True)
        if state["recipe"] != asdict(self.recipe):
            raise ValueError(
                f"{path} must be a checkpoint of {self.recipe}, got one of {state['recipe']}; "
                "choose another folder or remove it"
            )
        self.curriculum = Curriculum(**state["curriculum"])
        self.rng.bit_generator.state = state["rng"]
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

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


def _parameter_groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices of the blocks, and everything else."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        inside = parameter.ndim == 2 and "word_embeddings" not in name
        (matrices if inside else others).append(parameter)
    return matrices, others


def train(recipe: Recipe, output: Path, *, quiet: bool = False) -> Training:
    """Train by a recipe, resume if output holds a checkpoint, and export to output.

    Args:
        recipe: what to do.
        output: folder for the checkpoint (train.ckpt), a log (train.jsonl) and the model.
        quiet: no progress bar.
    """
    output.mkdir(parents=True, exist_ok=True)
    checkpoint, log = output / "train.ckpt", output / "train.jsonl"
    training = Training(recipe)
    if checkpoint.exists():
        training.load(checkpoint)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    slopes = Steeper(recipe.slope_factor) if recipe.slope_factor != 1.0 else None
    handle = patch(training.model, slopes, attention=recipe.attention)
    with Progress(*columns, disable=quiet) as progress, handle:
        bar = progress.add_task("", total=recipe.final_steps)
        saved = time.monotonic()
        while not training.finished:
            loss = training.step()
            state = training.curriculum
            progress.update(
                bar,
                completed=state.final_step,
                description=f"step {state.step}, length {state.length}, loss {loss:.2f}, right: "
                f"lines {state.lines_accuracy:.2f}, topics {state.topics_accuracy:.2f}",
            )
            if state.step % LOG_STEPS == 0:
                with log.open("a") as file:
                    file.write(json.dumps({"loss": loss, **asdict(state)}) + "\n")
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                training.save(checkpoint)
                saved = time.monotonic()
    training.export(output)
    checkpoint.unlink(missing_ok=True)
    return training


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ntk_alibi.models.train", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--output", type=Path, default=Path("nano-bloom"), help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data (%(default)s)")
    parser.add_argument("--small", action="store_true", help="two minutes' worth, for tests")
    parser.add_argument(
        "--attention", choices=ATTENTIONS, default=Recipe.attention, help="(%(default)s)"
    )
    options = parser.parse_args(arguments)
    recipe = SMALL if options.small else Recipe()
    recipe = replace(recipe, seed=options.seed, attention=options.attention)
    training = train(recipe, options.output)
    print(f"{options.output} holds a BLOOM trained at {recipe.train_length} tokens")
    slopes = partial(Steeper, recipe.slope_factor)
    plan = replace(study.Plan(recipe.train_length), **study.QUICK)
    if options.small:  # which was trained on lines only
        plan = replace(plan, topic_records=0, line_records=32)
    summary = study.evaluate(
        training.model.eval(),
        training.tokenizer,
        plan,
        options.output / "evaluation",
        wrap=slopes if recipe.slope_factor != 1.0 else lambda scaling: scaling,
    )
    for table in report.study_tables(summary):
        Console().print(table)


if __name__ == "__main__":
    main()
