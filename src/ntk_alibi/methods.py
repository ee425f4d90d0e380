"""Names of methods: "ntk:4" and its like mean a scaling and a log-n factor.

The command line, `patch`, the harness, tables and plots share these names. The module also reads
from a model's config: the training length and the entry of a patch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ntk_alibi import _checks, _names
from ntk_alibi.positions.log_n import LogN
from ntk_alibi.scaling import (
    DYNAMIC_TYPES,
    OPTIONAL,
    STATIC_TYPES,
    Scaling,
    check_one_layer,
    checked_scaling,
    scaling_from_config,
    trained_at,
)

#: Name of the unchanged model.
ORIGINAL = "original"

#: The method for texts of any length, and the advice, which docs/choose-a-method.md derives.
RECOMMENDED = "dynamic-flat"
ADVICE = (
    f"{RECOMMENDED}; for texts of one length ntk:FACTOR or flat:FACTOR, which find more; "
    "beyond 8 training lengths try each with logn=0.5, too"
)

#: The attribute of a configuration, and what it may hold: arguments of `patch`.
ENTRY = "ntk_alibi"
KEYS = ("method", "attention", "window", "sink", "causal_block", "log_n")

#: Scalings by kind, which is the first word of a method's name. Static scalings take a factor,
#: dynamic scalings a rate, the training length and `per`.
STATIC = {scaling.kind: scaling for scaling in STATIC_TYPES.values()}
DYNAMIC = {scaling.kind: scaling for scaling in DYNAMIC_TYPES.values()}
_KINDS = STATIC | DYNAMIC

#: Recommended values, which a name may leave out, where the class has another default or none.
_RECOMMENDED_VALUES = {("dynamic-ntk", "rate"): 2.0}

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
    """Parse a method's name, such as "original", "ntk:4", "flat:8:0.5" or "dynamic-flat".

    The first number is the factor, or the rate of a dynamic method. A recommended value may be left
    out: "dynamic-flat" is "dynamic-flat:2". Options may follow, in any order:

    - a number: the share of heads that "flat" and "dynamic-flat" stretch;
    - "query", the default, or "sequence" (as published): whose length a dynamic factor grows with;
    - "layers=0+2": the layers to scale;
    - "logn=0.5" or "ssmax=0.5": `LogN` with this strength, for scores without or with their bias.
      It may follow "original", too.

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
        >>> parse_method("flat:8:layers=1", train_length=2048).scaling
        FlatHeads(factor=8.0, share=0.25, layers=(1,))
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
    scaling = _KINDS[kind]
    options = _parse_options(name, words, scaling)
    if kind in DYNAMIC:
        options = {"per": "query", "train_length": train_length, **options}
    return Method(name, scaling(**values, **options), log_n)


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
    if hasattr(scaling, "trained_at") and train_length is not None:
        scaling = trained_at(scaling, train_length)
    return scaling, log_n


def as_scaling(value: Any, train_length: int | None = None, *, name: str = "scaling") -> Any:
    """Return the scaling of one layer that a name, a dict or an object means; None for none.

    Args:
        value: what an argument `scaling` takes.
        train_length: the training length of names and dicts without one; None if nothing has one.
        name: the argument's name in errors.

    Raises:
        TypeError, ValueError: value is none of these, is wrong, has a factor of scores, or lacks
            the training length; the scaling is for some layers.
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
    check_one_layer(scaling)
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
    values = vars(scaling)
    words = [_word(values[name]) for name in parameter_names(kind)]
    if values.get("share") != getattr(type(scaling), "share", None):  # the default
        words.append(_word(values["share"]))
    elif parameter_names(kind) == ("rate",) and values["rate"] == _recommended(kind, "rate"):
        words = []
    if values.get("per") == "sequence":
        words.append("sequence")
    if values["layers"] is not None:
        words.append(f"layers={'+'.join(map(str, values['layers']))}")
    return ":".join([kind, *words])


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
) -> tuple[dict[str, float], list[str]]:
    """Return the parameters in a method's name, such as 4 in "ntk:4", and the words behind them."""
    wanted = parameter_names(kind)
    found: dict[str, float] = {}
    for parameter, word in zip(wanted, words, strict=False):
        try:
            found[parameter] = _number(word)
        except ValueError:
            break
    values: dict[str, Any] = {x: found.get(x, _recommended(kind, x)) for x in wanted}
    if wanted and None not in values.values():
        return values, list(words[len(found) :])
    known = ", ".join(map(kind_spelling, _KINDS))
    near = _names.find_closest(kind, _KINDS, similarity=0.6)
    advice = "" if near is None else f": did you mean {kind_spelling(near)}?"
    advice = _names.former(kind) or advice
    raise ValueError(
        f"method must be original or one of {known}, got {_checks.briefly(name)}{advice}"
    )


def _recommended(kind: str, parameter: str) -> float | None:
    """Return the value of a parameter that a name may leave out, or None."""
    default = getattr(_KINDS[kind], parameter, None)
    return _RECOMMENDED_VALUES.get((kind, parameter), default)


def _number(word: str) -> float:
    number = float(word)
    return int(number) if number.is_integer() else number


def _word(number: float) -> str:
    return repr(number).removesuffix(".0")


def _log_n_words(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.partition("=")[0] in ("logn", "ssmax")]


def _take_log_n(
    name: str, words: list[str], train_length: int | None
) -> tuple[list[str], LogN | None]:
    """Return the words of a method's name without its log-n factor, and the factor."""
    found = _log_n_words(words)
    if not found:
        return words, None
    if len(found) > 1:
        raise ValueError(f"{name!r} must name one of logn and ssmax once, got {len(found)}")
    option, _, text = found[0].partition("=")
    strength = _convert(f"{option} in {name!r}", "a number", float, text)
    if train_length is None:
        raise ValueError(
            f"{option} in {name!r} must have a training length, which the model's config does not "
            "contain, got None: give log_n=LogN(train_length, ...) in its place"
        )
    return [w for w in words if w != found[0]], LogN(train_length, strength, option == "ssmax")


#: How a scaling's options are spelled in a method's name.
_OPTION_SPELLINGS = {
    "share": "a share of the heads",
    "per": "sequence or query",
    "layers": "layers=0+2",
}

#: The words by which options begin, beside log-n factors and shares.
_OPTION_WORDS = {"per": ("sequence", "query"), "layers": ("layers=",)}


def _parse_options(name: str, words: list[str], scaling: Any) -> dict[str, Any]:
    """Return the options in a method's name as keyword arguments of its scaling."""
    options: dict[str, Any] = {}
    free = {
        x.name: _OPTION_SPELLINGS[x.name] for x in fields(scaling) if x.name in _OPTION_SPELLINGS
    }
    for word in words:
        option = "per" if word in ("sequence", "query") else "share"
        option = "layers" if word.startswith("layers=") else option
        if option not in free or (option == "share" and word[:1].isalpha()):
            known = ", ".join([*free.values(), "logn=0.5 or ssmax=0.5"])
            dynamic = "; only a dynamic method takes it, such as dynamic-ntk"
            raise ValueError(
                f"an option in {name!r} must be {known}, got {word!r}"
                f"{dynamic if option == 'per' and 'per' not in options else ''}"
                f"{'' if option != 'share' else _meant_option(word, free)}"
            )
        del free[option]
        if option == "per":
            options[option] = word
        elif option == "share":
            what = f"the share of the heads in {name!r}"
            options[option] = _convert(what, "a number", float, word)
        else:
            layers = word.removeprefix("layers=")
            what = f"layers in {name!r}"
            options[option] = _convert(what, "integers such as 0+2", _layers, layers)
    return options


def _meant_option(word: str, free: Collection[str]) -> str:
    """Return the end of an error message about a word that is no option."""
    words = [x for option, some in _OPTION_WORDS.items() if option in free for x in some]
    return _names.did_you_mean(word.partition("=")[0], [*words, "logn=", "ssmax="])


def _layers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("+")))


def _convert(what: str, expected: str, convert: Any, text: str) -> Any:
    try:
        return convert(text)
    except ValueError:
        raise ValueError(f"{what} must be {expected}, got {text!r}") from None
