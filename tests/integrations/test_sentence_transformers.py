"""The real sentence-transformers on patched models: they embed, score and train as unpatched."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import ntk_alibi as na
from remote_models.jina_bert import small_jina_bert
from table_families import shared_model

st = pytest.importorskip("sentence_transformers", reason="make test-all installs it")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

#: These libraries warn of names of their own.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

WORDS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *(f"w{i}" for i in range(59))]
TEXTS = [" ".join(f"w{(i * k) % 59}" for i in range(5 * k)) for k in (1, 3, 7, 2)]

#: Float32 sums through two layers, at states of about 1.
CLOSE = {"atol": 1e-5, "rtol": 0.0}

#: Classes of transformers' models, and the families whose small models they are made from.
ENCODERS = {"MPNetModel": "mpnet", "T5EncoderModel": "t5, encoder", "BloomModel": "bloom"}
POOLED = [("MPNetModel", "mean"), ("T5EncoderModel", "mean"), ("JinaBertModel", "mean"),
          ("BloomModel", "mean"), ("BloomModel", "lasttoken")]  # fmt: skip
pooled = pytest.mark.parametrize(("name", "pooling"), POOLED)

#: Ways to patch.
WAYS: dict[str, Callable[[Any], Any]] = {
    "whole": na.patch,
    "inner": lambda model: na.patch(model[0].model),
}
ways = pytest.mark.parametrize("way", WAYS)


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return what saves a small random model of a class, with a tokenizer of words."""
    words = models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
        "eos_token": "</s>",
    }
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.model_max_length = 64

    def saved(name: str, family: str | None = None, **config: Any) -> str:
        folder = str(tmp_path / name)
        fast.save_pretrained(folder)
        torch.manual_seed(0)
        if name == "JinaBertModel":
            cache = str(tmp_path / "cache")
            monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", cache)
            monkeypatch.syspath_prepend(cache)
            monkeypatch.delitem(sys.modules, "transformers_modules", raising=False)
            model = small_jina_bert()
            for part, auto in ((model, "AutoModel"), (model.config, "AutoConfig")):
                monkeypatch.setattr(type(part), "_auto_class", auto)
        else:
            config = {"pad_token_id": 1, "num_labels": 1, **config}
            made = shared_model(family or ENCODERS[name]).config
            model = getattr(transformers, name)(type(made).from_dict({**made.to_dict(), **config}))
        model.save_pretrained(folder)
        return folder

    return saved


def embedder(folder: str, pooling: str = "mean", **options: Any) -> Any:
    remote = "JinaBertModel" in folder
    kwargs = {"model_kwargs": {"trust_remote_code": True, **options}} if remote else {}
    if remote:
        kwargs["config_kwargs"] = {"trust_remote_code": True}
    elif options:
        kwargs["model_kwargs"] = options
    transformer = modules.Transformer(folder, **kwargs)
    size = transformer.get_embedding_dimension()
    pool = modules.Pooling(size, pooling_mode=pooling)
    return st.SentenceTransformer(modules=[transformer, pool], device="cpu")


@pooled
@ways
def test_texts_are_embedded_as_before(save: Any, name: str, pooling: str, way: str) -> None:
    folder = save(name)
    plain = embedder(folder, pooling).encode(TEXTS, batch_size=3)
    model = embedder(folder, pooling)
    handle = WAYS[way](model)
    found = model.encode(TEXTS, batch_size=3)
    np.testing.assert_allclose(found, plain, **CLOSE)
    assert not np.array_equal(found, plain)  # other sums: the patch is there
    assert na.patched(model)
    handle.undo()
    np.testing.assert_array_equal(model.encode(TEXTS, batch_size=3), plain)


def test_a_scaling_changes_embeddings_as_it_changes_the_model(save: Any) -> None:
    model = embedder(save("BloomModel"))
    inner = model[0].model
    batch = model.preprocess(TEXTS[2:3])
    given = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with na.patch(model, "ntk:4"), torch.no_grad():
        expected = inner(**given).last_hidden_state.mean(dim=1).numpy()
        np.testing.assert_allclose(model.encode(TEXTS[2:3]), expected, **CLOSE)
    assert abs(model.encode(TEXTS[2:3]) - expected).max() > 20 * CLOSE["atol"]


@pytest.mark.parametrize("way", WAYS)
def test_a_pool_of_processes(save: Any, way: str) -> None:
    model = embedder(save("BloomModel"))
    WAYS[way](model)
    expected = model.encode(TEXTS)
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    try:
        found = model.encode(TEXTS, pool=pool, chunk_size=2)
    finally:
        model.stop_multi_process_pool(pool)
    np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize("name", [*ENCODERS, "JinaBertModel"])
def test_a_step_of_training(save: Any, name: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    data = datasets.Dataset.from_dict({"anchor": TEXTS, "positive": TEXTS[::-1]})
    folder = save(name)

    def trained(patch: Callable[[Any], Any]) -> dict[str, torch.Tensor]:
        model = embedder(folder)
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
            elif isinstance(getattr(part, "dropout", None), float):
                part.dropout = 0.0
        patch(model)
        arguments = st.SentenceTransformerTrainingArguments(
            str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=4, learning_rate=0.1,
            optim="sgd", report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no",
        )  # fmt: skip
        loss = losses.MultipleNegativesRankingLoss(model)
        st.SentenceTransformerTrainer(model, arguments, data, loss=loss).train()
        return {name: x.detach() for name, x in model.named_parameters()}

    stock, ours = trained(lambda model: None), trained(na.patch)
    assert ours.keys() == stock.keys()
    for part, weight in stock.items():
        torch.testing.assert_close(ours[part], weight, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["BloomModel", "MPNetModel"])
def test_a_saved_patch_is_followed(save: Any, name: str, tmp_path: Path) -> None:
    model, stock = embedder(save(name)), embedder(save(name)).encode(TEXTS)
    with na.patch(model, window=4):
        expected = model.encode(TEXTS)
        model.save_pretrained(str(tmp_path / "saved"))
    loaded = st.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(loaded.encode(TEXTS), stock, **CLOSE)
    na.patch(loaded)
    np.testing.assert_allclose(loaded.encode(TEXTS), expected, **CLOSE)
    assert abs(expected - stock).max() > 1e-3


@pytest.mark.parametrize(
    ("name", "family"),
    [("MPNetForSequenceClassification", "mpnet"), ("BloomForSequenceClassification", "bloom"),
     ("T5ForSequenceClassification", "t5")],
)  # fmt: skip
@ways
def test_a_cross_encoder(save: Any, name: str, family: str, way: str) -> None:
    folder = save(name, family, eos_token_id=2)
    pairs = [(a + " </s>", b + " </s>") for a, b in zip(TEXTS, TEXTS[::-1], strict=True)]
    plain = st.CrossEncoder(folder, device="cpu").predict(pairs)
    model = st.CrossEncoder(folder, device="cpu")
    WAYS[way](model)
    np.testing.assert_allclose(model.predict(pairs), plain, **CLOSE)


@ways
def test_a_sparse_encoder(save: Any, way: str) -> None:
    sparse = pytest.importorskip("sentence_transformers.sparse_encoder.modules")
    folder = save("MPNetForMaskedLM", "mpnet")

    def made() -> Any:
        parts = [
            sparse.Transformer(folder, transformer_task="fill-mask"),
            sparse.SpladePooling(),
        ]
        return st.SparseEncoder(modules=parts, device="cpu")

    plain = made().encode(TEXTS).to_dense()
    model = made()
    WAYS[way](model)
    torch.testing.assert_close(model.encode(TEXTS).to_dense(), plain, **CLOSE)
