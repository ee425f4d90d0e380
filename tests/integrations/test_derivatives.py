"""Every derivative that torch takes of a patched model, against autograd in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

import ntk_alibi as na
from table_families import FAMILIES, model_of

Parameters = dict[str, torch.Tensor]
IDS = torch.randint(3, 60, (3, 11), generator=torch.Generator().manual_seed(2))
#: Parameters without an effect have gradients of zeros, as in torch.func.
UNUSED: Any = {"allow_unused": True, "materialize_grads": True}
MASK = torch.arange(11) < torch.tensor([[11], [7], [9]])


def loss(model: Any, parameters: Parameters, ids: torch.Tensor, mask: Any) -> torch.Tensor:
    """Return a scalar of the output of real tokens."""
    given = {"input_ids": ids} if mask is None else {"input_ids": ids, "attention_mask": mask}
    if getattr(model.config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = ids.flip(-1)
    hidden = functional_call(model, parameters, kwargs=given)
    if not isinstance(hidden, torch.Tensor):
        hidden = hidden[0]
    if mask is not None and "decoder_input_ids" not in given:
        hidden = torch.where(mask[..., None], hidden, 0.0)
    return hidden.sin().sum() / 10


def direction(parameters: Parameters) -> Parameters:
    generator = torch.Generator().manual_seed(3)
    return {
        name: 0.01 * torch.rand(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)
        for name, x in parameters.items()
    }


def dual(f: Callable[..., Any], at: Parameters, ids: Any, mask: Any) -> torch.Tensor:
    with forward_ad.dual_level():
        given = {k: forward_ad.make_dual(at[k], d) for k, d in direction(at).items()}
        tangent: torch.Tensor = forward_ad.unpack_dual(f(given, ids, mask)).tangent
    return tangent


def each_sample(f: Callable[..., Any], at: Parameters, ids: Any, mask: Any) -> Any:
    def one(parameters: Parameters, ids: Any, mask: Any) -> torch.Tensor:
        value: torch.Tensor = f(parameters, ids[None], None if mask is None else mask[None])
        return value

    return vmap(grad(one), (None, 0, None if mask is None else 0))(at, ids, mask)


def autograd_twice(f: Callable[..., Any], at: Parameters, ids: Any, mask: Any) -> Parameters:
    """Return the product of the Hessian and the direction."""
    given = {name: x.detach().requires_grad_() for name, x in at.items()}
    value = f(given, ids, mask)
    first = torch.autograd.grad(value, list(given.values()), **UNUSED, create_graph=True)
    slope = sum((x * d).sum() for x, d in zip(first, direction(at).values(), strict=True))
    found = torch.autograd.grad(slope, list(given.values()), **UNUSED)
    return dict(zip(given, found, strict=True))


#: Transforms, each with the same by autograd alone.
Transform = Callable[[Callable[..., Any], Parameters, Any, Any], Any]
TRANSFORMS: dict[str, tuple[Transform, Transform]] = {}


def by_autograd(f: Callable[..., Any], at: Parameters, ids: Any, mask: Any) -> Parameters:
    given = {name: x.detach().requires_grad_() for name, x in at.items()}
    found = torch.autograd.grad(f(given, ids, mask), list(given.values()), **UNUSED)
    return dict(zip(given, found, strict=True))


def slope(f: Callable[..., Any], at: Parameters, ids: Any, mask: Any) -> torch.Tensor:
    first = by_autograd(f, at, ids, mask)
    return torch.stack([(first[k] * d).sum() for k, d in direction(at).items()]).sum()


def rows(f: Callable[..., Any], at: Parameters, ids: Any, mask: Any) -> Parameters:
    masks = [None] * len(ids) if mask is None else [x[None] for x in mask]
    found = [by_autograd(f, at, x[None], y) for x, y in zip(ids, masks, strict=True)]
    return {name: torch.stack([x[name] for x in found]) for name in at}


TRANSFORMS = {
    "jvp": (lambda f, at, *x: jvp(lambda p: f(p, *x), (at,), (direction(at),))[1], slope),
    "dual tensors": (dual, slope),
    "grad": (lambda f, at, *x: grad(f)(at, *x), by_autograd),
    "vmap of grad": (each_sample, rows),
    "jvp of grad": (
        lambda f, at, *x: jvp(lambda p: grad(f)(p, *x), (at,), (direction(at),))[1],
        autograd_twice,
    ),
    "autograd twice": (autograd_twice, autograd_twice),
}

#: Rows in which a model does something that torch cannot transform, with a patch or without.
FOREIGN: dict[tuple[str, ...], str] = {
    ("switch", "jvp"): "it counts the tokens of experts in place",
    ("switch", "grad"): "likewise",
    ("switch", "vmap of grad"): "likewise",
    ("switch", "jvp of grad"): "likewise",
    ("baichuan", "jvp"): "its checkpoints need inputs that require grad",
    ("baichuan", "grad"): "likewise",
    ("baichuan", "vmap of grad"): "likewise",
    ("baichuan", "jvp of grad"): "likewise",
    ("bloom", "eager", "jvp"): "its GELU has no rule for torch.func and forward mode",
    ("bloom", "eager", "dual tensors"): "likewise",
    ("bloom", "eager", "grad"): "likewise",
    ("bloom", "eager", "vmap of grad"): "likewise",
    ("bloom", "eager", "jvp of grad"): "likewise",
    ("mosaic", "vmap of grad"): "it removes padding, which vmap cannot",
}
#: Rows that older versions of transformers cannot transform either.
LATER = {"mpnet", "none", "vmap of grad"}
NEEDS = pytest.mark.needs("transformers >= 5.12", "MPNet looks for padding in the tokens")
QUICK = ("bloom", "mpt", "falcon", "t5", "mpnet", "jina")


def rows_of_table() -> Iterator[Any]:
    for family in FAMILIES:
        for padding in ("none", "right"):
            for form in ("fused", "eager"):
                quick = family in QUICK and (padding == "right") == (form == "fused")
                marks = [] if quick else [pytest.mark.slow]
                for transform in TRANSFORMS:
                    row = family, padding, form, transform
                    if any(set(entry) <= set(row) for entry in FOREIGN):
                        continue
                    needs = [NEEDS] if set(row) >= LATER else []
                    yield pytest.param(
                        family, padding, form, transform, marks=[*marks, *needs],
                        id=f"{family} | {padding} | {form} | {transform}",
                    )  # fmt: skip


@pytest.mark.parametrize(("family", "padding", "form", "transform"), [*rows_of_table()])
def test_a_derivative_of_a_patched_model(
    family: str, padding: str, form: str, transform: str
) -> None:
    model = model_of(family)
    stock = copy.deepcopy(model).double()
    mask = MASK if padding == "right" else None
    ours, exact = TRANSFORMS[transform]

    def of(model: Any) -> tuple[Callable[..., Any], Parameters]:
        at = {name: x.detach() for name, x in model.named_parameters() if x.ndim == 2}
        return lambda *x: loss(model, *x), at

    with sdpa_kernel(SDPBackend.MATH):  # torch's other kernels have no second derivatives
        expected = exact(*of(stock), IDS, mask)
    with na.patch(model, attention=form, **FAMILIES[family].patch):
        found = ours(*of(model), IDS, mask)
    if not isinstance(found, dict):
        found, expected = {"": found}, {"": expected}
    size = max(x.abs().max() for x in expected.values())
    for name, theirs in expected.items():
        assert (found[name].double() - theirs).abs().max() <= 1e-4 * size
