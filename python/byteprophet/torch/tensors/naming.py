"""Names of gradients, by which ranks identify tensors.

A name must mean the same tensor on every rank, at all times. So names depend only on the training
script: on ``named_parameters``, on the model, or on positions. If two optimizers have parameters of
the same name (two networks with a ``conv1.weight``), the later one gets a suffix. A new optimizer
of the same parameters keeps their names. The name of a tensor that no longer exists may be reused
for one of the same size and type, because BytePS fixes both with the first push.

All ranks must agree on whether a tensor still exists. So before a name is regarded as taken, what
the script has dropped is freed (``stopping.free_dropped``): from then on, only the script can hold
the tensor.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_NameList = list[tuple[str, Tensor]]


@dataclass(frozen=True)
class Named:
    """The tensor that a name stands for, with its number of elements and type."""

    tensor: weakref.ref[Tensor]
    elements: int
    dtype: torch.dtype

    def is_free_for(self, other: Tensor) -> bool:
        """Whether ``other`` may use the name."""
        tensor = self.tensor()
        fits = (self.elements, self.dtype) == (other.numel(), other.dtype)
        return tensor is other or (tensor is None and fits)


Names = dict[str, Named]  # the names that are taken


def optimizer_parameters(optimizer: Optimizer) -> list[Tensor]:
    """All parameters of ``optimizer``, in the order of its parameter groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def check_named(named_parameters: Iterable[tuple[str, Tensor]]) -> _NameList:
    """Return ``named_parameters`` as a list.

    Raises ``ValueError`` if they are not pairs of unique names and tensors.
    """
    named = list(named_parameters)
    for item in named:
        if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Tensor)):
            raise ValueError(
                "named_parameters must be pairs of name and tensor, as "
                f"model.named_parameters() gives them, not {type(item).__name__}"
            )
    counts = Counter(name for name, _ in named)
    doubled = sorted(name for name, count in counts.items() if count > 1)
    if doubled:
        raise ValueError(f"names in named_parameters must be unique; twice: {', '.join(doubled)}")
    return named


def names_for_later(
    named_parameters: Iterable[tuple[str, Tensor]],
) -> Callable[[Iterable[Tensor]], _NameList]:
    """Keep ``named_parameters`` for parameters that are added later. This keeps no tensor alive.

    Returns what finds those pairs whose tensors are among the given ones.
    """
    kept = [(name, weakref.ref(parameter)) for name, parameter in named_parameters]

    def find(parameters: Iterable[Tensor]) -> _NameList:
        new = {id(parameter) for parameter in parameters}
        found = ((name, held()) for name, held in kept)
        return [(name, each) for name, each in found if each is not None and id(each) in new]

    return find


def name_parameters(
    parameters: Iterable[Tensor],
    named_parameters: Iterable[tuple[str, Tensor]] | None,
    model: nn.Module | None,
    taken: Names,
    first_unnamed: int = 0,
    free: Callable[[], object] = gc.collect,
) -> _NameList:
    """Return pairs of a unique name and a parameter, in the order of ``parameters``.

    Adds the names to ``taken``. Parameters without a name are called ``push_pull.noname.<number>``,
    with numbers from ``first_unnamed``. If names seem to be taken, ``free`` is called, which frees
    tensors that only we hold.
    """
    if named_parameters is None and model is not None:
        named_parameters = model.named_parameters()
    given = {id(p): name for name, p in reversed(check_named(named_parameters or []))}
    unnamed = itertools.count(first_unnamed)
    named = [(given.get(id(p)) or f"push_pull.noname.{next(unnamed)}", p) for p in parameters]
    if _are_held(named, taken):
        free()
    return [(_unique(name, p, taken), p) for name, p in named]


def _are_held(named: _NameList, taken: Names) -> bool:
    """Whether another tensor that still exists has one of the names."""
    known = [(taken[name].tensor(), parameter) for name, parameter in named if name in taken]
    return any(tensor is not None and tensor is not parameter for tensor, parameter in known)


def _unique(name: str, parameter: Tensor, taken: Names) -> str:
    """Take and return ``name``, or ``name@2`` and so on if it stands for another tensor."""
    for number in itertools.count(2):
        known = taken.get(name)
        if known is None or known.is_free_for(parameter):
            break
        name = f"{name.partition('@')[0]}@{number}"
    taken[name] = Named(weakref.ref(parameter), parameter.numel(), parameter.dtype)
    return name
