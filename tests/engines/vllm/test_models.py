"""The classes that vLLM makes, with stand-ins for the parts of vLLM that they use."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import ntk_alibi as na

HEADS, LAYERS = 4, 3
NTK = {"alibi_type": "ntk", "factor": 4.0}


class Attention(nn.Module):
    """A layer of vLLM's, which holds slopes where its backend reads them."""

    def __init__(self, number: int, slopes: Any, backend: str) -> None:
        super().__init__()
        self.layer_name = f"transformer.h.{number}.self_attention.attn"
        self.impl = SimpleNamespace(alibi_slopes=slopes)
        self.attn_backend = SimpleNamespace(get_name=lambda: backend)


class BloomMLP(nn.Module):
    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.gelu_impl = activation


class Stock(nn.Module):
    """A model of vLLM's, with the slopes of one process and BLOOM's activations."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        made, self.config = vllm_config.made, vllm_config.model_config.hf_config
        self.attention = nn.ModuleList(
            Attention(layer, made.slopes(), made.backend) for layer in range(LAYERS)
        )
        self.feed_forward = nn.ModuleList(BloomMLP(made.activation) for _ in range(LAYERS))


class Engine(SimpleNamespace):
    """vLLM's configuration as the classes read it, and what its stock model is made of."""

    def __init__(self, config: Any = None, **made: Any) -> None:
        plain = torch.from_numpy(na.alibi_slopes(HEADS))
        stock = {"slopes": plain.clone, "backend": "TRITON_ATTN", "activation": nn.GELU()}
        parallel = SimpleNamespace(
            decode_context_parallel_size=made.pop("decode", 1), prefill_context_parallel_size=1
        )
        super().__init__(
            model_config=SimpleNamespace(hf_config=bloom() if config is None else config),
            parallel_config=parallel,
            made=SimpleNamespace(**{**stock, **made}),
        )


def bloom(**settings: Any) -> Any:
    config = transformers.BloomConfig(n_layer=LAYERS, n_head=HEADS, hidden_size=64)
    config.update(settings)
    return config


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch, request: Any) -> Iterator[Any]:
    """Return the module of the classes, for one process or the process of the parameter."""
    process, processes = getattr(request, "param", (0, 1))
    named = {
        "vllm": {},
        "vllm.config": {"VllmConfig": Engine},
        "vllm.distributed": {
            "get_tensor_model_parallel_rank": lambda: process,
            "get_tensor_model_parallel_world_size": lambda: processes,
        },
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.model_executor.layers.attention": {"Attention": Attention},
        "vllm.model_executor.models": {
            "bloom": SimpleNamespace(BloomForCausalLM=Stock, BloomMLP=BloomMLP),
            "falcon": SimpleNamespace(FalconForCausalLM=Stock),
        },
    }
    for name, contents in named.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    name = "ntk_alibi.engines.vllm.models"
    yield import_module(name)
    del sys.modules[name]


def slopes_of(model: Any) -> list[Any]:
    return [layer.impl.alibi_slopes.numpy() for layer in model.attention]


@pytest.mark.parametrize("method", ["original", NTK])
def test_all_layers_get_the_slopes_of_the_method(models: Any, method: Any) -> None:
    model = models.BloomForCausalLM(vllm_config=Engine(bloom(ntk_alibi={"method": method})))
    scaling = None if method == "original" else na.NTK(4.0)
    assert len(slopes_of(model)) == LAYERS
    for found in slopes_of(model):
        np.testing.assert_array_equal(found, na.alibi_slopes(HEADS, scaling))


@pytest.mark.parametrize("models", [(1, 2)], indirect=True)
def test_a_process_gets_the_slopes_of_its_heads(models: Any) -> None:
    plain = torch.from_numpy(na.alibi_slopes(HEADS)[2:])
    engine = Engine(bloom(ntk_alibi={"method": NTK}), slopes=plain.clone)
    for found in slopes_of(models.BloomForCausalLM(vllm_config=engine)):
        np.testing.assert_array_equal(found, na.alibi_slopes(HEADS, na.NTK(4.0))[2:])


def test_slopes_of_falcon(models: Any) -> None:
    config = transformers.FalconConfig(
        num_attention_heads=HEADS, hidden_size=16 * HEADS, num_hidden_layers=LAYERS, alibi=True
    )
    config.ntk_alibi = {"method": NTK}
    plain = torch.from_numpy(na.alibi_slopes(HEADS)) / 4
    model = models.FalconForCausalLM(vllm_config=Engine(config, slopes=plain.clone))
    for found in slopes_of(model):
        np.testing.assert_array_equal(found, na.alibi_slopes(HEADS, na.NTK(4.0)) / 4)
    rotary = transformers.FalconConfig(alibi=False)
    models.FalconForCausalLM(vllm_config=Engine(rotary, slopes=lambda: None))  # stays as it is


def test_bloom_gets_its_own_gelu_unless_the_other_is_chosen(models: Any) -> None:
    for chosen, approximate in ((None, "tanh"), ("tanh", "tanh"), ("erf", "none")):
        model = models.BloomForCausalLM(vllm_config=Engine(bloom(bloom_gelu=chosen)))
        assert {part.gelu_impl.approximate for part in model.feed_forward} == {approximate}


OTHER = "this vLLM is not what ntk-alibi's plugin expects: "
REFUSED: dict[str, dict[str, Any]] = {
    OTHER + "transformer.h.0.self_attention.attn has the slopes": {
        "slopes": lambda: torch.from_numpy(na.alibi_slopes(HEADS)[::-1].copy())
    },
    OTHER + "transformer.h.0.self_attention.attn has the": {
        "slopes": lambda: torch.from_numpy(na.alibi_slopes(HEADS)[:2])
    },
    OTHER + "the backend of transformer.h.0.self_attention.attn holds no tensor of slopes, got": {
        "slopes": lambda: None
    },
    OTHER + "BLOOM's activation is ScaledActivation(": {
        "activation": type("ScaledActivation", (nn.Module,), {})()
    },
    "the attention backend must be one that reads ALiBi's slopes (CPU_ATTN,": {
        "backend": "FLASHINFER"
    },
    "decode_context_parallel_size must be 1 for a model with ALiBi, got 2": {"decode": 2},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_would_compute_something_else_is_refused(sentence: str, models: Any) -> None:
    with pytest.raises((RuntimeError, ValueError)) as error:
        models.BloomForCausalLM(vllm_config=Engine(**REFUSED[sentence]))
    assert str(error.value).startswith(sentence)


def test_slopes_may_be_rounded(models: Any) -> None:
    rounded = torch.from_numpy(na.alibi_slopes(HEADS) * np.float32(1 + 1e-6))
    models.BloomForCausalLM(vllm_config=Engine(slopes=rounded.clone))
