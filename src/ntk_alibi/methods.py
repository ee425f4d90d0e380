"""Methods by name: the scaling and the log-n factor that a word such as "ntk:4" stands for.

The command line, `patch`, the harness, tables and pictures share these names. Below them stands
what the configuration of a model says: its training length, and settings that are almost ours.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ntk_alibi import _checks
from ntk_alibi.positions.log_n import LogN
from ntk_alibi.scaling import (
    DYNAMIC_TYPES,
    OPTIONAL,
    STATIC_TYPES,
    Scaling,
    scaling_from_config,
    trained_at,
)

#: Name of the unchanged model.
ORIGINAL = "original"

#: The scaling of each kind. Static scalings take a factor, a knee its start before that; dynamic
#: scalings take a rate, the training length and `per`; those of flat heads a share.
STATIC = {scaling.kind: scaling for scaling in STATIC_TYPES.values()}
DYNAMIC = {scaling.kind: scaling for scaling in DYNAMIC_TYPES.values()}
_KINDS = STATIC | DYNAMIC

#: Training length of BLOOM, which its config does not always contain.
BLOOM_TRAIN_LENGTH = 2048


@dataclass(frozen=True)
class Method:
    """A scaling and a log-n factor, with their name.

    Attributes:
        name: name on the command line, in tables and in pictures, such as "ntk:4".
        scaling: the scaling to patch with; None for plain ALiBi.
        log_n: the factor of the scores, or None.
    """

    name: str
    scaling: Scaling | None
    log_n: LogN | None = None


def parse_method(name: str, train_length: int | None) -> Method:
    """Parse a method's name, such as "original", "ntk:4", "flat:8:0.5" or "dynamic-ntk:1:query".

    The first number is the factor, or the rate of a dynamic method; a knee has its start
    before that, "knee:1024:28". Options may follow, in any order:

    - a number: the share of flat heads;
    - "sequence" (as published) or "query": the unit whose length selects a dynamic factor;
    - "layers=0+2": the numbers of the layers that are scaled;
    - "logn=0.5", or "ssmax=0.5": `LogN` of this strength, for scores before the bias or with it. It
      may follow "original", too.

    train_length is that of dynamic scalings and of log-n; None leaves it open in the former.

    Raises:
        TypeError, ValueError: the kind is unknown, a number is missing, out of range or of the
            wrong kind, or an option is unknown.

    Example:
        >>> from ntk_alibi.methods import parse_method
        >>> parse_method("flat:8:layers=1", train_length=2048).scaling
        FlatHeads(factor=8.0, share=0.25, layers=(1,))
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a method must be a string, got {name!r}")
    if train_length is not None:
        _checks.integer("train_length", train_length, minimum=1)
    kind, *words = name.split(":")
    words, log_n = _log_n(name, words, train_length)
    if kind == ORIGINAL:
        if words:
            _numbers(name, kind, words)
        return Method(name, None, log_n)
    numbers = _numbers(name, kind, words)
    scaling = _KINDS[kind]
    options = _options(name, words[len(numbers) :], scaling)
    lengths = [train_length] if kind in DYNAMIC else []
    return Method(name, scaling(*numbers, *lengths, **options), log_n)


def as_method(value: Any, train_length: int) -> Method:
    """Return the method that a user means: a name, a scaling, its dict, None, or a `Method`.

    A scaling without a training length gets this one.

    Raises:
        TypeError, ValueError: value is none of these, or wrong as `parse_method` has it.

    Example:
        >>> import ntk_alibi as na
        >>> from ntk_alibi.methods import as_method
        >>> as_method(na.NTK(4.0), 2048) == as_method("ntk:4", 2048)
        True
    """
    if isinstance(value, Method):
        return value
    if value is None or isinstance(value, str):
        return parse_method(ORIGINAL if value is None else value, train_length)
    scaling = scaling_from_config(value) if isinstance(value, Mapping) else value
    if not callable(getattr(scaling, "scale_exponents", None)) or isinstance(scaling, type):
        raise TypeError(
            f"a method must be a name such as 'ntk:4', a scaling, its dict or None, got {value!r}"
        )
    return Method(name_of(scaling), trained_at(scaling, train_length))


def kind_of(scaling: Any) -> str | None:
    """Return the kind of a scaling, such as "ntk"; None for one that has no name."""
    return next((kind for kind, own in _KINDS.items() if own is type(scaling)), None)


def name_of(scaling: Any) -> str:
    """Return the name of a scaling, which `parse_method` takes back; its repr if it has none.

    The training length of a dynamic scaling is no part of it. Whose length selects its factor is,
    since the kinds have different defaults.

    Example:
        >>> import ntk_alibi as na
        >>> from ntk_alibi.methods import name_of
        >>> name_of(na.NTK(4.0)), name_of(na.DynamicFlatHeads(2.0))
        ('ntk:4', 'dynamic-flat:2:query')
    """
    if scaling is None:
        return ORIGINAL
    kind = kind_of(scaling)
    if kind is None:
        return repr(scaling)
    values = vars(scaling)
    defaults = {field.name: field.default for field in fields(scaling)}
    words = [_word(values[name]) for name in number_names(kind)]
    if values.get("share") != defaults.get("share"):
        words.append(_word(values["share"]))
    if "per" in values:
        words.append(values["per"])
    if values["layers"] is not None:
        words.append(f"layers={'+'.join(map(str, values['layers']))}")
    return ":".join([kind, *words])


def spelling_of(kind: str) -> str:
    """Return how the names of a kind of methods are spelled, such as "knee:START:FACTOR"."""
    return ":".join([kind, *map(str.upper, number_names(kind))])


def number_names(kind: str) -> tuple[str, ...]:
    """Return the names of the numbers that a kind of method needs, in their order."""
    return tuple(f.name for f in fields(_KINDS[kind]) if f.name not in OPTIONAL)


def named_method(
    kind: str,
    factor: float | None,
    per: str | None,
    train_length: int,
    share: float | None = None,
    start: int | None = None,
    **options: Any,
) -> Method:
    """Return the method of a kind and its numbers; kind may already contain the others.

    options are those of a method's name: layers, logn and ssmax.
    """
    numbers = {"start": start, "factor": factor, "share": share}
    for name in number_names(kind) if kind in _KINDS else ():
        argument = "factor" if name == "rate" else name
        if numbers[argument] is None:
            _checks.missing(argument, f"with scaling={kind}")
    texts = [
        _word(number if number == math.inf else _checks.finite(name, number))
        for name, number in numbers.items()
        if number is not None
    ]
    named = [f"{name}={value}" for name, value in options.items() if value is not None]
    parts = [str(kind), *texts, *([] if per is None else [per]), *named]
    return parse_method(":".join(parts), train_length)


def model_arguments(name: str) -> str:
    """Format a method's name as `--model_args` of lm-evaluation-harness."""
    kind, *words = name.split(":")
    named = {"scaling": kind}
    numbers = () if kind == ORIGINAL else number_names(kind)
    names = iter((*("factor" if n == "rate" else n for n in numbers), "share"))
    for word in words:
        if "=" in word:
            option, _, value = word.partition("=")
            named[option] = value
        else:
            named["per" if word in ("sequence", "query") else next(names)] = word
    return ",".join(f"{key}={value}" for key, value in named.items())


def train_length_of(config: Any) -> int:
    """Return the training length in a model's config, or BLOOM's if it does not contain one."""
    return stated_train_length(config) or BLOOM_TRAIN_LENGTH


def stated_train_length(config: Any) -> int | None:
    """Return the training length in a model's config, or None if it does not contain one."""
    for name in ("seq_length", "max_seq_len", "max_position_embeddings"):
        if length := getattr(config, name, None):
            return _checks.integer(f"{name} of the model's config", length, minimum=1)
    return None


def almost_settings(config: Any, names: Collection[str], known: Collection[str]) -> list[str]:
    """Return the attributes of a model's configuration that are almost settings of this package.

    Args:
        config: the configuration; attributes that are None do not count.
        names: the names of settings.
        known: names that are right, whether their values are read or not.
    """
    given = [name for name, value in vars(config).items() if value is not None]
    return [
        name
        for name in given
        if name not in known
        and (name.startswith("alibi_") or _checks.meant(name, names, alike=0.8))
    ]


def _numbers(name: str, kind: str, words: Sequence[str]) -> list[float]:
    """Return the numbers in a method's name, such as 4 in "ntk:4"."""
    count = len(number_names(kind)) if kind in _KINDS else 0
    try:
        if 0 < count <= len(words):
            return [_number(word) for word in words[:count]]
    except ValueError:
        pass
    known = ", ".join(map(spelling_of, _KINDS))
    near = _checks.meant(kind, _KINDS, alike=0.6)
    meant = "" if near is None else f": did you mean {spelling_of(near)}?"
    raise ValueError(f"method must be original or one of {known}, got {name!r}{meant}")


def _number(word: str) -> float:
    number = float(word)
    return int(number) if number.is_integer() else number


def _word(number: float) -> str:
    """Return the shortest text of a number that stands for it in a name."""
    return repr(number).removesuffix(".0")


def _log_n(name: str, words: list[str], train_length: int | None) -> tuple[list[str], LogN | None]:
    """Return the other words of a method's name, and its log-n factor."""
    found = [word for word in words if word.partition("=")[0] in ("logn", "ssmax")]
    if not found:
        return words, None
    if len(found) > 1:
        raise ValueError(f"{name!r} must name one of logn and ssmax once, got {len(found)}")
    option, _, text = found[0].partition("=")
    strength = _of_text(f"{option} in {name!r}", "a number", float, text)
    if train_length is None:
        raise ValueError(
            f"{option} in {name!r} must have a training length, which the model's config does not "
            "say, got None: give log_n=LogN(train_length, ...) in its place"
        )
    return [w for w in words if w != found[0]], LogN(train_length, strength, option == "ssmax")


#: How a scaling's options are spelled in a method's name.
_OPTION_SPELLINGS = {
    "share": "a share of the heads",
    "per": "sequence or query",
    "layers": "layers=0+2",
}


def _options(name: str, words: list[str], scaling: Any) -> dict[str, Any]:
    """Return the options behind the numbers of a method's name, by the scaling's parameters."""
    options: dict[str, Any] = {}
    free = {
        x.name: _OPTION_SPELLINGS[x.name] for x in fields(scaling) if x.name in _OPTION_SPELLINGS
    }
    for word in words:
        option = "per" if word in ("sequence", "query") else "share"
        option = "layers" if word.startswith("layers=") else option
        if option not in free:
            known = ", ".join([*free.values(), "logn=0.5 or ssmax=0.5"])
            dynamic = "; only a dynamic method takes it, such as dynamic-ntk:2:query"
            raise ValueError(
                f"what follows the numbers in {name!r} must be {known}, got {word!r}"
                f"{dynamic if option == 'per' and 'per' not in options else ''}"
            )
        del free[option]
        if option == "per":
            options[option] = word
        elif option == "share":
            what = f"the share of the heads in {name!r}"
            options[option] = _of_text(what, "a number", float, word)
        else:
            numbers = word.removeprefix("layers=")
            what = f"layers in {name!r}"
            options[option] = _of_text(what, "numbers such as 0+2", _layers, numbers)
    return options


def _layers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("+")))


def _of_text(what: str, expected: str, kind: Any, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{what} must be {expected}, got {text!r}") from None
