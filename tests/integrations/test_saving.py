"""Saving and loading patched models: the configuration keeps what a patch computes."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import ntk_alibi as na
from model_runs import LOGITS, run
from small_models import families, make_model, make_relative

NAME = "ntk_alibi"

#: Patches, by what they ask for.
PATCHES: dict[str, dict[str, Any]] = {
    "static": {"method": na.NTK(4.0)},
    "dynamic": {"method": na.DynamicNTK(2.0, 16, per="query")},
    "layers": {"method": na.FlatHeads(8.0, layers=(0, 2))},
    "knee": {"method": na.Knee(6, 8.0)},
    "log-n": {"log_n": na.LogN(16, 0.5)},
    "name": {"method": "ntk:2:logn=0.5"},
    "window": {"window": 8, "sink": 2},
    "blocks": {"method": na.NTK(2.0), "causal_block": 8},
    "eager": {"method": na.NTK(2.0), "attention": "eager"},
    "nothing": {},
}


def load(path: Any, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(path, **options).eval()


def config_of(path: Any) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((path / "config.json").read_text())
    return {key: value for key, value in stored.items() if key.startswith("alibi_")}


@families
@pytest.mark.parametrize("patch", PATCHES)
def test_a_saved_patch_is_loaded_by_name(
    ids: torch.Tensor, name: str, patch: str, tmp_path: Any
) -> None:
    model = make_model(name)
    before = model.config.to_dict()
    with na.patch(model, **PATCHES[patch]) as handle:
        expected = run(model, ids)
        model.save_pretrained(tmp_path)
    assert model.config.to_dict().keys() == before.keys()
    loaded = load(tmp_path, attn_implementation=NAME)
    torch.testing.assert_close(run(loaded, ids), expected, **LOGITS)
    again = tmp_path / "again"
    loaded.save_pretrained(again)
    assert config_of(again) == config_of(tmp_path)
    scaling = config_of(tmp_path).get("alibi_scaling", {"alibi_type": "default"})
    assert na.scaling_from_config(scaling) == handle.scaling


@families
def test_the_newest_patch_is_saved(ids: torch.Tensor, name: str, tmp_path: Any) -> None:
    model = make_model(name, attn_implementation=NAME)
    model.config.alibi_scaling = {"alibi_type": "ntk", "factor": 8.0}
    with na.patch(model, na.NTK(2.0)), na.patch(model.base_model, window=9):
        expected = run(model, ids)
        model.save_pretrained(tmp_path / "window")
        model.base_model.save_pretrained(tmp_path / "base")
    assert config_of(tmp_path / "window") == config_of(tmp_path / "base") == {"alibi_window": 9}
    assert model.config.alibi_scaling["factor"] == 8.0
    loaded = load(tmp_path / "window", attn_implementation=NAME)
    torch.testing.assert_close(run(loaded, ids), expected, **LOGITS)
    model.save_pretrained(tmp_path / "configured")
    assert config_of(tmp_path / "configured")["alibi_scaling"]["factor"] == 8.0


@families
def test_settings_as_keywords(ids: torch.Tensor, name: str, tmp_path: Any) -> None:
    model = make_model(name)
    model.save_pretrained(tmp_path)
    scaling = {"alibi_type": "ntk", "factor": 4.0}
    with na.patch(model, scaling):
        expected = run(model, ids)
    for given in (scaling, "ntk:4", na.NTK(4.0)):
        loaded = load(tmp_path, attn_implementation=NAME, alibi_scaling=given)
        torch.testing.assert_close(run(loaded, ids), expected, **LOGITS)
        assert loaded.config.alibi_scaling == na.NTK(4.0).to_config()
    with na.patch(model, "original:logn=0.5", window=12):
        expected = run(model, ids)
    options = {"alibi_window": 12, "alibi_scaling": "original:logn=0.5"}
    loaded = load(tmp_path, attn_implementation=NAME, **options)
    torch.testing.assert_close(run(loaded, ids), expected, **LOGITS)
    loaded.save_pretrained(tmp_path / "saved")
    assert run(load(tmp_path / "saved", attn_implementation=NAME), ids).equal(run(loaded, ids))
    with pytest.raises(TypeError, match="unexpected keyword argument 'alibi_scalling'"):
        load(tmp_path, attn_implementation=NAME, alibi_scalling="ntk:4")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alibi_scaling": {"alibi_type": "ntk"}}, "'factor' is missing"),
        ({"alibi_scaling": "ntk"}, "got 'ntk': did you mean ntk:FACTOR"),
        ({"alibi_scaling": 4}, "^alibi_scaling must be None, a method's name or a dict .*, got 4"),
        ({"alibi_scaling": "ntk:2:layers=3"}, "layers must be below 3"),
        ({"alibi_scaling": "ntk:2:logn=1", "alibi_log_n": 8}, "a factor in scaling must be None"),
        ({"alibi_scaling": object()}, "^alibi_scaling must be what JSON can hold, or have to_conf"),
        ({"alibi_window": 0}, "^alibi_window must be between 1"),
        ({"alibi_sink": 2}, "^alibi_sink must be 0 without window or causal_block, got 2"),
        ({"alibi_log_n": "8"}, "^alibi_log_n must be"),
        ({"alibi_attention": "flash"}, "^alibi_attention must be one of 'fused', 'eager',"),
        ({"alibi_attention": "traceable"}, "attention must not be 'traceable'"),
    ],
)
def test_wrong_settings_are_found_when_the_model_is_made(
    options: Any, message: str, tmp_path: Any
) -> None:
    make_model("mpt").save_pretrained(tmp_path)
    with pytest.raises((TypeError, ValueError), match=message):
        load(tmp_path, attn_implementation=NAME, **options)


@families
def test_misspelt_settings_of_a_configuration_are_named(name: str, tmp_path: Any) -> None:
    make_model(name).save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    wrong = {"alibi_scalng": "ntk:4", "alibi_windw": 8, "alibi_type": None}
    (tmp_path / "config.json").write_text(json.dumps({**stored, **wrong}))
    with pytest.warns(UserWarning, match="config has alibi_scalng, alibi_windw, which no model f"):
        load(tmp_path, attn_implementation=NAME)


def test_objects_in_a_configuration_become_what_json_can_hold(ids: torch.Tensor) -> None:
    model = make_model("bloom", attn_implementation=NAME)
    model.config.alibi_scaling, model.config.alibi_log_n = na.NTK(4.0), na.LogN(8, 0.5)
    assert model.config.to_dict()["alibi_scaling"] == na.NTK(4.0).to_config()
    assert json.loads(model.config.to_json_string())["alibi_log_n"] == na.LogN(8, 0.5).to_config()
    other = make_model("bloom")
    with na.patch(other, na.NTK(4.0), log_n=na.LogN(8, 0.5)):
        torch.testing.assert_close(run(model, ids), run(other, ids), **LOGITS)
    model.config.alibi_scaling = model.config.alibi_log_n = None
    torch.testing.assert_close(run(model, ids), run(other, ids), **LOGITS)
    for other_object in (type("Mine", (), {"scale_exponents": lambda *_: None})(), na.NTK):
        with pytest.raises(TypeError, match="alibi_scaling must be what JSON can hold, or have to"):
            model.config.alibi_scaling = other_object


def test_wrong_settings_are_found_at_a_call(ids: torch.Tensor) -> None:
    model = make_model("mpt", attn_implementation=NAME)
    model.config.alibi_attention = 3
    with pytest.raises(ValueError, match="alibi_attention must be one of"):
        run(model, ids)
    model.config.alibi_attention = None
    run(model, ids)


@families
def test_settings_without_the_name_give_a_warning(
    ids: torch.Tensor, name: str, tmp_path: Any
) -> None:
    model = make_model(name)
    stock = run(model, ids)
    with na.patch(model, na.NTK(4.0)):
        model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"alibi_scaling, which only .*'ntk_alibi' follows") as got:
        loaded = load(tmp_path)
    assert len(got) == 1
    assert torch.equal(run(loaded, ids), stock)
    na.patch(loaded)  # plain ALiBi, as its configuration is not followed
    loaded.save_pretrained(tmp_path / "plain")
    assert config_of(tmp_path / "plain") == {}


def test_a_saved_patch_is_loaded_without_this_package(ids: torch.Tensor, tmp_path: Any) -> None:
    for name in ("bloom", "mpt", "falcon"):
        model = make_model(name)
        expected = run(model, ids)
        with na.patch(model, na.NTK(4.0), window=30):
            model.save_pretrained(tmp_path / name)
        torch.save((ids, expected), tmp_path / name / "expected.pt")
    code = (
        "import sys, torch, transformers\n"
        "load = transformers.AutoModelForCausalLM.from_pretrained\n"
        "for name in ('bloom', 'mpt', 'falcon'):\n"
        "    ids, expected = torch.load(f'{name}/expected.pt')\n"
        "    model = load(name, local_files_only=True).eval()\n"
        "    with torch.no_grad(): assert torch.equal(model(ids).logits, expected)\n"
        "assert 'ntk_alibi' not in sys.modules\n"
    )
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_checkpoints_of_a_trainer_keep_the_patch(ids: torch.Tensor, tmp_path: Any) -> None:
    pytest.importorskip("accelerate")
    model = make_model("bloom")
    na.patch(model, "flat:4")
    data = [{"input_ids": row, "labels": row} for row in ids]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=1, per_device_train_batch_size=3, save_steps=1,
        report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    transformers.Trainer(model=model, args=arguments, train_dataset=data).train()
    loaded = load(tmp_path / "checkpoint-1", attn_implementation=NAME)
    torch.testing.assert_close(run(loaded, ids), run(model.eval(), ids), **LOGITS)


def test_pushing_to_a_hub_keeps_the_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """push_to_hub saves to a folder of its own, whose files it sends."""
    model, sent = make_model("bloom"), []

    def send(_: Any, folder: str, *__: Any, **___: Any) -> None:
        sent.append(config_of(Path(folder)))

    repository = type("Repository", (), {"repo_id": "me/model"})
    for create in ("huggingface_hub.HfApi.create_repo", "transformers.utils.hub.create_repo"):
        # the latter in older versions
        monkeypatch.setattr(create, lambda *_, **__: repository, raising=False)
    card = type("Card", (), {"save": lambda *_: None})
    monkeypatch.setattr("transformers.utils.hub.create_and_tag_model_card", lambda *_, **__: card())
    monkeypatch.setattr(type(model), "_upload_modified_files", send)
    with na.patch(model, na.NTK(4.0)):
        model.push_to_hub("me/model")
    assert sent[0]["alibi_scaling"] == {"alibi_type": "ntk", "factor": 4.0}


def test_copies_of_a_patched_model_save_their_patch(ids: torch.Tensor, tmp_path: Any) -> None:
    model = make_model("bloom")
    with na.patch(model, na.NTK(4.0)):
        clone = copy.deepcopy(model)
    clone.save_pretrained(tmp_path / "clone")
    model.save_pretrained(tmp_path / "model")
    assert config_of(tmp_path / "clone")["alibi_scaling"]["alibi_type"] == "ntk"
    assert config_of(tmp_path / "model") == {}


class HalfTheSlopes:
    def scale_exponents(self, exponents: Any, lengths: Any = None) -> Any:
        return exponents + 1


def test_a_scaling_that_no_configuration_describes_is_refused(tmp_path: Any) -> None:
    model = make_model("bloom")
    config = model.config
    na.patch(model, HalfTheSlopes())
    with pytest.raises(ValueError, match=r"scaling must have to_config .*na\.unpatch\(model\)"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    assert model.config is config
    na.unpatch(model)
    model.save_pretrained(tmp_path)
    assert config_of(tmp_path) == {}


def test_wrapped_models_save_the_patch_of_the_model_within(
    ids: torch.Tensor, tmp_path: Any
) -> None:
    class Scorer(transformers.PreTrainedModel):
        config_class = transformers.BloomConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.backbone = transformers.BloomModel(config)
            self.head = torch.nn.Linear(config.hidden_size, 1)
            self.post_init()

    scorer = Scorer(make_model("bloom").config)
    with na.patch(scorer.backbone, na.NTK(4.0)):
        scorer.save_pretrained(tmp_path / "scorer")
        assert config_of(tmp_path / "scorer")["alibi_scaling"]["factor"] == 4.0
        scorer.config = transformers.GPT2Config()
        with pytest.raises(
            ValueError, match="config must hold the configuration of its BloomModel"
        ):
            scorer.save_pretrained(tmp_path / "other")


@families
@pytest.mark.parametrize("typo", ["ntk-alibi", "ntkalibi", "NTK_ALIBI", "alibi"])
def test_a_name_with_a_typo_names_ours(name: str, typo: str, tmp_path: Any) -> None:
    make_model(name).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f'"{typo}".* is not supported.*"ntk_alibi"'):
        load(tmp_path, attn_implementation=typo)


def test_saving_a_traceable_model(ids: torch.Tensor, tmp_path: Path) -> None:
    model = make_model("bloom")
    stock = run(model, ids)
    with na.patch(model, na.NTK(4.0), attention="traceable"):
        model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="this one has plain ALiBi"):
        again = transformers.BloomForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(run(again, ids), stock)


#: Models that hold their layers themselves, without a head around them.
WITHOUT_HEAD = {
    "bloom": lambda: make_model("bloom").base_model,
    "mpt": lambda: make_model("mpt").base_model,
    "falcon": lambda: make_model("falcon").base_model,
    "MPNet": lambda: make_relative("MPNet").base_model,
    "Pix2Struct": lambda: make_relative("Pix2Struct"),
}
without_head = pytest.mark.parametrize("name", WITHOUT_HEAD)


@without_head
def test_a_patched_model_without_a_head_is_saved(name: str, tmp_path: Path) -> None:
    model = WITHOUT_HEAD[name]()
    model.save_pretrained(tmp_path / "stock")
    stored = json.loads((tmp_path / "stock/config.json").read_text())
    with na.patch(model):
        model.save_pretrained(tmp_path / "patched")
        model.config.save_pretrained(tmp_path / "configuration")
    assert json.loads((tmp_path / "patched/config.json").read_text()) == stored
    assert json.loads((tmp_path / "configuration/config.json").read_text()) == stored
    with na.patch(model, window=8):
        model.save_pretrained(tmp_path / "patched")
    patched = json.loads((tmp_path / "patched/config.json").read_text())
    assert patched == stored | {"alibi_window": 8}


@without_head
def test_the_configuration_of_a_patched_model_is_like_its_own(name: str) -> None:
    model = WITHOUT_HEAD[name]()
    own, kind, twin = model.config, type(model.config), copy.deepcopy(model.config)
    with na.patch(model):
        config = model.config
        assert config == own == config == twin == config
        assert config != kind()
        assert config.get_text_config() == own
        for describe in ("to_dict", "to_diff_dict", "to_json_string", "__repr__"):
            assert getattr(config, describe)() == getattr(own, describe)()
        entries = own.to_dict()
        for made in (type(config)(), config.__class__(), type(config).from_dict({})):
            assert type(made) is kind
            assert made == kind()
        assert type(config).from_dict(dict(entries)) == kind.from_dict(dict(entries))
        config.vocab_size = own.vocab_size + 1
        assert own.vocab_size == twin.vocab_size + 1
        config.vocab_size = twin.vocab_size
        for made in (copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
            assert made == config
            made.vocab_size = 7
            assert config.vocab_size == own.vocab_size == twin.vocab_size
    assert model.config is own


@without_head
def test_models_made_of_the_configuration_of_a_patched_model_are_stock(name: str) -> None:
    model = WITHOUT_HEAD[name]()
    own, form = model.config, model.config._attn_implementation
    with na.patch(model):
        made = [type(model)(model.config), type(model)._from_config(copy.deepcopy(model.config))]
        named = type(model)._from_config(copy.deepcopy(model.config), attn_implementation=NAME)
        assert own._attn_implementation == form
        assert model.config._attn_implementation == named.config._attn_implementation == NAME
    for other in (model, *made):
        assert type(other.config) is type(own)
        assert other.config._attn_implementation == form
        assert all(getattr(part, "config", own) == own for part in other.modules())


def test_a_patched_text_model_of_pix2struct_is_saved_with_the_model_around(tmp_path: Path) -> None:
    text = make_relative("Pix2Struct").config
    sizes = {"hidden_size": 64, "patch_embed_hidden_size": 64, "d_ff": 32, "d_kv": 16}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.Pix2StructConfig(
        text_config=text.to_dict(), vision_config={**sizes, **layers}
    )
    model = transformers.Pix2StructForConditionalGeneration(config)
    with na.patch(model, window=8):
        model.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["text_config"]["alibi_window"] == 8
    loaded = type(model).from_pretrained(tmp_path, attn_implementation={"text_config": NAME})
    assert loaded.decoder.config.alibi_window == 8
    assert loaded.decoder.config._attn_implementation == NAME
