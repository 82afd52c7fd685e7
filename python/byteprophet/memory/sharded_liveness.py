"""Follows the storages of an iteration on a rank whose model FSDP2 shards.

Threads: everything runs in the training thread. Meanwhile, ``UntypedStorage.resize_`` is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch.distributed.tensor import DTensor

from byteprophet.errors import UserError
from byteprophet.memory.gloo import buffers_bytes
from byteprophet.memory.liveness import Liveness, Use

_PARAMETER_BYTES = 4000
"""What the objects around a sharded parameter take on average besides those of its storages: they
are DTensors, their specifications, and FSDP2's own (measured: 2900 to 4300 bytes per parameter in
models of 32 to 320 tiny ones, 4 to 80 in a unit, with SGD and Adam)."""
_THREADS = 2  # of a process group


class ShardedLiveness(Liveness):
    """Follows the tensors inside of DTensors, storages that are resized, and gloo's buffers.

    ``overlaps``: collectives go on while others begin, as in ``torch/fsdp2/transfers.py``. Gloo
    keeps its copy of an all-gather until that is over. When that is, nobody tells, so each copy is
    counted until the all-gather's output is copied out.
    """

    def __init__(self, overlaps: bool = False) -> None:
        super().__init__()
        self._overlaps = overlaps
        self._gathered: dict[int, int] = {}  # bytes of outputs that were not copied out, by address
        self._copies: Tensor | None = None
        self._outputs_bytes: list[int] = []  # of all-gathers, since ``restart``

    def __enter__(self) -> ShardedLiveness:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._resize = resize = UntypedStorage.resize_

        def resize_and_count(storage: UntypedStorage, size_bytes: int) -> None:
            resize(storage, size_bytes)
            self.resized(storage)

        # Resizing a storage is no operation on a tensor, so a dispatch mode does not see it.
        UntypedStorage.resize_ = resize_and_count  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *raised: Any) -> None:
        UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # DTensor calls operations on the tensors inside
        held_bytes = buffers_bytes(func, args)
        name = func._schema.name
        if self._overlaps and name == "c10d::_allgather_base_":
            self._gathered[args[0].untyped_storage().data_ptr()] = held_bytes
            self._outputs_bytes.append(held_bytes)
            self._hold_copies()
        elif held_bytes:
            held = torch.empty(held_bytes, dtype=torch.uint8)
            self.track([held], Use.ACTIVATIONS)
        if name == "fsdp::split_with_sizes_copy" and self._gathered:
            self._gathered.pop(args[0].untyped_storage().data_ptr(), None)
            self._hold_copies()
        return super().__torch_dispatch__(func, types, args, kwargs)

    def restart(self) -> None:
        """See ``Liveness``."""
        super().restart()
        self._outputs_bytes.clear()

    @property
    def late_bytes(self) -> int:
        """What gloo's threads may hold at most after they have woken the training thread.

        Each of them has an output and its copy, or as large a buffer of a reduce-scatter.
        """
        return 2 * sum(sorted(self._outputs_bytes)[-_THREADS:])

    def _hold_copies(self) -> None:
        self._copies = torch.empty(sum(self._gathered.values()), dtype=torch.uint8)
        self.track([self._copies], Use.ACTIVATIONS)

    def count_sharded(self, parameters: int) -> None:
        """Count the objects around so many sharded parameters."""
        self._live[Use.OBJECTS] += _PARAMETER_BYTES * parameters

    def follow(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        """See ``Liveness``. Counts the objects around sharded parameters, too."""
        known = list(named)
        super().follow(known)
        sharded = sum(isinstance(parameter, DTensor) for _, parameter in known)
        if not sharded:
            raise UserError(
                "memory: no parameter is sharded: shard must call fully_shard on the model that it "
                "is given"
            )
        self.count_sharded(sharded)

    def _memory_of(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, DTensor):
            with torch.no_grad():
                return tensor.to_local()
        return tensor
