"""Small tokenizers that cut texts like published models' tokenizers, trained on the prose."""

from __future__ import annotations

from typing import Any

import transformers
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    processors,
    trainers,
)
from tokenizers import pre_tokenizers as cut

from ntk_alibi.evaluation.records.corpus import held_out_text

#: BLOOM's rule, from its tokenizer.json.
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"  # noqa: RUF001


def like_bloom(**options: Any) -> Any:
    """Return a tokenizer with the parts of BLOOM's."""
    steps = [
        cut.Split(Regex(BLOOM), "isolated"),
        cut.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return trained(cut.Sequence(steps), special, **options)


def like_mpt(**options: Any) -> Any:
    """Return a tokenizer with the parts of GPT-NeoX's, which MPT has: NFC, and runs of spaces."""
    special = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    tokenizer = trained(cut.ByteLevel(add_prefix_space=False), special, **options)
    runs = [AddedToken(" " * size, normalized=True) for size in range(24, 1, -1)]
    tokenizer.add_tokens(runs)
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def trained(
    pre_tokenizer: Any, special: dict[str, str], model: Any = None, trainer: Any = None
) -> Any:
    """Return a fast tokenizer of 600 tokens."""
    tokenizer = Tokenizer(models.BPE() if model is None else model)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    names = list(dict.fromkeys(special.values()))
    trainer = trainers.BpeTrainer if trainer is None else trainer
    alphabet = cut.ByteLevel.alphabet()
    kind = trainer(vocab_size=600, special_tokens=names, initial_alphabet=alphabet)
    prose = held_out_text()[:10]
    hyphens = [text.replace(" ", "-") for text in prose]  # of which BLOOM's rule makes single words
    tokenizer.train_from_iterator([*prose, *hyphens], kind)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
