"""Models loaded with trust_remote_code, whose classes no import can name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import ntk_alibi as na
from model_runs import LOGITS
from remote_models.baichuan import small_baichuan
from remote_models.jina_bert import small_jina_bert


@pytest.mark.parametrize(
    ("make", "auto"), [(small_jina_bert, "AutoModel"), (small_baichuan, "AutoModelForCausalLM")]
)
def test_a_model_of_remote_code_is_found_by_its_parts(
    make: Any, auto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.delitem(sys.modules, "transformers_modules", raising=False)
    own, ids = make(), torch.arange(3, 43)[None]
    for kept, name in ((own, auto), (own.config, "AutoConfig")):
        monkeypatch.setattr(type(kept), "_auto_class", name)
    own.save_pretrained(tmp_path / make.__name__)
    model = getattr(transformers, auto).from_pretrained(
        tmp_path / make.__name__, trust_remote_code=True
    )
    assert type(model) is not type(own)
    model.eval()
    with torch.no_grad(), na.patch(model, na.NTK(2.0)), na.patch(own, na.NTK(2.0)):
        torch.testing.assert_close(model(ids)[0], own(ids)[0], **LOGITS)
