"""How far position schemes reach beyond their training length: `python -m ntk_alibi.models.study`.

Trains one small decoder with each scheme, several seeds each, on the same data and the same number
of tokens; then has it read records of lines and prose of one to eight training lengths, as it was
trained and with what is said to help. Every training goes on from its checkpoint, every evaluation
from its journal, so that whoever interrupts loses half a minute at most.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from ntk_alibi._runtime import set_num_threads
from ntk_alibi.evaluation import corpus
from ntk_alibi.evaluation.journal import Journal
from ntk_alibi.evaluation.tasks import Case, Lines
from ntk_alibi.models import training
from ntk_alibi.models.decoder import Decoder
from ntk_alibi.models.positions import SCHEMES, Place, View
from ntk_alibi.scaling import NTK, Interpolation

#: Questions about the lines of one record, in training at the full length and in the evaluation.
QUESTIONS = 8

#: Tokens that one forward pass of the evaluation reads.
BATCH_TOKENS = 8192


@dataclass(frozen=True)
class Recipe(training.Recipe):
    """All choices of a training; all schemes have the same but for the name.

    Attributes:
        scheme: one of `SCHEMES`.
        steps: of so many tokens each; the learning rate falls over the second half of them.
        position_rate: learning rate of what a scheme learns; few numbers, which have far to go.
        autocast: whether matrices are multiplied in bfloat16.
    """

    train_length: int = 256
    start_length: int = 96
    growth: float = 1.25
    tokens: int = 2048
    shares: tuple[float, float, float] = (0.2, 0.8, 0.0)
    scheme: str = "alibi"
    steps: int = 600
    position_rate: float = 0.02
    autocast: bool = True


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        multiples: of the training length.
        records: of lines, at each length.
        windows: of prose; in each the same tokens are predicted from one to so many lengths.
        seed: of the records, which are the same for all models.
    """

    multiples: tuple[int, ...] = (1, 2, 4, 8)
    records: int = 24
    windows: int = 24
    seed: int = 2026


@dataclass
class Curriculum(training.Curriculum):
    """Ends after a fixed number of steps; lengths that are not mastered grow in time all the same.

    Attributes:
        wall_seconds, cpu_seconds: in training steps so far.
    """

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def overdue(self, recipe: Recipe) -> bool:
        """Whether the second half of the steps begins, which has the training length for all."""
        return self.step >= recipe.steps // 2

    def rate(self, recipe: Recipe) -> float:
        """Factor of the learning rates: warm-up, constant, falling to 2 %."""
        half = recipe.steps / 2
        return self.warm_up() * (1.0 - 0.98 * max(0.0, (self.step - half) / half))

    def finished(self, recipe: Recipe) -> bool:
        """Whether all steps are done."""
        return self.step >= recipe.steps


class Training(training.Training):
    """Of a decoder with one scheme.

    Args:
        recipe: what to do.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, Curriculum(recipe.start_length))

    def make_model(self) -> Decoder:
        """A decoder with its first weights."""
        recipe = self.recipe
        place = Place(recipe.heads, recipe.hidden_size, recipe.train_length)
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

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Of the model: (rows, length) to (rows, length, vocabulary)."""
        logits: torch.Tensor = self.model(tokens)
        return logits

    def line_questions(self, length: int) -> int:
        """So many that the shortest records have one line, and the longest mostly lines."""
        return max(1, min(length // 18, QUESTIONS))

    def step(self) -> float:
        """One step on one batch; the loss."""
        wall, cpu = time.perf_counter(), time.process_time()
        loss = super().step()
        self.curriculum.wall_seconds += time.perf_counter() - wall
        self.curriculum.cpu_seconds += time.process_time() - cpu
        return loss


@dataclass(frozen=True)
class Reading:
    """A way to read longer texts than in training.

    Attributes:
        name: in the journal.
        label: in tables.
        view: of the multiple of the training length and that length itself; None where it would
            change nothing.
        applies: whether a scheme can be read so.
    """

    name: str
    label: str
    view: Callable[[int, int], View | None]
    applies: Callable[[str], bool] = lambda scheme: True


def _stretched_by(kind: type) -> dict[str, Any]:
    return {
        "view": lambda multiple, length: (
            View(scaling=kind(float(multiple))) if multiple > 1 else None
        ),
        "applies": lambda scheme: kind in SCHEMES[scheme].scalings,
    }


#: The first is reading as in training. XPOS's blocks are half as long as the training.
READINGS = (
    Reading("plain", "as trained", lambda multiple, length: View()),
    Reading("window", "window", lambda m, length: View(window=length) if m > 1 else None),
    Reading("log-n", "log-n", lambda m, length: View(log_n=length) if m > 1 else None),
    Reading("pi", "interpolation", **_stretched_by(Interpolation)),
    Reading("ntk", "NTK", **_stretched_by(NTK)),
    Reading(
        "blocks",
        "block-wise causal",
        lambda multiple, length: View(causal_block=length // 2),
        lambda scheme: scheme == "xpos",
    ),
)


class Evaluation:
    """Measures a trained model by a plan; the records and windows are the same for all models."""

    def __init__(self, trained: Training, plan: Plan) -> None:
        self._model: Decoder = trained.model.eval()
        self._recipe: Recipe = trained.recipe
        self._padding = int(trained.tokenizer.pad_token_id)
        self._encode = trained.encode
        self._plan = plan

    def run(self, journal: Journal) -> None:
        """Measure what the journal does not hold yet."""
        length = self._recipe.train_length
        for multiple in self._plan.multiples:
            todo = {
                f"{reading.name}/{multiple}": view
                for reading in READINGS
                if reading.applies(self._recipe.scheme)
                and (view := reading.view(multiple, length)) is not None
            }
            todo = {name: view for name, view in todo.items() if name not in journal}
            if not todo:
                continue
            cases, windows = self._cases(multiple), self._windows(multiple)
            for name, view in todo.items():
                self._model.view = view
                journal.write(name, {**self._lines(cases), "nats": self._nats(windows)})
        self._model.view = View()

    def _cases(self, multiple: int) -> list[Case]:
        rng = np.random.default_rng([self._plan.seed, multiple])
        length = multiple * self._recipe.train_length
        task = Lines(min(QUESTIONS, self._recipe.train_length // 18))
        return [task.case(self._encode, length, rng) for _ in range(self._plan.records)]

    def _windows(self, multiple: int) -> torch.Tensor:
        """Prose before the same tokens for each multiple, (windows, multiple training lengths)."""
        chapters = self._encode([chapter + "\n" for chapter in corpus.held_out_text()])
        prose = np.array([token for chapter in chapters for token in chapter], np.int64)
        longest = max(self._plan.multiples) * self._recipe.train_length
        ends = np.linspace(longest, len(prose), self._plan.windows).astype(int)
        length = multiple * self._recipe.train_length
        return torch.from_numpy(np.stack([prose[end - length : end] for end in ends]))

    @torch.inference_mode()
    def _lines(self, cases: list[Case]) -> dict[str, Any]:
        """For all questions in order: whether the likeliest tokens are the answer, and distances."""
        right: list[bool] = []
        length = max(len(case.tokens) for case in cases)
        for batch in _batches(cases, length):
            tokens = torch.full((len(batch), length), self._padding)
            before = torch.zeros((len(batch), length), dtype=torch.bool)
            for row, case in enumerate(batch):
                tokens[row, : len(case.tokens)] = torch.from_numpy(case.tokens)
                for begin, end in case.answers:
                    before[row, begin - 1 : end - 1] = True
            expected = tokens.roll(-1, dims=1)[before]
            hits = (self._model(tokens, before).argmax(-1) == expected).tolist()
            for begin, end in (answer for case in batch for answer in case.answers):
                right.append(all(hits[: end - begin]))
                hits = hits[end - begin :]
        return {"right": right, "distances": [d for case in cases for d in case.distances]}

    @torch.inference_mode()
    def _nats(self, windows: torch.Tensor) -> list[float]:
        """Mean nats a token of the last half training length of each window."""
        scored = self._recipe.train_length // 2
        nats: list[float] = []
        for batch in _batches(windows, windows.shape[1]):
            before = torch.zeros(batch.shape, dtype=torch.bool)
            before[:, -scored - 1 : -1] = True
            losses = F.cross_entropy(
                self._model(batch, before), batch[:, -scored:].flatten(), reduction="none"
            )
            nats += losses.view(-1, scored).double().mean(dim=1).tolist()
        return nats


def _batches(rows: Any, length: int) -> Iterator[Any]:
    step = max(1, BATCH_TOKENS // length)
    return (rows[begin : begin + step] for begin in range(0, len(rows), step))


def train_and_evaluate(recipe: Recipe, plan: Plan, output: Path) -> None:
    """One model: train and measure what output does not hold yet.

    Args:
        recipe: of the training.
        plan: of the evaluation.
        output: folder for `<scheme>-<seed>/`, with a checkpoint, a log and the results.
    """
    folder = output / f"{recipe.scheme}-{recipe.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "train.ckpt"
    trained = Training(recipe)
    trained.run(checkpoint, folder / "train.jsonl")
    trained.save(checkpoint)
    work = json.loads(json.dumps({"recipe": asdict(recipe), "plan": asdict(plan)}))
    with Journal(folder / "results.jsonl", work) as journal:
        if "training" not in journal:
            journal.write("training", asdict(trained.curriculum))
        Evaluation(trained, plan).run(journal)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ntk_alibi.models.study", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--output", type=Path, default=Path("study"), help="folder (%(default)s)")
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    set_num_threads(1)
    for seed in options.seeds:
        for scheme in options.schemes:
            train_and_evaluate(Recipe(scheme=scheme, seed=seed), Plan(), options.output)


if __name__ == "__main__":
    main()
