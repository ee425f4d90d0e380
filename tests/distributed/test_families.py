"""BLOOM, MPT and Falcon on four processes: passes, generation, and ranks that send nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed

import ntk_alibi as na
from family_models import VOCABULARY, make_model
from ntk_alibi.torch import shard
from processes import run

#: Texts of this many tokens, of which the second begins with padding.
LENGTH, PADDING = 331, 50


def batch(length: int = LENGTH) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(1, VOCABULARY, (2, length), generator=rng)
    mask = torch.ones_like(ids)
    mask[1, :PADDING] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.where(mask > 0, -100)}


class Wire:
    """Counts the bytes of tensors that this rank sends to others, while it is entered."""

    def __init__(self) -> None:
        self.sent = 0
        self._plain = distributed.all_gather, distributed.all_to_all_single

    def __enter__(self) -> Wire:
        gather, exchange = self._plain

        def counted_gather(every: Any, tensor: Any, group: Any = None, **options: Any) -> Any:
            self.sent += tensor.numel() * tensor.element_size() * (len(every) - 1)
            return gather(every, tensor, group=group, **options)

        def counted(out: Any, tensor: Any, outs: Any, ins: Any, **options: Any) -> Any:
            rank = distributed.get_rank(options["group"])
            self.sent += (tensor.numel() - ins[rank]) * tensor.element_size()
            return exchange(out, tensor, outs, ins, **options)

        distributed.all_gather = counted_gather
        distributed.all_to_all_single = counted  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        distributed.all_gather, distributed.all_to_all_single = self._plain  # type: ignore[assignment]


def steep(**config: Any) -> Any:
    """Return an MPT whose flattest slope is 1/4."""
    return make_model("mpt", 4, attn_config={"alibi": True, "alibi_bias_max": 2}, **config)


def silence(rank: int, size: int) -> dict[str, list[Any]]:
    """Return bytes of a token and layer as a share of those of all results, and errors, by case."""
    group, found = distributed.group.WORLD, {}
    ids = batch(600)["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, :200] = 0
    windowed = {"window": 40}
    cases: dict[str, tuple[Any, dict[str, Any], torch.Tensor | None]] = {
        "far": (steep(), {}, None),
        "padded": (steep(), {}, mask),
        "knee": (steep(), {"scaling": na.Knee(200, 2.0)}, None),
        "by length": (steep(), {"scaling": na.DynamicNTK(1.1, 512, per="query")}, None),
        "window": (make_model("bloom", 8), windowed, None),
        "flat": (make_model("mpt", 8), {}, None),
        "a long key": (steep(), {}, None),
    }
    with torch.no_grad():
        # tokens 7 have keys so long that a rank with one of them must not be silent
        weights = cases["a long key"][0].transformer.wte.weight
        weights[7] *= 30.0
    for name, (model, options, padding) in cases.items():
        text = ids.clone()
        text[text == 7] = 8
        if name == "a long key":
            text[:, 5] = 7
            for block in model.transformer.blocks:
                block.norm_1 = torch.nn.Identity()
        plain = {"attention_mask": padding} if padding is not None else {}
        with na.patch(model, **options), torch.inference_mode():
            expected = model(text, **plain).logits[:, -2:]
        runs = []
        for _ in range(2 if name == "far" else 1):
            with na.patch(model, **options, group=group), torch.inference_mode():
                cache = na.ShardedCache(group)
                before = {} if padding is None else {"attention_mask": padding[:, :-2]}
                model(text[:, :-2], past_key_values=cache, **before)
                logits, sent = [], 0
                for at in (598, 599):
                    until = {} if padding is None else {"attention_mask": padding[:, : at + 1]}
                    with Wire() as wire:
                        step = model(text[:, at : at + 1], past_key_values=cache, **until)
                    logits.append(step.logits)
                    sent += wire.sent
                runs.append(torch.cat(logits, 1))
        heads = model.config.num_attention_heads
        result = 4 * heads * (16 + 1) * len(text) * (size - 1)
        layers = model.config.num_hidden_layers
        error = float((runs[0] - expected).abs().max() / expected.abs().max())
        same = bool((runs[0] == runs[-1]).all())
        found[name] = [sent / (2 * layers * result), error, same]
    return found


def everything(rank: int, size: int) -> dict[str, Any]:
    work = (silence,)
    return {function.__name__: function(rank, size) for function in work}


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    return run(4, everything, 4)


def test_ranks_whose_keys_weigh_nothing_send_nothing(results: list[dict[str, Any]]) -> None:
    for name in results[0]["silence"]:
        shares, errors, same = zip(*(x["silence"][name] for x in results), strict=True)
        assert all(same), name
        assert max(errors) < 5e-6, name  # three layers of float32 sums
        if name == "flat":
            assert set(shares) == {pytest.approx(1.0, abs=0.01)}
        elif name == "a long key":
            assert shares[0] > 0.3, shares
        else:
            # the last rank speaks; flags are a byte each
            assert max(shares[:2]) < 0.02, (name, shares)
            assert sum(shares) < 2.1, (name, shares)
