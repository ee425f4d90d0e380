"""How far position schemes reach beyond their training length: `python -m ntk_alibi.extrapolation`.

Trains one small decoder with each scheme, several seeds each, on the same data and the same number
of tokens; then has it read records of lines and prose of one to eight training lengths, as it was
trained and with what is said to help. Every training goes on from its checkpoint, every evaluation
from its journal, so that whoever interrupts loses half a minute at most.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from ntk_alibi._runtime import set_num_threads
from ntk_alibi.evaluation.report.markdown import describe_machine, replace_section
from ntk_alibi.extrapolation import tables
from ntk_alibi.extrapolation.decoder import Decoder
from ntk_alibi.extrapolation.measure import Measurement, MeasurePlan
from ntk_alibi.extrapolation.pairs import Pairs
from ntk_alibi.extrapolation.schemes import SCHEMES, LayerShape
from ntk_alibi.training import training

#: About each record; as many as there are lines in one of the training length.
QUESTIONS = 16


#: Shares of the steps: with a constant learning rate, and after which lengths grow in any case.
CONSTANT, DUE = 0.5, 0.6


@dataclass(frozen=True)
class StudyRecipe(training.Recipe):
    """All choices of a training; all schemes have the same but for the name.

    Attributes:
        scheme: one of `SCHEMES`.
        steps: of so many tokens each; the learning rate falls in the second half of them.
        position_rate: learning rate of what a scheme learns; few numbers, which have far to go.
        autocast: whether matrices are multiplied in bfloat16.
    """

    train_length: int = 128
    start_length: int = 32
    threshold: float = 0.8
    tokens: int = 2048
    shares: tuple[float, float, float] = (0.15, 0.85, 0.0)
    adam_rate: float = 5e-3
    record_weight: float = 0.0
    scheme: str = "alibi"
    steps: int = 500
    position_rate: float = 0.02
    autocast: bool = True


@dataclass
class StudyCurriculum(training.Curriculum):
    """Ends after a fixed number of steps; lengths that are not mastered grow in time all the same.

    Attributes:
        wall_seconds, cpu_seconds: in training steps so far.
    """

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def overdue(self, recipe: StudyRecipe) -> bool:
        """Whether so many steps are done that the training length is due for all."""
        return self.step >= DUE * recipe.steps

    def rate(self, recipe: StudyRecipe) -> float:
        """Factor of the learning rates: warm-up, constant, falling to 2 %."""
        falling = max(0.0, self.step / recipe.steps - CONSTANT) / (1.0 - CONSTANT)
        return self.warm_up() * (1.0 - 0.98 * falling)

    def finished(self, recipe: StudyRecipe) -> bool:
        """Whether all steps are done."""
        return self.step >= recipe.steps


class StudyTraining(training.Training):
    """Of a decoder with one scheme.

    Args:
        recipe: what to do.
    """

    def __init__(self, recipe: StudyRecipe) -> None:
        super().__init__(recipe, StudyCurriculum(recipe.start_length))

    def make_model(self) -> Decoder:
        """A decoder with its first weights."""
        recipe = self.recipe
        place = LayerShape(recipe.heads, recipe.hidden_size, recipe.train_length)
        return Decoder(
            len(self.tokenizer),
            recipe.layers,
            recipe.hidden_size,
            recipe.heads,
            partial(SCHEMES[recipe.scheme], place),
            autocast=recipe.autocast,
        )

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        """As all trainings, and another AdamW for what the scheme learns."""
        own = [p for name, p in self.model.named_parameters() if ".positions." in name]
        more = [self.adam(own, self.recipe.position_rate)] if own else []
        return [*super().make_optimizers(), *more]

    def logits(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Of the model for tokens (rows, length), where wanted; (wanted, vocabulary)."""
        logits: torch.Tensor = self.model(tokens, wanted)
        return logits

    def line_task(self, length: int) -> Pairs:
        """What records of lines of so many tokens are."""
        return Pairs(QUESTIONS)

    def step(self) -> float:
        """One step on one batch; the loss."""
        wall, cpu = time.perf_counter(), time.process_time()
        loss = super().step()
        self.curriculum.wall_seconds += time.perf_counter() - wall
        self.curriculum.cpu_seconds += time.process_time() - cpu
        return loss


def train_and_evaluate(recipe: StudyRecipe, plan: MeasurePlan, output: Path) -> None:
    """One model: train and measure what output does not hold yet.

    Args:
        recipe: of the training.
        plan: of the evaluation.
        output: folder for `<scheme>-<seed>/`, with a checkpoint, a log and the results.
    """
    folder = output / f"{recipe.scheme}-{recipe.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "train.ckpt"
    trained = StudyTraining(recipe)
    trained.run(checkpoint, folder / "train.jsonl")
    trained.save(checkpoint)
    path = folder / "results.json"
    work = json.loads(json.dumps({"recipe": asdict(recipe), "plan": asdict(plan)}))
    results = json.loads(path.read_text()) if path.exists() else work | {"measured": {}}
    if {key: results[key] for key in work} != work:
        raise ValueError(f"{path} holds results of other work than {work}; remove its folder")
    results["training"] = asdict(trained.curriculum)
    for key, result in Measurement(trained, plan).run(results["measured"]):
        results["measured"][key] = result
        whole = path.with_suffix(".partial")
        whole.write_text(json.dumps(results))
        whole.replace(path)


def write_document(output: Path, document: Path) -> None:
    """Put what is done into the document's sections; numbers and a picture into pictures/.

    Args:
        output: folder of the study.
        document: a Markdown file with markers for the sections.
    """
    summary = {"machine": describe_machine(), **tables.summarise(output)}
    pictures = document.parent / "pictures"
    pictures.joinpath("extrapolation.json").write_text(json.dumps(summary) + "\n")
    tables.figure(summary).savefig(pictures / "extrapolation.png", dpi=90)
    sections = {"machine": summary["machine"], **tables.tables(summary)}
    for name, text in sections.items():
        replace_section(document, name, text)


def _work(recipe: StudyRecipe, output: Path) -> str:
    torch.set_num_threads(1)
    set_num_threads(1)
    train_and_evaluate(recipe, MeasurePlan(), output)
    return f"{recipe.scheme}, seed {recipe.seed}: done"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ntk_alibi.extrapolation", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--output", type=Path, default=Path("study"), help="folder (%(default)s)")
    parser.add_argument("--schemes", nargs="*", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count(), help="of one thread each (%(default)s)"
    )
    parser.add_argument("--document", type=Path, help="Markdown file to put the tables into")
    options = parser.parse_args(arguments)
    recipes = [StudyRecipe(scheme=x, seed=seed) for seed in options.seeds for x in options.schemes]
    if recipes:  # not forked: a child of fork would have no threads for OpenMP
        with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
            for line in pool.imap_unordered(partial(_work, output=options.output), recipes):
                print(line, flush=True)
    for name, text in tables.tables(tables.summarise(options.output)).items():
        print(f"\n{name}\n\n{text}")
    if options.document:
        write_document(options.output, options.document)
