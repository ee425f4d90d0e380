"""Ways to call a patched model, and what an oracle makes of the same row of `patch_table`."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import transformers

import ntk_alibi as na
from model_runs import Logits, drop_weights, enable_checkpointing
from ntk_alibi.integrations.arguments import CACHE
from patch_table import DROPOUT, GENERATE, GRADIENTS, MASKS, OPTIONS, ROWS, SCALINGS, TOKENS, Row
from small_models import VOCABULARY
from table_families import (
    FAMILIES,
    HEADS,
    Oracle,
    drop_nothing,
    dropping_layers,
    head_of,
    heads_of,
    of_kind,
    shared_model,
)

DECODED = 11

#: Float32 sums of a few hundred terms through two layers, at values of about 1 (T5: about 5).
CLOSE = {"atol": 2e-5, "rtol": 1e-5}
#: Sums over tokens of such values.
GRADIENTS_CLOSE = {"atol": 1e-4, "rtol": 1e-4}

IDS = torch.randint(3, VOCABULARY, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))
DECODER_MASK = torch.ones((ROWS, DECODED), dtype=torch.long)
DECODER_MASK[1, :4] = 0


def kind(row: Row) -> str:
    return FAMILIES[row["family"]].kind


def options_of(row: Row, model: Any) -> dict[str, Any]:
    scaling = SCALINGS[row["scaling"]].scaling(heads_of(model))
    return {
        "method": "original" if scaling is None else scaling,
        "attention": row["form"],
        **OPTIONS[row["option"]](heads_of(model))[0],
    }


def configs(model: Any) -> list[tuple[str, int, dict[str, Any]]]:
    """Return the configurations in a model: where they are, which objects, and what they say."""
    return [
        (path, id(part.config), copy.deepcopy(vars(part.config)))
        for path, part in model.named_modules()
        if hasattr(part, "config")
    ]


@contextlib.contextmanager
def patched(row: Row, model: Any) -> Iterator[Any]:
    """Yield a model that is patched in the row's way, and check that nothing is left behind."""
    before = configs(model)
    options, door, beside = options_of(row, model), row["door"], FAMILIES[row["family"]].patch
    if door == "configuration":
        with na.patch(model, **options):
            text = model.config.to_json_string()
        other = type(model)(type(model.config).from_dict(json.loads(text))).eval()
        other.load_state_dict(model.state_dict())
        drop_nothing(other)
        na.patch(other)
        yield other
    elif door in ("deep copy", "pickle"):
        with na.patch(model, **options, **beside):
            pickled = pickle.dumps(model) if door == "pickle" else None
            other = pickle.loads(pickled) if pickled else copy.deepcopy(model)
        yield other
    else:
        inner = model.base_model if door == "the inner model" else model
        with contextlib.ExitStack() as patches:
            if door == "over another":
                other_form = "fused" if row["form"] == "eager" else "eager"
                patches.enter_context(na.patch(model, attention=other_form, **beside))
            patches.enter_context(na.patch(inner, **options, **beside))
            yield model
    assert na.patched(model) == []
    assert configs(model) == before


def given_to(row: Row, model: Any) -> dict[str, Any]:
    mask = MASKS[row["padding"]]
    if row["family"] in (*of_kind("decoder"), "baichuan"):
        return {"input_ids": IDS, "attention_mask": mask, "use_cache": False}
    if kind(row) != "both":
        return {"input_ids": IDS, "attention_mask": mask}
    decoded = IDS[:, :DECODED].flip(1)
    asked = {"decoder_input_ids": decoded, "decoder_attention_mask": DECODER_MASK}
    asked |= {"use_cache": False}
    return {"input_ids": IDS, "attention_mask": mask, **asked}


def kept_of(row: Row) -> torch.Tensor:
    """Return which tokens of the row are real."""
    mask = MASKS[row["padding"]]
    return torch.ones((ROWS, TOKENS), dtype=torch.bool) if mask is None else mask.bool()


def output_tensors(row: Row, output: Any) -> list[torch.Tensor]:
    """Return the results of real tokens."""
    if kind(row) != "both":
        states = output if isinstance(output, torch.Tensor) else output[0]
        return [states[kept_of(row)] if states.ndim == 3 else states]
    found = [output.logits[DECODER_MASK.bool()]]
    if getattr(output, "encoder_last_hidden_state", None) is not None:
        found.append(output.encoder_last_hidden_state[kept_of(row)])
    return found


Call = Callable[[Row, Any], list[torch.Tensor]]


def call(row: Row, model: Any) -> list[torch.Tensor]:
    return output_tensors(row, model(**given_to(row, model)))


def forward(row: Row, model: Any) -> list[torch.Tensor]:
    """Call the model's forward itself, as sentence-transformers does."""
    return output_tensors(row, model.forward(**given_to(row, model)))


def base_forward(row: Row, model: Any) -> list[torch.Tensor]:
    return output_tensors(row, model.base_model.forward(**given_to(row, model)))


def embeddings(row: Row, model: Any) -> list[torch.Tensor]:
    given = given_to(row, model)
    embedded = model.get_input_embeddings()(given.pop("input_ids"))
    return output_tensors(row, model(inputs_embeds=embedded, **given))


def threads(row: Row, model: Any) -> list[torch.Tensor]:
    """Let two threads share the model."""
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        with torch.no_grad():
            found[number] = [call(row, model) for _ in range(2)]

    both = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    first = found[0][0]
    for other in (found[0][1], *found[1]):
        assert all(torch.equal(*pair) for pair in zip(first, other, strict=True))
    return first


def compiled(row: Row, model: Any) -> list[torch.Tensor]:
    torch.compiler.reset()
    whole = row["form"] == "traceable"
    found = call(row, torch.compile(model, backend="eager", fullgraph=whole))
    torch.compiler.reset()
    return found


def exported(row: Row, model: Any) -> list[torch.Tensor]:
    given = (IDS, torch.ones_like(IDS) if MASKS[row["padding"]] is None else MASKS[row["padding"]])
    program = torch.export.export(Logits(model), given, strict=False)
    return [program.module()(*given)[kept_of(row)]]


def pieces(cache: str) -> Call:
    def run(row: Row, model: Any) -> list[torch.Tensor]:
        held, mask, found = cache_of(cache, row, model), MASKS[row["padding"]], []
        for begin, end in ((0, 9), (9, 10), (10, 14), (14, TOKENS)):
            seen = None if mask is None else mask[:, :end]
            given = {"attention_mask": seen, CACHE: held, "use_cache": True}
            found.append(model(IDS[:, begin:end], **given).logits)
        return [torch.cat(found, dim=1)[kept_of(row)]]

    return run


def cache_of(name: str, row: Row, model: Any) -> Any:
    limits = OPTIONS[row["option"]](HEADS)[0]
    if name == "static":
        return transformers.StaticCache(model.config, max_cache_len=TOKENS + 3)
    made = {
        "dynamic": transformers.DynamicCache,
        "growing": lambda: na.GrowingCache(8),
        "window": lambda: na.WindowCache(limits["window"], limits.get("sink", 0)),
    }[name]
    if kind(row) == "both":
        return transformers.EncoderDecoderCache(made(), made())
    return made()


def generate(cache: str | None = None, **options: Any) -> Call:
    def run(row: Row, model: Any) -> list[torch.Tensor]:
        rows, mask, given = ROWS, MASKS[row["padding"]], dict(options)
        if "prompt_lookup_num_tokens" in options:
            rows = 1  # transformers allows no more
        if cache == "static":
            given["cache_implementation"] = "static"
        elif cache:
            given[CACHE] = cache_of(cache, row, model)
        mask = torch.ones_like(IDS) if mask is None else mask
        ends = {"pad_token_id": 0, "eos_token_id": VOCABULARY + 1}
        fixed = {"do_sample": False, "max_new_tokens": 4, "use_cache": True, **ends}
        return [model.generate(IDS[:rows], attention_mask=mask[:rows], **{**fixed, **given})]

    return run


def weights(row: Row, model: Any) -> list[torch.Tensor]:
    """Return the attention weights of real queries, layer by layer."""
    output = model(**given_to(row, model), output_attentions=True)
    if kind(row) != "both":
        return [of_real(x, kept_of(row)) for x in output.attentions]
    decoder = (*output.decoder_attentions, *output.cross_attentions)
    return [
        *(of_real(x, kept_of(row)) for x in output.encoder_attentions),
        *(of_real(x, DECODER_MASK.bool()) for x in decoder),
    ]


def of_real(weights: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    return weights.transpose(1, 2)[kept]


def oracle_weights(row: Row, oracle: Oracle) -> list[torch.Tensor]:
    call(row, oracle.model)
    ordered = sorted(
        oracle.weights,
        key=lambda x: ("encoder." not in x[0] and kind(row) == "both", "EncDec" in x[0]),
    )
    decoder = DECODER_MASK.bool()
    return [
        of_real(x, kept_of(row) if kind(row) != "both" or path.startswith("encoder.") else decoder)
        for path, x in ordered
    ]


def gradients(call: Call, checkpoints: dict[str, bool] | None = None) -> Call:
    """Return a call in training, for the gradients of all parameters."""

    def run(row: Row, model: Any) -> list[torch.Tensor]:
        model.train()
        model.zero_grad()
        if checkpoints is not None:
            enable_checkpointing(model, checkpoints)
            if checkpoints["use_reentrant"]:
                model.enable_input_require_grads()
        array = torch.cat([x.flatten() for x in call(row, model)])
        (array * torch.linspace(-1, 1, len(array), dtype=array.dtype)).sum().backward()
        model.eval()
        return [x.grad for x in model.parameters() if x.grad is not None]

    return run


def in_training(row: Row, model: Any) -> list[torch.Tensor]:
    model.train()
    return call(row, model)


#: Ways to call a patched model, and how an oracle is called for the same results.
WAYS_TO_CALL: dict[str, tuple[Call, Call]] = {
    "call": (call, call),
    "forward": (forward, call),
    "base forward": (base_forward, base_forward),
    "head": (call, call),
    "embeddings": (embeddings, call),
    "threads": (threads, call),
    "weights": (weights, call),
    "compiled": (compiled, call),
    "exported": (exported, call),
    **{f"pieces, {x}": (pieces(x), call) for x in ("dynamic", "static", "growing", "window")},
    "generate, no cache": (generate(use_cache=False), generate(use_cache=False)),
    **{
        f"generate, {x}": (generate(x), generate(use_cache=False))
        for x in ("dynamic", "static", "growing", "window")
    },
    "beams": (generate(num_beams=3), generate(num_beams=3, use_cache=False)),
    "beams, growing": (generate("growing", num_beams=3), generate(num_beams=3, use_cache=False)),
    "prompt lookup": (
        generate(prompt_lookup_num_tokens=3),
        lambda row, model: [generate(use_cache=False)(row, model)[0][:1]],
    ),
    "chunks of the prompt": (generate(prefill_chunk_size=7), generate(use_cache=False)),
    "gradients": (gradients(call), gradients(call)),
    "checkpoints": (gradients(call, {"use_reentrant": False}), gradients(call)),
    "reentrant checkpoints": (gradients(call, {"use_reentrant": True}), gradients(call)),
    "dropout": (in_training, call),
    "dropout, gradients": (gradients(call), gradients(call)),
    "dropout, checkpoints": (gradients(call, {"use_reentrant": False}), gradients(call)),
}


def results(row: Row) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return what a patched model makes of a row, and what an oracle does."""
    way = row["way"]
    model = head_of(row["family"]) if way == "head" else shared_model(row["family"])
    with torch.set_grad_enabled("gradients" in way or way in GRADIENTS):
        ours, theirs = of_patch(row, model), of_oracle(row, model)
    return [x.detach().double() for x in ours], [x.detach().double() for x in theirs]


def of_patch(row: Row, model: Any) -> list[torch.Tensor]:
    if "checkpoints" in row["way"] or row["way"] in ("weights", *DROPOUT):
        model = copy.deepcopy(model)  # these leave hooks, or another rate of dropout
    with patched(row, model) as ours:
        if row["way"] in DROPOUT:
            drop_weights(dropping_layers(ours, FAMILIES[row["family"]].layout))
        torch.manual_seed(0)
        return WAYS_TO_CALL[row["way"]][0](row, ours)


def of_oracle(row: Row, model: Any) -> list[torch.Tensor]:
    meaning = SCALINGS[row["scaling"]].meaning(heads_of(model))
    of_option = OPTIONS[row["option"]](heads_of(model))[1]
    oracle = Oracle(model, FAMILIES[row["family"]].layout, replace(meaning, **of_option))
    oracle.dropout = 0.5 if row["way"] in DROPOUT else 0.0  # its model's own code drops none
    torch.manual_seed(0)
    mask = kept_of(row).long()
    oracle.masks = {"encoder": mask, "decoder": DECODER_MASK if kind(row) == "both" else mask}
    if row["way"] in GENERATE and kind(row) == "both":
        oracle.masks["decoder"] = DECODER_MASK[:, -1:]
    if row["way"] == "weights":
        return oracle_weights(row, oracle)
    return WAYS_TO_CALL[row["way"]][1](row, oracle.model)
