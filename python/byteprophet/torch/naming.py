"""Names of gradients: what the ranks know a tensor by.

A name stands for one tensor on every rank, and the same one each time. So names follow from the
training script alone: from ``named_parameters``, from the model, or from positions. Two optimizers
whose parameters have the same names (two networks with a ``conv1.weight``) get a suffix for the
later one; an optimizer made anew for the same parameters keeps the names. The name of a tensor that
is gone is free for one of the same size and type: BytePS fixes both with the first push.

Whether a tensor is gone must not depend on when a rank's garbage was collected, so it is collected
before a name is found to be taken.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_NameList = list[tuple[str, Tensor]]


@dataclass(frozen=True)
class Named:
    """What a name stands for."""

    tensor: weakref.ref[Tensor]
    elements: int
    dtype: torch.dtype

    def is_free_for(self, other: Tensor) -> bool:
        """Whether ``other`` may have the name."""
        tensor = self.tensor()
        fits = (self.elements, self.dtype) == (other.numel(), other.dtype)
        return tensor is other or (tensor is None and fits)


Names = dict[str, Named]  # of this process


def optimizer_parameters(optimizer: Optimizer) -> list[Tensor]:
    """All parameters, group by group."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def check_named(named_parameters: Iterable[tuple[str, Tensor]]) -> _NameList:
    """``named_parameters`` as a list; ``ValueError`` if it is not what ``model`` gives."""
    named = list(named_parameters)
    for item in named:
        if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Tensor)):
            raise ValueError(
                "named_parameters must be pairs of name and tensor, as "
                f"model.named_parameters() gives them, not {type(item).__name__}"
            )
    names = [name for name, _ in named]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ValueError(f"names in named_parameters must be unique; twice: {', '.join(doubled)}")
    return named


def name_parameters(
    parameters: Iterable[Tensor],
    named_parameters: Iterable[tuple[str, Tensor]] | None,
    model: nn.Module | None,
    taken: Names,
    first_unnamed: int = 0,
) -> _NameList:
    """A unique name for each of ``parameters``, in their order; ``taken`` is brought up to date.

    ``first_unnamed`` numbers those without a name: ``push_pull.noname.<number>``.
    """
    if named_parameters is None and model is not None:
        named_parameters = model.named_parameters()
    given = {id(p): name for name, p in reversed(check_named(named_parameters or []))}
    unnamed = itertools.count(first_unnamed)
    named = [(given.get(id(p)) or f"push_pull.noname.{next(unnamed)}", p) for p in parameters]
    if any(name in taken and taken[name].tensor() is not p for name, p in named):
        gc.collect()
    return [(_unique(name, p, taken), p) for name, p in named]


def _unique(name: str, parameter: Tensor, taken: Names) -> str:
    """``name``, or ``name@2`` and so on if it stands for another tensor already."""
    for number in itertools.count(2):
        known = taken.get(name)
        if known is None or known.is_free_for(parameter):
            break
        name = f"{name.partition('@')[0]}@{number}"
    taken[name] = Named(weakref.ref(parameter), parameter.numel(), parameter.dtype)
    return name
