"""Sparse gradients: which parameters have them, and access to their rows.

``nn.Embedding(sparse=True)`` has gradients that are sparse COO tensors: the numbers of some rows
of the table, and the values of these rows. Until it is coalesced, a row may occur several times.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, SparseAdam


class SparseParameters:
    """The parameters of one optimizer whose gradients are sparse. Every rank has the same ones.

    These are the parameters in ``given``, the weights of embeddings of ``model`` that were made
    with ``sparse=True``, and, for SparseAdam (``base``), which takes no others, all.

    Raises ``ValueError`` if ``given`` is a single tensor, or has anything but tensors.
    """

    def __init__(
        self, base: type[Optimizer], model: nn.Module | None, given: Iterable[Tensor] = ()
    ) -> None:
        if isinstance(given, Tensor):  # it would be taken apart into its rows
            raise ValueError("sparse: give a list of parameters, not a single one")
        layers = () if model is None else model.modules()
        embeddings = (each for each in layers if isinstance(each, nn.Embedding | nn.EmbeddingBag))
        known = [*given, *(each.weight for each in embeddings if each.sparse)]
        for each in known:
            if not isinstance(each, Tensor):
                raise ValueError(f"sparse: give parameters, not {type(each).__name__}")
        self._all = issubclass(base, SparseAdam)
        self._known = {id(each): weakref.ref(each) for each in known}

    def __contains__(self, parameter: object) -> bool:
        known = self._known.get(id(parameter))
        return self._all or (known is not None and known() is parameter)

    def __bool__(self) -> bool:
        """Whether there may be any."""
        return self._all or bool(self._known)


def has_rows(gradient: Tensor) -> bool:
    """Whether ``gradient`` is sparse, and consists of whole rows of its parameter."""
    return gradient.is_sparse and gradient.sparse_dim() == 1


def of_rows(numbers: Tensor, values: Tensor, parameter: Tensor) -> Tensor:
    """The sparse gradient of ``parameter`` with these rows: ``numbers`` ascend."""
    return torch.sparse_coo_tensor(
        numbers.unsqueeze(0), values, parameter.shape, is_coalesced=True, check_invariants=False
    )


def no_rows(parameter: Tensor) -> Tensor:
    """A sparse gradient of ``parameter`` without any row."""
    numbers = torch.empty(0, dtype=torch.int64, device=parameter.device)
    values = torch.empty((0, *parameter.shape[1:]), dtype=parameter.dtype, device=parameter.device)
    return of_rows(numbers, values, parameter)


def alias_of(gradient: Tensor) -> Tensor:
    """Another tensor with the same rows, in the same memory. It may get other rows.

    ``detach()`` makes one whose rows cannot be replaced.
    """
    return torch.sparse_coo_tensor(
        gradient._indices(),
        gradient._values(),
        gradient.shape,
        is_coalesced=gradient.is_coalesced(),
        check_invariants=False,
    )


def stored_bytes(gradient: Tensor) -> int:
    """The bytes of a gradient: of a sparse one, of its rows and their numbers."""
    if not gradient.is_sparse:
        return gradient.nbytes
    return gradient._values().nbytes + gradient._indices().nbytes


def values_of(gradient: Tensor) -> Tensor:
    """The values of a gradient, which share its memory: of a sparse one, each row once."""
    if not gradient.is_sparse:
        return gradient
    if not gradient.is_coalesced():
        gradient.copy_(gradient.coalesce())
    return gradient._values()
