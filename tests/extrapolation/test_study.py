"""The study: schemes learn and are causal; results survive interruptions; tables are right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import ntk_alibi as na
from ntk_alibi.extrapolation import study, tables
from ntk_alibi.extrapolation.decoder import Decoder
from ntk_alibi.extrapolation.measure import Measurement, MeasurePlan
from ntk_alibi.extrapolation.pairs import Pairs
from ntk_alibi.extrapolation.schemes import SCHEMES, AttentionView, LayerShape
from ntk_alibi.extrapolation.study import StudyRecipe, StudyTraining
from ntk_alibi.training import training

#: A recipe of a few steps with a few tokens each.
TINY = StudyRecipe(
    train_length=64, start_length=32, steps=4, tokens=128, layers=1, hidden_size=32, heads=2,
    autocast=False,
)  # fmt: skip
TINY_PLAN = MeasurePlan(multiples=(1, 2), records=2, windows=2)


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def decoder(scheme: str, layers: int = 2, length: int = 32) -> Decoder:
    torch.manual_seed(0)
    place = LayerShape(heads=4, hidden_size=32, train_length=length)
    return Decoder(50, layers, 32, 4, lambda: SCHEMES[scheme](place)).eval()


def some_tokens(rows: int = 2, length: int = 40) -> torch.Tensor:
    return torch.randint(50, (rows, length), generator=torch.Generator().manual_seed(1))


def test_no_token_sees_a_later_one(scheme: str) -> None:
    model, tokens = decoder(scheme), some_tokens()
    changed = tokens.clone()
    changed[:, 25:] = (changed[:, 25:] + 1) % 50
    torch.testing.assert_close(model(changed)[:, :25], model(tokens)[:, :25], rtol=0, atol=1e-6)
    assert (model(changed)[:, 25:] - model(tokens)[:, 25:]).abs().amax(dim=-1).min() > 1e-4


def test_every_parameter_gets_a_gradient(scheme: str) -> None:
    model = decoder(scheme)
    model(some_tokens()).logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            # softmax ignores a constant added to all scores of a query
            assert parameter.grad.any() or name.endswith("key.bias"), name


def test_a_step_lowers_the_loss_of_its_batch(scheme: str) -> None:
    model, tokens = decoder(scheme).train(), some_tokens(8)

    def loss() -> torch.Tensor:
        return torch.nn.functional.cross_entropy(
            model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        )

    before = loss()
    before.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.01 * parameter.grad
    assert loss() < before


def test_schemes_share_their_other_first_weights(scheme: str) -> None:
    own, others = decoder(scheme).state_dict(), decoder("none").state_dict()
    shared = {name for name in own if ".positions." not in name}
    assert shared == set(others)
    assert all(torch.equal(own[name], others[name]) for name in shared)


def test_logits_of_some_positions_are_those_of_all() -> None:
    model, tokens = decoder("alibi"), some_tokens()
    keep = torch.zeros(tokens.shape, dtype=torch.bool)
    keep[0, 3] = keep[1, 20] = True
    whole = model(tokens)
    torch.testing.assert_close(model(tokens, keep), whole[keep], rtol=0, atol=1e-6)


def by_torch(model: Decoder, tokens: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute the decoder with torch's attention and a dense bias (heads, length, length)."""
    x = model.embeddings_norm(model.word_embeddings(tokens))
    causal = torch.ones(tokens.shape[1], tokens.shape[1]).tril().bool()
    for layer in model.layers:
        normed = layer.attention_norm(x)
        query, key, value = (
            part(normed).unflatten(-1, (4, -1)).transpose(1, 2)
            for part in (layer.query, layer.key, layer.value)
        )
        attended = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=bias.masked_fill(~causal, -torch.inf)
        )
        x = x + layer.out(attended.transpose(1, 2).flatten(2))
        up = torch.nn.functional.gelu(layer.up(layer.feed_forward_norm(x)), approximate="tanh")
        x = x + layer.down(up)
    return model.final_norm(x) @ model.word_embeddings.weight.T


@pytest.mark.parametrize(
    "view", [AttentionView(), AttentionView(window=7), AttentionView(scaling=na.NTK(4.0))], ids=str
)
def test_alibi_is_torch_attention_with_a_dense_bias(view: AttentionView) -> None:
    model, tokens = decoder("alibi", length=2048), some_tokens()  # long enough for BLOOM's slopes
    model.view = view
    distance = torch.arange(40)[:, None] - torch.arange(40)
    bias = -torch.tensor(na.alibi_slopes(4, view.scaling))[:, None, None] * distance
    if view.window is not None:
        bias = bias.masked_fill(distance >= view.window, -torch.inf)
    torch.testing.assert_close(model(tokens), by_torch(model, tokens, bias), rtol=0, atol=1e-5)


def test_slopes_reach_as_far_for_short_trainings() -> None:
    for length in (128, 256, 1024):
        slopes = LayerShape(8, 64, length).slopes
        assert float(slopes.min()) * length == pytest.approx(4.0)
        assert float(slopes.max()) == 0.5


@pytest.mark.parametrize("name", ["alibi", "learned-slopes", "kerple-power", "kerple-log", "bam"])
def test_interpolation_reads_each_distance_as_a_part_of_it(name: str) -> None:
    positions = SCHEMES[name](LayerShape(4, 32, 64))
    hidden = torch.zeros(1, 9, 32)
    with torch.no_grad():
        plain, stretched = (
            np.asarray(positions(hidden, scaling)["bias"].tensor(1, 9))
            for scaling in (None, na.Interpolation(4.0))
        )
    # for the last query, keys 4 and 8 tokens back are read as 1 and 2 tokens back
    np.testing.assert_allclose(stretched[..., [4, 0]], plain[..., [7, 6]], rtol=1e-6, atol=1e-7)


def stopped(recipe: StudyRecipe, folder: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the study and interrupt it in a step of the training."""
    done = StudyTraining.step

    def stop(self: StudyTraining) -> float:
        if self.curriculum.step == step:
            raise KeyboardInterrupt
        return done(self)

    with monkeypatch.context() as patched:
        patched.setattr(training, "CHECKPOINT_SECONDS", 0.0)
        patched.setattr(StudyTraining, "step", stop)
        with pytest.raises(KeyboardInterrupt):
            study.train_and_evaluate(recipe, TINY_PLAN, folder)


@pytest.mark.parametrize("name", ["kerple-log", "fox"])
def test_interrupted_work_ends_in_the_same_numbers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(TINY, scheme=name)
    study.train_and_evaluate(recipe, TINY_PLAN, tmp_path / "whole")
    stopped(recipe, tmp_path / "resumed", 2, monkeypatch)
    study.train_and_evaluate(recipe, TINY_PLAN, tmp_path / "resumed")
    whole, resumed = (tmp_path / x / f"{name}-0" for x in ("whole", "resumed"))
    measured, again = (
        json.loads((x / "results.json").read_text())["measured"] for x in (whole, resumed)
    )
    assert set(measured) >= {"plain/1", "plain/2", "window/2"}
    assert measured == again
    checkpoints = (torch.load(x / "train.ckpt", weights_only=True) for x in (whole, resumed))
    first, second = (checkpoint["model"] for checkpoint in checkpoints)
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_an_interrupted_evaluation_goes_on_with_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(TINY, scheme="none")
    study.train_and_evaluate(recipe, TINY_PLAN, tmp_path)
    path = tmp_path / "none-0/results.json"
    whole = json.loads(path.read_text())
    part = {key: whole["measured"][key] for key in ("plain/1", "plain/2")}
    path.write_text(json.dumps(whole | {"measured": part}))
    asked = []
    nats = Measurement._nats

    def counted(self: Measurement, windows: torch.Tensor) -> list[float]:
        asked.append(windows)
        return nats(self, windows)

    monkeypatch.setattr(Measurement, "_nats", counted)
    study.train_and_evaluate(recipe, TINY_PLAN, tmp_path)
    assert len(asked) == len(whole["measured"]) - 2 == 2
    assert json.loads(path.read_text()) == whole


def test_a_window_as_long_as_the_text_and_log_n_within_the_training_change_nothing() -> None:
    for name in SCHEMES:
        model, tokens = decoder(name), some_tokens()
        with torch.no_grad():
            plain = model(tokens)
            for view in (
                AttentionView(window=40),
                AttentionView(causal_block=20),
                AttentionView(log_n=40),
            ):
                model.view = view
                torch.testing.assert_close(model(tokens), plain, rtol=0, atol=1e-6)


def store(folder: Path, scheme: str, seed: int, measured: dict[str, object]) -> None:
    """Write the results file of a finished model."""
    recipe = {"scheme": scheme, "seed": seed, "train_length": 10}
    path = folder / f"{scheme}-{seed}"
    path.mkdir(parents=True)
    taken = {"cpu_seconds": 60.0 + seed, "wall_seconds": 70.0}
    plan = {"multiples": [1, 2], "records": 2, "windows": 2, "seed": 0}
    results = {"recipe": recipe, "plan": plan, "training": taken}
    path.joinpath("results.json").write_text(json.dumps(results | {"measured": measured}))


def answered(right: list[bool], nats: float) -> dict[str, object]:
    return {"right": right, "distances": [5, 5, 15, 15], "nats": [nats - 0.1, nats + 0.1]}


@pytest.fixture
def two_seeds(tmp_path: Path) -> dict[str, object]:
    for seed, share in enumerate(([True] * 4, [True, True, False, False])):
        measured = {
            "plain/1": answered([True] * 4, 3.0 + seed),
            "plain/2": answered(share, 3.5 + seed),
            "window/2": answered([False] * 4, 3.25 + 3 * seed),
            **{f"{name}/2": answered([True] * 4, 3.0) for name in ("log-n", "pi", "ntk")},
        }
        store(tmp_path, "rope", seed, measured)
    return tables.summarise(tmp_path)


def test_cells_are_means_and_spreads_over_the_seeds(two_seeds: dict[str, object]) -> None:
    shown = tables.tables(two_seeds)
    assert "| RoPE | 2 | 100 ± 0 | 75 ± 35 |" in shown["pairs"]
    assert "| RoPE + window | 2 |  | 0 ± 0 | 0 / 0 |" in shown["pairs"]
    assert shown["pairs"].splitlines()[2].endswith("| 100 / 50 |")
    assert (
        "| RoPE | 2 | 50 ± 71 |" in shown["beyond"]
    )  # one seed answers both far questions, the other neither
    assert "| RoPE | 2 | 3.50 ± 0.71 | +0.500 ± 0.000 |" in shown["prose"]
    assert "| RoPE + window | 2 |  | +1.250 ± 1.414 |" in shown["prose"]  # +0.25 and +2.25
    assert "| RoPE | 2 | 60 | 70 |" in shown["training"]


def test_models_that_are_still_at_work_do_not_count(
    two_seeds: dict[str, object], tmp_path: Path
) -> None:
    store(tmp_path, "rope", 2, {"plain/1": answered([False] * 4, 9.0)})
    store(tmp_path, "none", 0, {"plain/1": answered([False] * 4, 9.0)})
    assert tables.summarise(tmp_path) == two_seeds


def test_models_of_different_recipes_are_not_mixed(
    two_seeds: dict[str, object], tmp_path: Path
) -> None:
    store(tmp_path, "rope", 2, {"plain/1": answered([True] * 4, 3.0)})
    path = tmp_path / "rope-2/results.json"
    path.write_text(path.read_text().replace('"train_length": 10', '"train_length": 20'))
    with pytest.raises(ValueError, match=r"rope-2.*another recipe or plan"):
        tables.summarise(tmp_path)
    with pytest.raises(ValueError, match="has none"):
        tables.summarise(tmp_path / "nothing")


def test_results_of_other_work_are_not_continued(tmp_path: Path) -> None:
    recipe = replace(TINY, scheme="none", steps=1)
    study.train_and_evaluate(recipe, TINY_PLAN, tmp_path)
    with pytest.raises(ValueError, match="holds results of other work"):
        study.train_and_evaluate(recipe, replace(TINY_PLAN, records=3), tmp_path)
    with pytest.raises(ValueError, match="must be a checkpoint of"):
        study.train_and_evaluate(replace(recipe, steps=2), TINY_PLAN, tmp_path)


def test_the_picture_has_a_curve_for_what_was_measured(two_seeds: dict[str, object]) -> None:
    axes = tables.figure(two_seeds).axes
    labels = [line.get_label() for line in axes[2].get_lines()]
    assert labels[:2] == ["RoPE", "RoPE + window"]
    # within the training length a window changes nothing
    assert axes[2].get_lines()[1].get_ydata().tolist() == [100.0, 0.0]
    assert axes[5].get_lines()[0].get_ydata().tolist() == [0.0, 0.5]


def test_each_case_and_window_is_read_once_and_the_same_text_ends_it() -> None:
    trained = StudyTraining(TINY)
    evaluation = Measurement(trained, TINY_PLAN)
    short, long = (evaluation._windows(multiple) for multiple in (1, 2))
    assert torch.equal(short, long[:, -64:])
    keys = [key for key, _ in evaluation.run({"plain/2"})]
    assert keys == ["plain/1", "window/2", "log-n/2", "pi/2", "ntk/2"]


def test_answers_are_right_where_greedy_decoding_gives_them() -> None:
    trained = StudyTraining(TINY)
    evaluation = Measurement(trained, TINY_PLAN)
    cases = evaluation._cases(1)
    right = evaluation._answers(cases)["right"]
    expected = []
    with torch.inference_mode():
        for case in cases:
            tokens = torch.from_numpy(case.tokens)[None]
            likeliest = trained.model(tokens)[0].argmax(-1)
            expected += [
                bool((likeliest[begin - 1 : end - 1] == tokens[0, begin:end]).all())
                for begin, end in case.answers
            ]
    assert right == expected
    assert len(right) == sum(len(case.answers) for case in cases)


def test_pairs_ask_for_what_was_stated_once() -> None:
    encode = StudyTraining(TINY).encode
    for length in (8, 30, 128, 1024):
        case = Pairs(16).case(encode, length, np.random.default_rng(0))
        assert length - 3 <= len(case.tokens) <= length
        lines = case.tokens.reshape(-1, 4)
        questions = len(case.answers)
        assert questions == min(16, len(lines) // 2)
        stated, asked = lines[:-questions], lines[-questions:]
        assert len({tuple(name) for name in stated[:, :2]}) == len(stated)
        assert [begin for begin, _ in case.answers] == [
            len(case.tokens) - 4 * (questions - i) + 2 for i in range(questions)
        ]
        for (begin, end), distance, line in zip(case.answers, case.distances, asked, strict=True):
            assert end - begin == 1
            source = begin - distance
            assert case.tokens[source] == case.tokens[begin]
            assert case.tokens[source - 2 : source].tolist() == line[:2].tolist()
            assert source < 4 * len(stated)


def test_pairs_need_room_for_one_and_names_for_all() -> None:
    encode = StudyTraining(TINY).encode
    for length in (7, 4 * (4096 + 17)):
        with pytest.raises(ValueError, match=f"length must be from 8 tokens .* got {length}"):
            Pairs(16).case(encode, length, np.random.default_rng(0))


@pytest.mark.slow
def test_alibi_learns_to_look_up_numbers(tmp_path: Path) -> None:
    """After a minute of training the share is far above chance, which is one of 16 lines."""
    recipe = StudyRecipe(scheme="alibi")
    study.train_and_evaluate(recipe, MeasurePlan(multiples=(1, 2), records=16, windows=2), tmp_path)
    summary = tables.summarise(tmp_path)
    assert tables.over_seeds(summary, "alibi/plain", "pairs", 1)[0] > 0.5
    assert tables.over_seeds(summary, "alibi/plain", "nats", 1)[0] < 5.5
