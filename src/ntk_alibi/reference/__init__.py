"""Reference implementations: each formula as one float64 NumPy function, as its paper writes it.

The package is tested against them. They share no code with the compiled core. They are written to
be read and keep all intermediate results in memory, so use them for small inputs only.
"""

from inspect import isfunction

from ntk_alibi.reference.biases import *  # noqa: F403
from ntk_alibi.reference.dense_attention import *  # noqa: F403
from ntk_alibi.reference.dropout import *  # noqa: F403
from ntk_alibi.reference.masks import *  # noqa: F403
from ntk_alibi.reference.positions import *  # noqa: F403
from ntk_alibi.reference.precision import *  # noqa: F403
from ntk_alibi.reference.slopes import *  # noqa: F403

#: Every public function of these modules.
__all__ = sorted(
    name
    for name, thing in vars().items()
    if isfunction(thing) and thing.__module__.startswith(__name__)
)
