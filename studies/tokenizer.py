"""The tokenizer of the nano models: byte-level BPE with the words of records as whole tokens."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from ntk_alibi.evaluation.records.corpus import training_text
from ntk_alibi.evaluation.records.words import ADJECTIVES, NOUNS, ORDINALS, TOPIC_WORDS

#: BLOOM's special tokens, with BLOOM's ids.
SPECIAL_TOKENS = {
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
}

#: Size of the BPE vocabulary of prose with special tokens and bytes; record words come on top.
PROSE_VOCABULARY = 1024

PHRASES = [
    *("line", ":", " REGISTER", "_CONTENT", " is", " <", ">", "\n", "What", " the", " of", "?"),
    *("Here is a record of lines.", "Here is a record of our conversation.", "USER:", "ASSISTANT:"),
    *(" Let us discuss our", " What was our", " topic"),
]


def build_tokenizer() -> Tokenizer:
    """Train the tokenizer, which takes a few seconds and is deterministic."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=PROSE_VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    words = [*PHRASES, *task_words()]
    known = {tokenizer.decode([i]) for i in range(PROSE_VOCABULARY)}
    tokenizer.add_tokens([AddedToken(w, normalized=False) for w in words if w not in known])
    return tokenizer


def task_words() -> list[str]:
    """List the words of records with their leading space or hyphen, and all two-digit integers.

    An integer of four digits becomes two tokens.
    """
    topic_words = [word for words in TOPIC_WORDS for word in words]
    return [
        *(f" {adjective}" for adjective in ADJECTIVES),
        *(f"-{noun}" for noun in NOUNS),
        *(f" {word}" for word in [*topic_words, *ORDINALS]),
        *(f"{number:02d}" for number in range(100)),
    ]
