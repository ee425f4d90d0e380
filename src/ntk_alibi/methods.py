"""Names of methods: "ntk:4" and its like mean a scaling and a log-n factor.

The command line, `patch`, the harness, tables and plots share these names. The module also reads
from a model's config: the training length and the entry of a patch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ntk_alibi import _checks, _names
from ntk_alibi.positions.log_n import LogN
from ntk_alibi.scaling import (
    DYNAMIC_TYPES,
    OPTIONAL,
    STATIC_TYPES,
    Scaling,
    checked_scaling,
    scaling_from_config,
    trained_at,
)

#: Name of the unchanged model.
ORIGINAL = "original"

#: The method for texts of any length, and the advice, which docs/choose-a-method.md derives.
RECOMMENDED = "dynamic-ntk"
ADVICE = (
    f"{RECOMMENDED}; beyond 8 training lengths dynamic-flat; ntk:FACTOR where prompts are read in "
    "pieces or caches are shared"
)

#: The attribute of a configuration, and what it may hold: arguments of `patch`, and the training
#: length that a method by name took from the configuration, whose own value may change.
ENTRY = "ntk_alibi"
KEYS = ("method", "attention", "window", "sink", "causal_block", "log_n", "train_length")

#: Scalings by kind, which is the first word of a method's name. Static scalings take a factor,
#: dynamic scalings a rate and the training length.
STATIC = {scaling.kind: scaling for scaling in STATIC_TYPES.values()}
DYNAMIC = {scaling.kind: scaling for scaling in DYNAMIC_TYPES.values()}
_KINDS = STATIC | DYNAMIC

#: Training length of BLOOM, which its config does not always contain.
BLOOM_TRAIN_LENGTH = 2048


@dataclass(frozen=True)
class Method:
    """A method: its name, scaling and log-n factor.

    Attributes:
        name: the name on the command line, in tables and plots, such as "ntk:4".
        scaling: the scaling to patch with; None for ALiBi as trained.
        log_n: the log-n factor of scores, or None.
    """

    name: str
    scaling: Scaling | None
    log_n: LogN | None = None


def parse_method(name: str, train_length: int | None) -> Method:
    """Parse a method's name, such as "original", "ntk:4", "flat:8" or "dynamic-ntk".

    The number is the factor, or the rate of a dynamic method; "dynamic-ntk" is "dynamic-ntk:2".
    "logn=0.5" may follow, also after "original": `LogN` with this strength.

    Args:
        name: the name.
        train_length: the training length for dynamic scalings and log-n; None leaves it open in
            dynamic scalings.

    Raises:
        TypeError: name is not a string.
        ValueError: the method or an option is unknown, or a number is missing, malformed or out of
            range.

    Example:
        >>> from ntk_alibi.methods import parse_method
        >>> method = parse_method("flat:8:logn=0.5", train_length=2048)
        >>> method.scaling, method.log_n
        (FlatHeads(factor=8.0), LogN(train_length=2048, strength=0.5))
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a method must be a string, got {name!r}")
    if train_length is not None:
        _checks.integer("train_length", train_length, minimum=1)
    kind, *words = name.split(":")
    words, log_n = _take_log_n(name, words, train_length)
    if kind == ORIGINAL and not words:
        return Method(name, None, log_n)
    values, words = _parse_parameters(name, kind, words)
    if words:
        option = words[0].partition("=")[0]
        if kind.endswith("flat") and option.replace(".", "", 1).isdigit():
            option = "share"  # which was the second number of these
        raise ValueError(
            f"an option in {name!r} must be logn=0.5, got {words[0]!r}"
            f"{_names.did_you_mean(option, ('logn=',))}"
        )
    if kind in DYNAMIC:
        values["train_length"] = train_length
    return Method(name, _KINDS[kind](**values), log_n)


def as_method(value: Any, train_length: int) -> Method:
    """Convert a name, a scaling, its config dict, None or a `Method` to a `Method`.

    A scaling without a training length gets this one.

    Raises:
        TypeError: value is none of these.
        ValueError: the name or the dict is wrong.

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
            "a method must be a name such as 'ntk:4', a scaling, its dict or None, "
            f"got {_checks.briefly(value)}"
        )
    return Method(method_name(scaling), trained_at(scaling, train_length))


def scaling_and_log_n(scaling: Any, log_n: Any, train_length: int | None) -> tuple[Any, Any]:
    """Return the scaling and the factor of scores of a method by name, a dict or an object.

    Args:
        scaling: what `patch` takes.
        log_n: what `patch` takes.
        train_length: the training length of methods by name, and of scalings without one; None if
            the model's configuration has none.
    """
    if isinstance(scaling, str):
        method = parse_method(scaling, train_length)
        _checks.at_most_one(**{"log_n": log_n, "a factor in method": method.log_n})
        return method.scaling, log_n if method.log_n is None else method.log_n
    if isinstance(scaling, Mapping):
        scaling = scaling_from_config(scaling)
    if train_length is not None:
        scaling = trained_at(scaling, train_length)
    return scaling, log_n


def as_scaling(value: Any, train_length: int | None = None, *, name: str = "scaling") -> Any:
    """Return the scaling that a name, a dict or an object means; None for none.

    Args:
        value: what an argument `scaling` takes.
        train_length: the training length of names and dicts without one; None if nothing has one.
        name: the argument's name in errors.

    Raises:
        TypeError, ValueError: value is none of these, is wrong, has a factor of scores, or lacks
            the training length.
    """
    if isinstance(value, str) and _log_n_words(value.split(":")):
        raise ValueError(f"{name} must be a scaling without a factor of scores, got {value!r}")
    try:
        scaling, _ = scaling_and_log_n(value, None, train_length)
    except (TypeError, ValueError) as error:
        what = (
            f"{name} must be a scaling, its dict or a method's name, got {_checks.briefly(value)}"
        )
        raise type(error)(f"{what}: {error}") from error
    checked_scaling(scaling, name=name)
    if scaling is not value and getattr(scaling, "train_length", 1) is None:
        raise ValueError(
            f"{name} must have a training length here, where no model has one, got {value!r}: "
            f"pass {trained_at(scaling, BLOOM_TRAIN_LENGTH)!r}, or another length"
        )
    return scaling


def find_kind(scaling: Any) -> str | None:
    """Return the kind of a scaling, such as "ntk"; None if its class has no name."""
    return next((kind for kind, known in _KINDS.items() if known is type(scaling)), None)


def method_name(scaling: Any) -> str:
    """Return the name that `parse_method` parses to a scaling; its repr if it has no name.

    The name of a dynamic scaling has no training length, and no values that a name may leave out.

    Example:
        >>> import ntk_alibi as na
        >>> from ntk_alibi.methods import method_name
        >>> method_name(na.NTK(4.0)), method_name(na.DynamicFlatHeads(2.0))
        ('ntk:4', 'dynamic-flat')
    """
    if scaling is None:
        return ORIGINAL
    kind = find_kind(scaling)
    if kind is None:
        return repr(scaling)
    (parameter,) = parameter_names(kind)
    value = getattr(scaling, parameter)
    if value == getattr(type(scaling), parameter, None):  # the default
        return kind
    return f"{kind}:{_word(value)}"


def kind_spelling(kind: str) -> str:
    """Return how methods of a kind are spelled: "ntk:FACTOR" or "dynamic-ntk[:RATE]"."""
    words = "".join(f":{name.upper()}" for name in parameter_names(kind))
    return f"{kind}{words}" if kind in STATIC else f"{kind}[{words}]"


def parameter_names(kind: str) -> tuple[str, ...]:
    """Return a kind's parameters, in the order of a method's name; of other words none."""
    if kind not in _KINDS:
        return ()
    return tuple(f.name for f in fields(_KINDS[kind]) if f.name not in OPTIONAL)


def train_length_or_default(config: Any) -> int:
    """Return the training length in a model's config, or BLOOM's if the config has none."""
    return find_train_length(config) or BLOOM_TRAIN_LENGTH


def find_train_length(config: Any) -> int | None:
    """Return the training length in a model's config, or None."""
    for name in ("seq_length", "max_seq_len", "max_position_embeddings"):
        if length := getattr(config, name, None):
            return _checks.integer(f"{name} of the model's config", length, minimum=1)
    return None


def read_entry(config: Any) -> dict[str, Any] | None:
    """Return the arguments of `patch` in a configuration, or None without an entry.

    Raises:
        TypeError: the entry is no dict.
        ValueError: it has a key that `patch` does not know.
    """
    entry = getattr(config, ENTRY, None)
    if entry is None:
        return None
    if not isinstance(entry, Mapping):
        raise TypeError(
            f"config.{ENTRY} must be a dict such as {{'method': 'ntk:4', 'window': 4096}}, got "
            f"{_checks.briefly(entry)}"
        )
    for key in entry:
        if key not in KEYS:
            raise ValueError(
                f"config.{ENTRY} must have no keys but {', '.join(KEYS)}, got {key!r}"
                f"{_names.did_you_mean(str(key), KEYS)}"
            )
    return dict(entry)


def _parse_parameters(
    name: str, kind: str, words: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the parameter in a method's name, such as 4 in "ntk:4", and the words behind it.

    A parameter may be left out where its class has a default.
    """
    for parameter in parameter_names(kind):
        try:
            return {parameter: _number(words[0])}, list(words[1:])
        except (IndexError, ValueError):
            if hasattr(_KINDS[kind], parameter):
                return {}, list(words)
    known = ", ".join(map(kind_spelling, _KINDS))
    near = _names.find_closest(kind, _KINDS, similarity=0.6)
    advice = "" if near is None else f": did you mean {_meant(near, words)}?"
    former = [x for x in (kind, *(w.partition("=")[0] for w in words)) if x in _names.FORMER]
    if former:
        advice = f": {_names.FORMER[former[0]]}"
    raise ValueError(
        f"method must be original or one of {known}, got {_checks.briefly(name)}{advice}"
    )


def _meant(kind: str, words: Sequence[str]) -> str:
    """Return a name of a kind with the value of another name, or with an example."""
    try:
        return f"{kind}:{_word(_number(words[0]))}"
    except (IndexError, ValueError):
        return f"{kind}:4" if kind in STATIC else kind


def _number(word: str) -> float:
    number = float(word)
    return int(number) if number.is_integer() else number


def _word(number: float) -> str:
    return repr(number).removesuffix(".0")


def _log_n_words(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.partition("=")[0] == "logn"]


def _take_log_n(
    name: str, words: list[str], train_length: int | None
) -> tuple[list[str], LogN | None]:
    """Return the words of a method's name without its log-n factor, and the factor."""
    found = _log_n_words(words)
    if not found:
        return words, None
    if len(found) > 1:
        raise ValueError(f"{name!r} must name logn once, got {len(found)}")
    text = found[0].partition("=")[2]
    try:
        strength = float(text)
    except ValueError:
        raise ValueError(f"logn in {name!r} must be a number, got {text!r}") from None
    if train_length is None:
        raise ValueError(
            f"logn in {name!r} must have a training length, which the model's config does not "
            "contain, got None: give log_n=LogN(train_length, ...) in its place"
        )
    return [w for w in words if w != found[0]], LogN(train_length, strength)
