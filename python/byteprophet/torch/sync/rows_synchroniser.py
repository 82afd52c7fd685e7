"""The synchroniser of jobs without servers in which some parameters have sparse gradients.

These parameters are in no bucket: a gradient of theirs is averaged on its own (``rows.py``), and
every rank updates all of its parameter. All other parameters are synchronised as without them.

Threads: as in the base class. Besides, a worker computes what lies between the operations of a
sparse gradient.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Sequence

from torch import Tensor

from byteprophet.allreduce.rows import MOST_ROWS
from byteprophet.observe.span_log import process_spans
from byteprophet.torch.sync.collective_synchroniser import CollectiveSynchroniser
from byteprophet.torch.sync.completion import Done
from byteprophet.torch.sync.exchange import Exchange
from byteprophet.torch.sync.rows import Rows
from byteprophet.torch.sync.setup import Setup
from byteprophet.torch.sync.worker import Worker

_JOIN_S = 5.0


class RowsSynchroniser(CollectiveSynchroniser):
    """There is one per optimizer. ``sparse`` has the parameters whose gradients are sparse."""

    takes_rows = True

    def __init__(self, exchange: Exchange, setup: Setup, sparse: Container[Tensor]) -> None:
        super().__init__(exchange, setup)
        self._sparse = sparse
        self._sparse_names: frozenset[str] = frozenset()
        self._worker = Worker("byteprophet-rows")
        weakref.finalize(self, self._worker.end).atexit = False
        self._rows = Rows(self._operations, exchange.rank, exchange.size, self._worker)

    def declare_parameters(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """Make new buckets of the parameters whose gradients are dense.

        Raises ``ValueError`` that names a parameter whose gradients cannot be averaged by rows.
        """
        sparse = [(name, parameter) for name, parameter in named if parameter in self._sparse]
        for name, parameter in sparse:
            self._refuse_unfit(name, parameter)
        self._sparse_names = frozenset(name for name, _ in sparse)
        super().declare_parameters(named)

    def _submit(self, parameter: str, gradient: Tensor, done: Done) -> None:
        """Average the gradient: by rows, or in its bucket."""
        if parameter in self._sparse_names:
            self._rows.submit(parameter, gradient, process_spans.iteration, done)
        else:
            super()._submit(parameter, gradient, done)

    def let_go(self, timeout_s: float) -> None:
        """Wait until no thread holds a tensor."""
        super().let_go(timeout_s)
        self._worker.let_go(timeout_s)

    def close(self) -> None:
        """Close the exchange, and end the worker."""
        super().close()
        self._worker.end()
        self._worker.join(_JOIN_S)

    def _bucketed(self, named: Sequence[tuple[str, Tensor]]) -> Sequence[tuple[str, Tensor]]:
        return [(name, p) for name, p in named if name not in self._sparse_names]

    def _compare(self, named: Sequence[tuple[str, Tensor]]) -> None:
        self._options["sparse"] = [name for name, _ in named if name in self._sparse_names]
        super()._compare(named)

    def _refuse_unfit(self, name: str, parameter: Tensor) -> None:
        why = ""
        if self._exchange.in_order:
            why = (
                "the collectives of a process group cannot average: it needs tensors on CPUs and "
                "the transport 'sockets'"
            )
        elif not parameter.dim():
            why = "cannot be, because it is a scalar: it has no rows"
        elif parameter.shape[0] > MOST_ROWS:
            why = f"cannot be averaged, because it has more than {MOST_ROWS} rows"
        if why:
            raise ValueError(
                f"sync={self.mode!r}: the gradients of parameter '{name}' are sparse, which {why}"
            )
