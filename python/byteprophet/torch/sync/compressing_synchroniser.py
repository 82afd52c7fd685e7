"""The synchroniser of jobs without servers whose strategy compresses some gradients.

These are in no bucket: each is averaged on its own (``compressing.py``), before the buckets of its
iteration, and every rank updates all of its parameter. All other parameters are synchronised as
without them, and tables with sparse gradients by rows.

Threads: as in the base class, whose worker also compresses.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import torch
from torch import Tensor

from byteprophet.errors import UserError
from byteprophet.job.compression import why_unfit
from byteprophet.job.staleness import steps_by_name
from byteprophet.job.strategy_file import Used
from byteprophet.observe.span_log import process_spans
from byteprophet.torch.sync.completion import Done
from byteprophet.torch.sync.compressing import Compressing
from byteprophet.torch.sync.exchange import Exchange
from byteprophet.torch.sync.rows_synchroniser import RowsSynchroniser
from byteprophet.torch.sync.setup import Setup


class CompressingSynchroniser(RowsSynchroniser):
    """There is one per optimizer. ``given`` is its strategy, which is in the file ``path``."""

    def __init__(
        self, exchange: Exchange, setup: Setup, sparse: Container[Tensor], given: Used, path: str
    ) -> None:
        super().__init__(exchange, setup, sparse)
        self._given = given
        self._path = path
        self._compressors = given.strategy.compressor_of
        self._delays = steps_by_name(given.strategy.staleness)
        self._declared: Mapping[str, int] = {}  # all parameters, with their bytes
        self._compressing = Compressing(
            self._operations, exchange.rank, exchange.size, self._worker
        )
        self.compression = self._compressing.state

    def declare_parameters(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """Make new buckets of the parameters whose gradients travel as they are.

        Raises ``UserError`` that names a parameter which the strategy compresses, and which is not
        there, or whose gradient cannot be compressed.
        """
        tensors = dict(named)
        sizes = {each.name: each.size_bytes for each in self._given.model.parameters}
        for name in self._compressors:
            why = self._why_refused(name, tensors.get(name), sizes[name])
            if why:
                raise UserError(f"{self._path}: it compresses the gradient of {name!r}, but {why}")
        self._declared = {name: each.nbytes for name, each in named}
        super().declare_parameters(named)
        for name, compressor in self._compressors.items():
            self._compressing.take(name, compressor, tuple(tensors[name].shape))

    def _submit(self, parameter: str, gradient: Tensor, done: Done) -> None:
        """Average the gradient: compressed, by rows, or in its bucket."""
        if parameter in self._compressors:
            late = self._delays.get(parameter, 0)
            self._compressing.submit(parameter, gradient, process_spans.iteration, done, late)
        else:
            super()._submit(parameter, gradient, done)

    def _bucketed(self, named: Sequence[tuple[str, Tensor]]) -> Sequence[tuple[str, Tensor]]:
        left = super()._bucketed(named)
        return [(name, each) for name, each in left if name not in self._compressors]

    def _recorded_sizes(self) -> dict[str, int]:
        """The bytes of bucketed and compressed gradients, in forward order as far as it is known.

        ``position`` has the order that all ranks have agreed on.
        """
        sizes = super()._recorded_sizes()
        sizes |= {name: self._declared[name] for name in self._compressors}
        agreed = self.bucketing.position
        declared = {name: number for number, name in enumerate(self._declared)}
        order = sorted(sizes, key=lambda name: (agreed.get(name, len(agreed)), declared[name]))
        return {name: sizes[name] for name in order}

    def _why_refused(self, name: str, parameter: Tensor | None, size_bytes: int) -> str:
        if parameter is None:
            return "this model has no such parameter"
        if parameter.nbytes != size_bytes:
            return f"it has {parameter.nbytes} bytes in this model, not {size_bytes}"
        if self._exchange.in_order:
            return (
                "the collectives of a process group send no compressed gradients: this needs "
                "tensors on CPUs and the transport 'sockets'"
            )
        if parameter in self._sparse:
            return "its gradients are sparse"
        if parameter.dtype != torch.float32:
            return f"it is of {parameter.dtype}, not of torch.float32"
        return why_unfit(self._compressors[name], tuple(parameter.shape))
