"""The entry of a patch in a model's configuration, `config.ntk_alibi`: written, saved, followed."""

from __future__ import annotations

import copy
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import ntk_alibi as na
from model_runs import LOGITS, batch
from ntk_alibi.methods import train_length_or_default
from small_models import make_model
from table_families import model_of

#: Families of transformers with an entry in the quick tests, and encoders of remote code.
FAMILIES = ("bloom", "mpt", "falcon", "t5", "mpnet", "jina", "mosaic")
DECODERS = FAMILIES[:3]
ids = batch()

#: What patches are given, and the entry of it, which follows the same in any of the decoders.
PATCHES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"method": "original"}),
    ({"method": "ntk:4"}, {"method": "ntk:4"}),
    ({"method": na.NTK(4.0)}, {"method": "ntk:4"}),
    ({"method": "flat:2:logn=0.5"}, {"method": "flat:2:logn=0.5"}),
    ({"window": 8, "sink": 2}, {"method": "original", "window": 8, "sink": 2}),
    ({"method": "ntk:2", "causal_block": 8}, {"method": "ntk:2", "causal_block": 8}),
    ({"method": "ntk:2", "attention": "eager"}, {"method": "ntk:2", "attention": "eager"}),
    ({"attention": "traceable"}, {"method": "original", "attention": "traceable"}),
]


def run(model: Any) -> torch.Tensor:
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        output: torch.Tensor = model(ids, **more)[0]
    return output


def saved(model: Any, folder: Path, **options: Any) -> Any:
    """Return a model that stock transformers saves and loads."""
    model.save_pretrained(folder, **options)
    return type(model).from_pretrained(folder).eval()


def method_for(family: str) -> dict[str, Any]:
    return {"window": 5} if family == "t5" else {} if family == "mpnet" else {"method": "ntk:4"}


@pytest.mark.filterwarnings("ignore:Increasing alibi size:UserWarning")  # MosaicBERT's own
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", ["50GB", "20KB"], ids=["one file", "sharded"])
def test_a_saved_patch_is_followed_after_loading(family: str, size: str, tmp_path: Path) -> None:
    model = model_of(family)
    stock = run(model)
    model.save_pretrained(tmp_path)  # which writes names into the configuration
    before = copy.deepcopy(vars(model.config))
    handle = na.patch(model, **method_for(family))
    expected = run(model)
    loaded = saved(model, tmp_path, max_shard_size=size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (size == "20KB")
    torch.testing.assert_close(run(loaded), stock, **LOGITS)  # a model of transformers
    assert na.patched(loaded) == []
    followed = na.patch(loaded)
    torch.testing.assert_close(run(loaded), expected, **LOGITS)
    assert followed.scaling == handle.scaling
    na.patch(loaded, "original")
    torch.testing.assert_close(run(loaded), stock, **LOGITS)
    handle.undo()
    assert vars(model.config) == before


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize(("given", "entry"), PATCHES, ids=[str(given) for given, _ in PATCHES])
def test_what_is_written(family: str, given: Any, entry: Any) -> None:
    model = make_model(family, layers=1)
    if "logn" in entry["method"]:
        entry = {**entry, "train_length": train_length_or_default(model.config)}
    with na.patch(model, **given) as handle:
        assert model.config.ntk_alibi == entry
        text = model.config.to_json_string()
        described = [str(getattr(handle, x)) for x in ("scaling", "attention", "log_n")]
    assert not hasattr(model.config, "ntk_alibi")
    model.config.ntk_alibi = json.loads(text)["ntk_alibi"]
    with na.patch(model) as again:
        assert [str(getattr(again, x)) for x in ("scaling", "attention", "log_n")] == described
    assert model.config.ntk_alibi == entry


@pytest.mark.parametrize(
    "given",
    [
        {"method": na.DynamicNTK(2.0, 16)},
        {"method": na.FlatHeads(8.0)},
        {"log_n": na.LogN(16, tuple(x / 8 for x in range(8)))},
    ],
    ids=str,
)
def test_objects_are_written_so_that_json_holds_them(given: Any, tmp_path: Path) -> None:
    model = make_model("bloom")
    with na.patch(model, **given) as handle:
        expected, loaded = run(model), saved(model, tmp_path)
    with na.patch(loaded) as again:
        assert (again.scaling, again.log_n) == (handle.scaling, handle.log_n)
        torch.testing.assert_close(run(loaded), expected, **LOGITS)


def test_a_patch_that_follows_an_entry_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model = make_model("bloom", layers=1)
    with caplog.at_level(logging.INFO, "ntk_alibi"):
        assert caplog.messages == []
        handle = na.patch(model, "ntk:4")
        assert caplog.messages == [repr(handle)]
        model.config.ntk_alibi = {"window": 3}
        handle = na.patch(model)
        assert caplog.messages[1:] == [f"{handle!r}, as config.ntk_alibi has it"]


def test_arguments_change_what_an_entry_says() -> None:
    model = make_model("bloom")
    model.config.ntk_alibi = {"method": "ntk:4", "window": 8}
    with na.patch(model, attention="eager", window=5) as handle:
        assert model.config.ntk_alibi == {"method": "ntk:4", "window": 5, "attention": "eager"}
        assert handle.scaling == na.NTK(4.0)
    with na.patch(model, "flat:2"):
        assert model.config.ntk_alibi == {"method": "flat:2"}
    assert model.config.ntk_alibi == {"method": "ntk:4", "window": 8}


def test_undo_and_another_patch_give_back_the_entry_of_a_checkpoint() -> None:
    model, entry = make_model("bloom"), {"method": "ntk:4"}
    model.config.ntk_alibi = dict(entry)
    for whole in (True, False):
        first, second = na.patch(model, "flat:2"), na.patch(model, "ntk:8")
        assert model.config.ntk_alibi == {"method": "ntk:8"}
        first.undo()
        assert model.config.ntk_alibi == {"method": "ntk:8"}
        na.unpatch(model) if whole else second.undo()
        assert model.config.ntk_alibi == entry


class HalfTheSlopes:
    """A scaling without to_config."""

    def scale_exponents(self, exponents: Any, lengths: Any = None) -> Any:
        return exponents + 1


@pytest.mark.parametrize(
    "method", [na.KerpleLog([0.5] * 8, [0.1] * 8), HalfTheSlopes()], ids=["bias", "scaling"]
)
def test_what_no_configuration_holds_is_said_at_the_patch(
    method: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model("bloom")
    model.config.ntk_alibi = {"method": "ntk:4"}
    with na.patch(model, method):
        assert [x.levelname for x in caplog.records if x.name == "ntk_alibi"] == ["WARNING"]
        assert "config.ntk_alibi is not written" in caplog.messages[0]
        expected, loaded = run(model), saved(model, tmp_path)
    assert not hasattr(loaded.config, "ntk_alibi")
    assert model.config.ntk_alibi == {"method": "ntk:4"}
    with na.patch(loaded, method):
        torch.testing.assert_close(run(loaded), expected, **LOGITS)


@pytest.mark.parametrize(
    ("entry", "error", "says"),
    [
        ("ntk:4", TypeError, "a dict"),
        ({"methods": "ntk:4"}, ValueError, "did you mean method?"),
        ({"windw": 4}, ValueError, "did you mean window?"),
        ({"alibi_type": "ntk", "factor": 4.0}, ValueError, "got 'alibi_type'"),
        ({"method": "nkt:4"}, ValueError, "ntk"),
        ({"method": {"alibi_type": "ntk"}}, ValueError, "factor"),
        ({"window": 0}, ValueError, "window"),
        ({"window": "8"}, TypeError, "window"),
        ({"sink": 2}, ValueError, "sink"),
        ({"attention": "flash"}, ValueError, "attention"),
        ({"log_n": 1}, ValueError, "log_n"),
    ],
    ids=str,
)
def test_wrong_entries_are_refused_in_a_line(entry: Any, error: Any, says: str) -> None:
    model = make_model("bloom", layers=1)
    model.config.ntk_alibi = entry
    with pytest.raises(error, match=r"^config\.ntk_alibi must") as caught:
        na.patch(model)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert na.patched(model) == []
    assert model.config.ntk_alibi == entry
    with na.patch(model, "ntk:2"):
        assert model.config.ntk_alibi == {"method": "ntk:2"}


def test_a_saved_patch_is_loaded_without_this_package(tmp_path: Path) -> None:
    for name in DECODERS:
        model = make_model(name)
        expected = run(model)
        with na.patch(model, "ntk:4", window=30):
            model.save_pretrained(tmp_path / name)
        torch.save((ids, expected), tmp_path / name / "expected.pt")
    code = (
        "import sys, torch, transformers\n"
        "load = transformers.AutoModelForCausalLM.from_pretrained\n"
        "for name in ('bloom', 'mpt', 'falcon'):\n"
        "    ids, expected = torch.load(f'{name}/expected.pt')\n"
        "    model = load(name, local_files_only=True).eval()\n"
        "    with torch.no_grad(): assert torch.equal(model(ids).logits, expected)\n"
        "    model.save_pretrained(name)\n"
        "    assert load(name).config.ntk_alibi == {'method': 'ntk:4', 'window': 30}\n"
        "assert 'ntk_alibi' not in sys.modules\n"
    )
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_checkpoints_of_a_trainer_keep_the_patch(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    model = make_model("bloom")
    na.patch(model, "flat:4")
    data = [{"input_ids": row, "labels": row} for row in ids]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=1, per_device_train_batch_size=3, save_steps=1,
        report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    transformers.Trainer(model=model, args=arguments, train_dataset=data).train()
    loaded = type(model).from_pretrained(tmp_path / "checkpoint-1").eval()
    na.patch(loaded)
    torch.testing.assert_close(run(loaded), run(model.eval()), **LOGITS)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # PEFT asks for it
def test_an_adapter_beside_a_saved_patch(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = make_model("bloom")
    na.patch(model, "ntk:4")
    model.save_pretrained(tmp_path / "model")
    options = {"target_modules": ["query_key_value"], "init_lora_weights": False}
    tuned = peft.get_peft_model(model, peft.LoraConfig(**options)).eval()
    expected = run(tuned)
    tuned.save_pretrained(tmp_path / "adapter")
    tuned.merge_and_unload().save_pretrained(tmp_path / "merged")
    loaded = type(model).from_pretrained(tmp_path / "model").eval()
    adapted = peft.PeftModel.from_pretrained(loaded, tmp_path / "adapter").eval()
    merged = type(model).from_pretrained(tmp_path / "merged").eval()
    for other in (adapted, merged):
        na.patch(other)
        torch.testing.assert_close(run(other), expected, **LOGITS)


class Around(transformers.PreTrainedModel):
    """A model that makes one of another library of a part of its configuration."""

    config_class = transformers.PreTrainedConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vision = nn.Linear(2, 2)
        self.language_model = transformers.BloomForCausalLM(config.text_config)
        self.post_init()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.language_model(ids).logits
        return logits


class AroundConfig(transformers.PreTrainedConfig):
    """Its configuration."""

    model_type = "around"
    sub_configs = {"text_config": transformers.BloomConfig}  # noqa: RUF012

    def __init__(self, text_config: Any = None, **others: Any) -> None:
        if not isinstance(text_config, transformers.BloomConfig):
            text_config = transformers.BloomConfig(**(text_config or {}))
        self.text_config = text_config
        super().__init__(**others)


Around.config_class = AroundConfig


@pytest.mark.parametrize("inner", [False, True])
def test_a_model_inside_another_is_saved_with_it(inner: bool, tmp_path: Path) -> None:
    model = Around(AroundConfig(make_model("bloom").config)).eval()
    model.save_pretrained(tmp_path)
    before = model.config.to_dict()
    assert model.language_model.config is model.config.text_config
    with na.patch(model.language_model if inner else model, "ntk:4"):
        with torch.no_grad():
            expected = model(ids)
        loaded = saved(model, tmp_path)
    assert model.config.to_dict() == before
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["text_config"]["ntk_alibi"] == {"method": "ntk:4"}
    assert "ntk_alibi" not in stored
    (handle,) = [na.patch(loaded)]
    assert handle.scaling == na.NTK(4.0)
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids), expected, **LOGITS)


def test_a_plain_module_around_leaves_the_entry_to_the_model_inside(tmp_path: Path) -> None:
    around = nn.ModuleDict({"visual": nn.Linear(2, 2), "language_model": make_model("bloom")})
    with na.patch(around, "ntk:4"):
        expected = run(around["language_model"])
        loaded = saved(around["language_model"], tmp_path)
    na.patch(nn.ModuleDict({"language_model": loaded}))
    torch.testing.assert_close(run(loaded), expected, **LOGITS)


def test_the_stacks_of_a_t5_have_one_entry(tmp_path: Path) -> None:
    model = model_of("t5")
    with na.patch(model, window=5):
        for part in (model, model.encoder, model.decoder):
            assert part.config.ntk_alibi == {"method": "original", "window": 5}
        expected, loaded = run(model), saved(model, tmp_path)
    assert not any(hasattr(x.config, "ntk_alibi") for x in model.modules() if hasattr(x, "config"))
    na.patch(loaded)
    torch.testing.assert_close(run(loaded), expected, **LOGITS)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_models_of_one_configuration_have_one_entry(order: tuple[int, int]) -> None:
    first = make_model("bloom")
    second, config = copy.deepcopy(first), first.config
    second.config = second.transformer.config = config
    stock = run(second)
    handle = na.patch(first, "ntk:4")
    assert na.patched(second) == []
    assert torch.equal(run(second), stock)
    for other in ("flat:8", "original"):
        with pytest.raises(ValueError, match=r"^model must have a configuration of its own"):
            na.patch(second, other)
    assert na.patched(second) == []
    handles = handle, na.patch(second, "ntk:4")
    for number in order:
        assert config.ntk_alibi == {"method": "ntk:4"}
        handles[number].undo()
    assert not hasattr(config, "ntk_alibi")
    na.patch(second, "flat:8")
    assert config.ntk_alibi == {"method": "flat:8"}


def test_a_configuration_of_a_model_that_is_gone_is_free() -> None:
    config = make_model("bloom").config
    for method in ("ntk:4", "flat:8"):
        model = transformers.BloomForCausalLM(config)
        na.patch(model, method)
        assert config.ntk_alibi == {"method": method}


@pytest.mark.parametrize("again", [False, True])
def test_an_inner_model_that_its_copy_replaces_leaves_no_entry(again: bool) -> None:
    model = make_model("bloom")
    na.patch(model, "ntk:4")
    model.transformer = copy.deepcopy(model.transformer)
    if again:
        na.patch(model, "flat:8")
        assert model.config.ntk_alibi == {"method": "flat:8"}
    na.unpatch(model)
    for part in (model, model.transformer):
        assert not hasattr(part.config, "ntk_alibi")


def test_copies_keep_the_entry_of_their_own_patch(tmp_path: Path) -> None:
    model = make_model("bloom")
    with na.patch(model, "ntk:4"):
        clone = copy.deepcopy(model)
        assert clone.config is not model.config
    assert not hasattr(model.config, "ntk_alibi")
    assert clone.config.ntk_alibi == {"method": "ntk:4"}
    na.unpatch(clone)
    assert not hasattr(clone.config, "ntk_alibi")
    assert not hasattr(clone.transformer.config, "ntk_alibi")


def test_a_configuration_of_a_patched_model_makes_models_without_patch() -> None:
    model = make_model("bloom")
    own = model.config
    with na.patch(model, "ntk:4"):
        assert model.config is own
        assert type(own) is transformers.BloomConfig
        made = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(own))
    assert na.patched(made) == []
    assert made.config.ntk_alibi == {"method": "ntk:4"}
