"""The vocabulary of a GGUF file, read from a fast tokenizer with byte-level BPE.

A file names its pre-tokenizer, the rule by which llama.cpp splits a text into words before it
merges bytes. Supported are the pre-tokenizers of BLOOM and of GPT-2, which MPT shares. All others
are refused, since llama.cpp would silently compute other tokens.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gguf

#: For each supported pre-tokenizer, as tokenizers describe it: its name in llama.cpp.
_PRE_TOKENIZERS = {
    "ByteLevel": "gpt-2",
    r"Split ?[^(\s|[.,!?…。，、।۔،])]+": "bloom",  # noqa: RUF001
}

#: The special tokens that a file names.
_SPECIAL = ("bos", "eos", "unk", "pad")


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary of a file.

    Attributes:
        tokens: the strings of all tokens.
        types: the names of their types in `gguf.TokenType`.
        merges: the merges of bytes, in order.
        pre_tokenizer: the name of the rule that splits texts.
        special: indices of special tokens, by name.
        added: whether the special tokens "bos" and "eos" are added to each text, by name.
        chat_templates: the templates of chats, by name; the usual one is called "default".
    """

    tokens: list[str]
    types: list[str]
    merges: list[str]
    pre_tokenizer: str
    special: dict[str, int]
    added: dict[str, bool]
    chat_templates: dict[str, str]

    def add_to(self, writer: gguf.GGUFWriter) -> None:
        """Write the vocabulary into a file."""
        from gguf import TokenType

        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pre_tokenizer)
        writer.add_token_list(self.tokens)
        writer.add_token_types([TokenType[name] for name in self.types])
        writer.add_token_merges(self.merges)
        for name, number in self.special.items():
            getattr(writer, f"add_{name}_token_id")(number)
        for name, added in self.added.items():
            getattr(writer, f"add_add_{name}_token")(added)
        if self.chat_templates:
            named = ({"name": name, "template": x} for name, x in self.chat_templates.items())
            writer.add_chat_template(list(named))


def read_vocabulary(tokenizer: Any, rows: int) -> Vocabulary:
    """Return the vocabulary of a model's tokenizer.

    Args:
        tokenizer: the tokenizer, or None.
        rows: how many rows the model's embeddings have; rows beyond the tokenizer's tokens are
            called [PAD...].
    """
    if tokenizer is None:
        raise ValueError(
            "tokenizer must be given for format 'gguf' where the model was not loaded from a "
            "folder or hub name that has one, got None"
        )
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(
            f"tokenizer must be a fast one for format 'gguf', got {type(tokenizer).__name__}"
        )
    parts = json.loads(backend.to_str())
    pre_tokenizer = _pre_tokenizer(parts)
    tokens, types = _tokens(parts)
    if max(tokens) >= rows:
        raise ValueError(
            f"tokenizer must have tokens below {rows}, the rows of the model's embeddings, got "
            f"{max(tokens)}"
        )
    special = {name: getattr(tokenizer, f"{name}_token_id", None) for name in _SPECIAL}
    if special["eos"] is None:  # where a file has none, llama.cpp takes token 11
        raise ValueError("tokenizer must have an eos_token for format 'gguf', got None")
    added = _added(tokenizer, special)
    _warn_of_overlaps([token["content"] for token in parts["added_tokens"]])
    templates = getattr(tokenizer, "chat_template", None) or {}
    return Vocabulary(
        tokens=[tokens.get(index, f"[PAD{index}]") for index in range(rows)],
        types=[types.get(index, "UNUSED") for index in range(rows)],
        merges=[x if isinstance(x, str) else " ".join(x) for x in parts["model"]["merges"]],
        pre_tokenizer=pre_tokenizer,
        special={name: number for name, number in special.items() if number is not None},
        added=added,
        chat_templates={"default": templates} if isinstance(templates, str) else templates,
    )


def _tokens(parts: dict[str, Any]) -> tuple[dict[int, str], dict[int, str]]:
    """Return the strings and the types of a tokenizer's tokens by their ids."""
    tokens = {number: text for text, number in parts["model"]["vocab"].items()}
    types = dict.fromkeys(tokens, "NORMAL")
    for token in parts["added_tokens"]:
        tokens[token["id"]] = token["content"]
        kind = "CONTROL" if token["special"] else "USER_DEFINED"
        types[token["id"]] = kind
    return tokens, types


def _added(tokenizer: Any, special: dict[str, int | None]) -> dict[str, bool]:
    """Return whether a tokenizer adds bos and eos to a text; refuse one that adds other tokens."""
    alone, framed = (tokenizer("a", add_special_tokens=x)["input_ids"] for x in (False, True))
    added = {
        "bos": framed[: -len(alone)] == [special["bos"]],
        "eos": framed[len(alone) :] == [special["eos"]],
    }
    if len(framed) != len(alone) + sum(added.values()):
        raise ValueError(
            "tokenizer must add no tokens to a text but bos and eos for format 'gguf', got "
            f"{tokenizer.convert_ids_to_tokens(framed)} for 'a'"
        )
    return added


def _warn_of_overlaps(added: list[str]) -> None:
    """Warn of added tokens that may overlap in a text, such as 12 and 23 in 123.

    A tokenizer takes the token that begins first, llama.cpp the longest one in the text, and any
    of several such. Runs of one character, such as spaces, give the same tokens.
    """
    beginnings = {text[:size]: text for text in added for size in range(1, len(text))}
    for text in added:
        for start in range(1, len(text)):
            other = beginnings.get(text[start:])
            if other is not None and len(set(text + other)) > 1:
                warnings.warn(
                    "tokens that were added to the tokenizer overlap, such as "
                    f"{text!r} and {other!r}: llama.cpp may cut texts with them into other tokens "
                    "than the tokenizer, so give it the tokens of such texts",
                    stacklevel=6,
                )
                return


def _pre_tokenizer(parts: dict[str, Any]) -> str:
    """Return llama.cpp's name of the rule by which a tokenizer splits texts."""
    model, normalizer = parts["model"], parts["normalizer"] or {"type": None}
    cutting = parts["pre_tokenizer"] or {"type": None}
    steps = cutting.get("pretokenizers", [cutting])
    rule = None
    if steps[-1]["type"] == "ByteLevel" and not steps[-1]["add_prefix_space"]:
        names = ["ByteLevel"] if steps[-1]["use_regex"] else []
        names += [f"Split{x.get('pattern', {}).get('Regex')}" for x in steps[:-1]]
        rule = _PRE_TOKENIZERS.get("".join(names))
    for what, given, known in (
        ("model", model["type"], ("BPE",)),
        ("ignore_merges", model.get("ignore_merges", False), (False,)),
        ("normalizer", normalizer["type"], (None, "NFC")),
        ("pre_tokenizer", rule, tuple(_PRE_TOKENIZERS.values())),
    ):
        if given not in known:
            got = cutting if what == "pre_tokenizer" else given
            raise ValueError(
                f"tokenizer must be a byte-level BPE that cuts texts as BLOOM's or GPT-2's does "
                f"for format 'gguf', got {what} {got!r}"
            )
    assert rule is not None
    return rule
