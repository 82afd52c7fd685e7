"""What makes gradients the same on all ranks of a paced job: BytePS, or something else beside it.

A runtime is a name and the module that each worker process runs (``python -m MODULE CONFIG.toml``).
To add one, write a worker like ``workload/ddp_worker.py`` and put an entry into ``RUNTIMES``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from byteprophet.errors import UserError
from byteprophet.workload import ddp_settings

BYTEPS = "byteps"

_Resolve = Callable[[Mapping[str, int]], dict[str, int]]


@dataclass(frozen=True)
class Runtime:
    """The ``worker`` module, and how settings that differ are completed.

    ``resolve`` is a collective runtime's: in it ranks reduce among themselves, without servers and
    schedulers. None: BytePS', whose settings are its schedulers'.
    """

    worker: str
    resolve: _Resolve | None = None

    @property
    def collective(self) -> bool:
        """Whether ranks reduce among themselves."""
        return self.resolve is not None


RUNTIMES: Mapping[str, Runtime] = {
    BYTEPS: Runtime("byteprophet.workload.worker"),
    "ddp": Runtime("byteprophet.workload.ddp_worker", ddp_settings.resolve),
}


def runtime_of(name: str) -> Runtime:
    """The runtime of this name; UserError if there is none."""
    if name not in RUNTIMES:
        raise UserError(f"runtime {name!r}: choose one of {', '.join(RUNTIMES)}")
    return RUNTIMES[name]
