"""Wrong arguments: a ValueError or a TypeError that names the argument, never anything else."""

from __future__ import annotations

import re
from typing import Any

import torch

import ntk_alibi as na
from fuzz.compare import WrongError
from fuzz.draw import Draw
from fuzz.drawn.wrong_arguments import FUNCTIONS, Function
from fuzz.wrong_values import ANYTHING
from ntk_alibi._checks import briefly

#: The most characters of a message, which is a line of text.
LONGEST = 500

#: Anything that somebody might pass.
VALUES = (*ANYTHING, na.NTK(2.0), na.ALiBi(4), na.RoPE(8), na.KeyNorms())


def bad_argument(draw: Draw) -> None:
    """Pass a value that is wrong for its argument."""
    function = draw.one_of(FUNCTIONS)
    argument = draw.one_of(list(function.wrong))
    value = draw.one_of(function.wrong[argument])
    if not _call(draw, function, argument, value):
        raise WrongError(f"{_text(function, argument, value)} was taken")


def any_argument(draw: Draw) -> None:
    """Pass any value: it is accepted, or refused in the same way."""
    function = draw.one_of(FUNCTIONS)
    argument = draw.one_of(list(function.wrong))
    _call(draw, function, argument, draw.one_of(VALUES))


def _call(draw: Draw, function: Function, argument: str, value: Any) -> bool:
    """Return whether a call was refused; its other arguments are tensors at times."""
    right = dict(function.right)
    if function.name == "attention" and draw.chance(0.4):
        dtype, grad = draw.one_of((torch.float32, torch.float64)), draw.chance(0.5)
        for name in ("query", "key", "value"):
            right[name] = torch.from_numpy(right[name].copy()).to(dtype).requires_grad_(grad)
    try:
        function.call(**{**right, argument: value})
    except (TypeError, ValueError) as error:
        names = "|".join((argument, *function.also.get(argument, ())))
        if not re.search(rf"\b({names})\b", str(error)):
            text = _text(function, argument, value)
            raise WrongError(f"{text} is refused without its name: {error!r}") from error
        if not str(error).isprintable() or len(str(error)) > LONGEST:
            raise WrongError(f"{_text(function, argument, value)} gets {error!r}") from error
        return True
    except Exception as error:
        raise WrongError(f"{_text(function, argument, value)} raises {error!r}") from error
    finally:
        na.set_num_threads(1)  # one of the functions sets it
    return False


def _text(function: Function, argument: str, value: Any) -> str:
    return f"{function.name}({argument}={briefly(value)} {getattr(value, 'dtype', '')})"
