"""Study of length extrapolation by position scheme: `python -m ntk_alibi.extrapolation`.

The study trains a small decoder with each scheme and seed on the same data and number of tokens.
Each model then reads records and prose of one to eight training lengths, both as trained and in
reading modes that are meant to help with longer texts. Trainings resume from their checkpoints and
evaluations from their stored results, so that an interruption loses at most half a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from ntk_alibi import _checks, _files
from ntk_alibi.evaluation.report.markdown import describe_machine, replace_section
from ntk_alibi.extrapolation import tables
from ntk_alibi.extrapolation.decoder import Decoder
from ntk_alibi.extrapolation.measure import Measurement, MeasurePlan
from ntk_alibi.extrapolation.pairs import Pairs
from ntk_alibi.extrapolation.schemes import SCHEMES, LayerShape
from ntk_alibi.training import training
from ntk_alibi.training.processes import each_in_a_process

#: Number of questions about a record; one of the training length states as many numbers.
QUESTIONS = 16

#: Shares of the steps: the learning rate is constant in the first; after the second, the length
#: grows at any accuracy.
CONSTANT, DUE = 0.5, 0.6


@dataclass(frozen=True)
class StudyRecipe(training.Recipe):
    """All settings of a training; except for `scheme` they are the same for all schemes.

    Attributes:
        scheme: name of the position scheme, a key of `SCHEMES`.
        steps: number of steps; the learning rate falls in the second half of them.
        position_rate: learning rate of the scheme's parameters; it is high because they are few and
            start far from their final values.
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
    """A curriculum of a fixed number of steps, whose lengths grow in time at any accuracy.

    Attributes:
        wall_seconds, cpu_seconds: time spent in training steps so far.
    """

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def overdue(self, recipe: StudyRecipe) -> bool:
        """Return whether the share of steps is done after which the length always grows."""
        return self.step >= DUE * recipe.steps

    def rate(self, recipe: StudyRecipe) -> float:
        """Return the factor of the learning rates: warm-up, constant, then falling to 2 %."""
        falling = max(0.0, self.step / recipe.steps - CONSTANT) / (1.0 - CONSTANT)
        return self.warm_up() * (1.0 - 0.98 * falling)

    def finished(self, recipe: StudyRecipe) -> bool:
        """Return whether all steps are done."""
        return self.step >= recipe.steps


class StudyTraining(training.Training):
    """The training of a decoder with one position scheme.

    Args:
        recipe: settings of the training.
    """

    def __init__(self, recipe: StudyRecipe) -> None:
        super().__init__(recipe, StudyCurriculum(recipe.start_length))

    def make_model(self) -> Decoder:
        """Build a decoder with random first weights."""
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
        """Make the optimizers of all trainings, and an AdamW for the scheme's parameters."""
        learned = [p for name, p in self.model.named_parameters() if ".positions." in name]
        more = [self.adam(learned, self.recipe.position_rate)] if learned else []
        return [*super().make_optimizers(), *more]

    def logits(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Compute the model's logits at the wanted positions; see `Training`."""
        logits: torch.Tensor = self.model(tokens, wanted)
        return logits

    def line_task(self, length: int) -> Pairs:
        """Return the kind of the study's records."""
        return Pairs(QUESTIONS)

    def step(self) -> float:
        """Train on one batch, measure the time, and return the loss."""
        wall, cpu = time.perf_counter(), time.process_time()
        loss = super().step()
        self.curriculum.wall_seconds += time.perf_counter() - wall
        self.curriculum.cpu_seconds += time.process_time() - cpu
        return loss


def train_and_evaluate(recipe: StudyRecipe, plan: MeasurePlan, output: Path) -> None:
    """Train and measure one model; steps and results already stored in output are reused.

    Args:
        recipe: settings of the training.
        plan: plan of the measurements.
        output: folder of the study; the model's checkpoint, log and results go to its subfolder
            `<scheme>-<seed>/`.

    Raises:
        ValueError: the subfolder belongs to another recipe or plan.
    """
    folder = output / f"{recipe.scheme}-{recipe.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "train.ckpt"
    trained = StudyTraining(recipe)
    trained.run(checkpoint, folder / "train.jsonl")
    trained.save(checkpoint)
    path = folder / "results.json"
    work = json.loads(json.dumps({"recipe": asdict(recipe), "plan": asdict(plan)}))
    results = _files.read_json(path) if path.exists() else work | {"measured": {}}
    with _files.readable("results of the study; remove it to measure again", path):
        same = {key: results[key] for key in work} == work
    if not same:
        raise ValueError(f"{path} holds results of other work than {work}; remove its folder")
    results["training"] = asdict(trained.curriculum)
    for key, result in Measurement(trained, plan).run(results["measured"]):
        results["measured"][key] = result
        whole = path.with_suffix(".partial")
        whole.write_text(json.dumps(results))
        whole.replace(path)


def write_document(output: Path, document: Path) -> None:
    """Write the results into a document's sections, and numbers and a picture into pictures/.

    Args:
        output: folder of the study.
        document: a Markdown file with markers for the sections; pictures/ is beside it.
    """
    summary = {"machine": describe_machine(), **tables.summarise(output)}
    pictures = document.parent / "pictures"
    pictures.joinpath("extrapolation.json").write_text(json.dumps(summary) + "\n")
    tables.figure(summary).savefig(pictures / "extrapolation.png", dpi=90)
    sections = {"machine": summary["machine"], **tables.tables(summary)}
    for name, text in sections.items():
        replace_section(document, name, text)


def _work(recipe: StudyRecipe, output: Path) -> str:
    train_and_evaluate(recipe, MeasurePlan(), output)
    return f"{recipe.scheme}, seed {recipe.seed}: done"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: train and measure all models, and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m ntk_alibi.extrapolation", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument(
        "--output", type=Path, default=Path("study"), help="folder of the study (%(default)s)"
    )
    parser.add_argument("--schemes", nargs="*", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--processes",
        type=int,
        default=os.cpu_count(),
        help="number of processes, each with one thread (%(default)s)",
    )
    parser.add_argument("--document", type=Path, help="Markdown file whose sections get the tables")
    options = parser.parse_args(arguments)
    for seed in options.seeds:
        _checks.integer("--seeds", seed, minimum=0)
    _checks.integer("--processes", options.processes, minimum=1)
    if options.document:
        options.document.read_text()  # before hours of work
        _files.writable_folder(options.document.parent / "pictures")
    _files.writable_folder(options.output)
    recipes = [StudyRecipe(scheme=x, seed=seed) for seed in options.seeds for x in options.schemes]
    work = partial(_work, output=options.output)
    for line in each_in_a_process(work, recipes, options.processes):
        print(line, flush=True)
    for name, text in tables.tables(tables.summarise(options.output)).items():
        print(f"\n{name}\n\n{text}")
    if options.document:
        write_document(options.output, options.document)
