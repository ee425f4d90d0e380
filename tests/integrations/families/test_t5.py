"""T5's relatives and MPNet, patched, against transformers' own eager attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import ntk_alibi as na
from model_runs import BATCH, LENGTH, MASKS, batch
from small_models import T5_HEADS, VOCABULARY, make_relative

#: The two smallest in the quick tests, the others in the slow ones.
QUICK = ("T5", "MPNet")
quick = pytest.mark.parametrize("name", QUICK)

#: Right padding of the decoder's rows would cut a text that generate() goes on with.
DECODER_MASK = torch.ones((BATCH, 23), dtype=torch.long)
DECODER_MASK[1, :4] = 0


def output(model: Any, mask: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    """Return the results of real tokens: an encoder's states, and logits of a decoder."""
    ids = batch()
    own = {"attention_mask": mask, **options}
    kept = torch.ones_like(ids) if mask is None else mask
    name = type(model).__name__
    if name.startswith("MPNet"):
        return model(ids, **own).logits[kept != 0]
    made = model(
        ids, **own, decoder_input_ids=ids[:, :23].flip(1), decoder_attention_mask=DECODER_MASK
    )
    encoded = made.encoder_last_hidden_state[kept != 0]
    return torch.cat([encoded.flatten(), made.logits[DECODER_MASK != 0].flatten()])


def without_grad(model: Any, mask: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    """Return `output` of a pass that autograd does not follow."""
    with torch.no_grad():
        return output(model, mask, **options)


@quick
def test_no_matrix_of_all_pairs_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the bias, nor the zeros of cross-attention, nor a mask."""
    model, sizes = make_relative(name), []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kw: Any = None) -> Any:
            result = func(*args, **(kw or {}))
            if isinstance(result, torch.Tensor):
                sizes.append(result.numel())
            return result

    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with na.patch(model), Sizes():
        output(model, MASKS["left"])
    ours = max(sizes)
    sizes.clear()
    with Sizes():
        output(model, MASKS["left"])
    logits = BATCH * LENGTH * VOCABULARY
    assert ours == logits < BATCH * T5_HEADS * LENGTH**2 <= max(sizes)


def test_a_class_that_computes_otherwise_is_refused() -> None:
    model = make_relative("T5")

    class Other(type(model.encoder.block[0].layer[0].SelfAttention)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    model.decoder.block[1].layer[1].EncDecAttention.__class__ = Other
    with pytest.raises(ValueError, match="of transformers' T5Attention, got a Other"):
        na.patch(model)
    assert na.patched(model) == []  # the encoder is not patched either


def test_mpnet_needs_the_buckets_that_transformers_reads() -> None:
    config = transformers.MPNetConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, relative_attention_num_buckets=16,
    )  # fmt: skip
    with pytest.raises(ValueError, match="must have 32 buckets"):
        na.patch(transformers.MPNetModel(config))


@pytest.mark.slow
@quick
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    model = make_relative(name).to(dtype)
    stock = without_grad(model, MASKS["left"])
    with na.patch(model):
        ours = without_grad(model, MASKS["left"])
    assert ours.dtype == stock.dtype
    error = 8 * torch.finfo(dtype).eps * float(stock.abs().max())
    torch.testing.assert_close(ours, stock, atol=max(error, 1e-10), rtol=0.0)


def test_a_decoder_as_long_as_its_encoder_keeps_self_and_cross_attention_apart() -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, **sizes)
    model = transformers.T5ForConditionalGeneration(config).eval()
    table = model.decoder.block[0].layer[0].SelfAttention.relative_attention_bias
    torch.nn.init.normal_(table.weight, 0, 3)
    ids = batch()
    given = {"input_ids": ids, "decoder_input_ids": ids, "use_cache": False}
    with torch.no_grad():
        expected = model(**given).logits
        na.patch(model)
        found = torch.compile(model, backend="eager")(**given).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
