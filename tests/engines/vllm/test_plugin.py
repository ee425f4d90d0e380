"""The entry point, and the checks when an engine starts, without vLLM."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import transformers

from ntk_alibi.engines.vllm.plugin import MODELS, check_configuration, register
from ntk_alibi.engines.vllm.settings import BACKENDS
from repository import ROOT

NTK = {"alibi_type": "ntk", "factor": 4.0}

MODEL_FILES = ROOT / "src/ntk_alibi/engines/vllm"


def engine(config: Any, architecture: str = "BloomForCausalLM", **settings: Any) -> Any:
    """Return the part of vLLM's configuration that the checks read."""
    parallel = {"decode_context_parallel_size": 1, "prefill_context_parallel_size": 1}
    backend = settings.pop("backend", None)
    chosen = None if backend is None else SimpleNamespace(name=backend)
    kinds = {kind: SimpleNamespace(name=name) for kind, name in settings.pop("kinds", {}).items()}
    return SimpleNamespace(
        model_config=SimpleNamespace(hf_config=config, architecture=architecture),
        attention_config=SimpleNamespace(backend=chosen, backend_per_kind=kinds),
        parallel_config=SimpleNamespace(**{**parallel, **settings}),
    )


def bloom(**settings: Any) -> Any:
    config = transformers.BloomConfig(n_layer=2, n_head=4, hidden_size=64)
    config.update(settings)
    return config


def test_the_metadata_register_the_plugin() -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (name, value), *others = project["entry-points"]["vllm.general_plugins"].items()
    assert not others
    assert EntryPoint(name, value, "vllm.general_plugins").load() is register
    assert any(line.startswith("vllm") for line in project["optional-dependencies"]["vllm"])


def test_registered_classes_are_there() -> None:
    for architecture, name in MODELS.items():
        module, _, wanted = name.partition(":")
        tree = ast.parse((MODEL_FILES / f"{module}.py").read_text())
        assert wanted in {x.name for x in tree.body if isinstance(x, ast.ClassDef)}, architecture


def test_importing_the_plugin_imports_no_vllm(tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text("raise AssertionError('vllm was imported')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import ntk_alibi, ntk_alibi.engines.vllm.plugin as plugin\n"
        "assert 'torch' not in sys.modules\n"
        "plugin.register()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "AssertionError: vllm was imported" in done.stderr
    assert "in register" in done.stderr


def test_without_vllm_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs vllm: pip install "ntk-alibi\[vllm\]"'):
        register()


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stand-ins for the two classes of vLLM that the entry point imports."""

    class VllmConfig(SimpleNamespace):
        def try_verify_and_update_config(self) -> str:
            return "checked by vLLM"

    registered: dict[str, str] = {}
    vllm, config = ModuleType("vllm"), ModuleType("vllm.config")
    vllm.ModelRegistry = SimpleNamespace(register_model=registered.__setitem__)  # type: ignore[attr-defined]
    config.VllmConfig = VllmConfig  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.config", config)
    return SimpleNamespace(registered=registered, config=VllmConfig)


def test_registering_twice_checks_once(fake_vllm: Any) -> None:
    register()
    checked = fake_vllm.config.try_verify_and_update_config
    register()
    assert fake_vllm.config.try_verify_and_update_config is checked
    assert fake_vllm.registered.keys() == MODELS.keys()
    good = fake_vllm.config(**vars(engine(bloom(ntk_alibi={"method": NTK}))))
    assert good.try_verify_and_update_config() == "checked by vLLM"
    bad = fake_vllm.config(**vars(engine(bloom(ntk_alibi={"log_n": 2048}))))
    with pytest.raises(ValueError, match="log_n must be left out"):
        bad.try_verify_and_update_config()


def test_another_vllm_is_refused(fake_vllm: Any) -> None:
    del fake_vllm.config.try_verify_and_update_config
    with pytest.raises(RuntimeError, match="vllm is not what ntk-alibi's plugin expects"):
        register()


@pytest.mark.parametrize("scaling", ["original", NTK])
@pytest.mark.parametrize("backend", ["FLASHINFER", "TURBOQUANT", "FLEX_ATTENTION", "CUSTOM"])
def test_backends_that_read_no_slopes_are_refused(backend: str, scaling: Any) -> None:
    for chosen in ({"backend": backend}, {"kinds": {"full_attention": backend}}):
        with pytest.raises(ValueError, match=rf"attention backend must be .* got {backend}, with"):
            check_configuration(engine(bloom(ntk_alibi={"method": scaling}), **chosen))
    rotary = transformers.FalconConfig(alibi=False)
    check_configuration(engine(rotary, "FalconForCausalLM", backend=backend))


@pytest.mark.parametrize("backend", [None, *BACKENDS])
def test_backends_that_read_slopes_are_accepted(backend: str | None) -> None:
    check_configuration(engine(bloom(ntk_alibi={"method": NTK}), backend=backend))


@pytest.mark.parametrize("name", ["decode_context_parallel_size", "prefill_context_parallel_size"])
def test_contexts_split_over_processes_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be 1 for a model with ALiBi, got 2"):
        check_configuration(engine(bloom(), **{name: 2}))


def test_the_choice_of_gelu_is_written_where_vllm_hashes_it() -> None:
    plain, chosen = bloom(), bloom(bloom_gelu="erf")
    before = plain.to_json_string()
    check_configuration(engine(plain))
    check_configuration(engine(chosen))
    assert (plain.bloom_gelu, chosen.bloom_gelu) == ("tanh", "erf")
    assert len({before, plain.to_json_string(), chosen.to_json_string()}) == 3


def test_a_scaling_for_other_models_is_refused() -> None:
    rotary = transformers.FalconConfig(alibi=False)
    rotary.ntk_alibi = {"method": NTK}
    for config, name in [
        (transformers.LlamaConfig(ntk_alibi={"method": NTK}), "LlamaForCausalLM"),
        (transformers.MptConfig(ntk_alibi={"method": NTK}), "MptForCausalLM"),
        (bloom(ntk_alibi={"method": NTK}), "TransformersForCausalLM"),
        (rotary, "FalconForCausalLM"),
    ]:
        with pytest.raises(ValueError, match=f"ntk_alibi must be left out for {name}"):
            check_configuration(engine(config, name))
    check_configuration(engine(transformers.LlamaConfig(), "LlamaForCausalLM"))
    check_configuration(SimpleNamespace(model_config=None))
