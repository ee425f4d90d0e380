"""Comparison of one attention layer with itself, patched: its outputs tell code that changed.

The code of families outside transformers comes with the weights, in a class of each revision. Names
of parameters would say little, and hashes of source too much: what counts is what a layer computes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ntk_alibi.integrations.classes import stock_class
from ntk_alibi.integrations.forwards import as_stock
from ntk_alibi.integrations.overriding import in_evaluation, replaced

#: The greatest difference to a model's own layer, in units of its greatest output.
TOLERANCE = 1e-3

#: The number of tokens in each of two rows.
TOKENS = 24


class _Reached(Exception):  # noqa: N818 - no error
    """Ends a forward pass at the first attention layer, with the arguments of that layer."""


def example(model: Any) -> dict[str, Any]:
    """Return random input_ids, and an attention_mask with padding behind and before."""
    names = inspect.signature(stock_class(model).forward).parameters
    tables = [x for x in model.modules() if isinstance(x, nn.Embedding)]
    if not {"input_ids", "attention_mask"} <= set(names) or not tables:
        raise ValueError(
            f"example must be given for the family of {type(model).__name__}, which has no "
            "embeddings, or whose forward does not take input_ids and attention_mask"
        )
    table = max(tables, key=lambda x: x.num_embeddings)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(table.num_embeddings, (2, TOKENS), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, -TOKENS // 3 :] = 0
    mask[1, : TOKENS // 4] = 0
    device = table.weight.device
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def compare(family: Any, model: nn.Module, patch: Callable[[nn.Module], None]) -> None:
    """Patch a model, and compare its first attention layer with its own forward.

    Args:
        family: the model's family.
        model: the model, without patches.
        patch: patches it without scaling; the caller takes that back if this raises.

    Raises:
        RuntimeError: the outputs differ, or a layer did not run.
    """
    if any(x.is_meta for x in model.parameters()):
        return  # parameters have no values
    layer, given = family.layers(model)[0], family.example(model)
    with in_evaluation(model):
        with replaced(family.while_compared(model)), as_stock():
            stock = _output(family, model, layer, given, "its own code")
        patch(model)
        ours = _output(family, model, layer, given, "the patch")
    what = f"{type(layer).__name__}.forward of {type(layer).__module__}"
    if stock.shape != ours.shape:
        raise RuntimeError(
            f"{what} must return what the patch of {family.name} expects, got shape "
            f"{tuple(stock.shape)} where the patch has {tuple(ours.shape)}: the model's code is of "
            "another revision, and the model stays as it is"
        )
    real = given.get("attention_mask")
    if isinstance(real, torch.Tensor) and stock.shape[:2] == real.shape:
        stock, ours = stock[real != 0], ours[real != 0]  # padded queries may see anything
    apart = difference(stock, ours)
    allowed = max(family.compared_within, 8 * torch.finfo(stock.dtype).eps)
    if not apart <= allowed:  # NaN, too
        raise RuntimeError(
            f"{what} must compute what the patch of {family.name} does without scaling, but on "
            f"{given_text(given)} the outputs differ by {apart:.1e} of the greatest one, "
            f"more than {allowed:.0e}: the model's code is of another revision, and the model "
            "stays as it is"
        )


def difference(stock: torch.Tensor, ours: torch.Tensor) -> float:
    """Return the greatest difference of outputs, in units of the greatest stock one."""
    most = float(stock.double().abs().max())
    return float((stock.double() - ours.double()).abs().max()) / max(most, 1e-30)


def main_output(output: Any) -> torch.Tensor:
    """Return the output of a layer, which may be the first item of what its forward returns."""
    while not isinstance(output, torch.Tensor):
        output = output[0]
    return output


def given_text(given: dict[str, Any]) -> str:
    """Return words for the arguments of an example."""
    sizes = [f"{k} {tuple(x.shape)}" for k, x in given.items() if isinstance(x, torch.Tensor)]
    return f"random {' and '.join(sizes)}" if sizes else "its example"


def _output(
    family: Any, model: nn.Module, layer: nn.Module, given: dict[str, Any], whose: str
) -> torch.Tensor:
    """Return what the first attention layer returns; the rest of the model does not run."""

    def stop(_: nn.Module, __: Any, output: Any) -> None:
        raise _Reached(output)

    try:
        with layer.register_forward_hook(stop), torch.no_grad():
            model(**given)
    except _Reached as reached:
        return main_output(*reached.args).detach().clone()
    except Exception as error:
        raise RuntimeError(
            f"{type(layer).__name__} of {family.name} must run on {given_text(given)}, by which a "
            f"patch is compared with the model, but {whose} raised {error!r}: the model stays as "
            "it is"
        ) from error
    raise RuntimeError(
        f"model must call its attention layer {type(layer).__name__}, got a forward of "
        f"{type(model).__name__} that did not: the model stays as it is"
    )
