"""Runtimes: what makes gradients the same on all ranks of a paced job, BytePS or something else.

A runtime is a name and the module that each worker process runs (``python -m MODULE CONFIG.toml``).
To add one, write a worker like ``paced/ddp_worker.py``, define its settings in
``paced/collective_settings.py``, and add it to ``RUNTIMES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from byteprophet.errors import UserError
from byteprophet.paced import collective_settings

BYTEPS = "byteps"


@dataclass(frozen=True)
class Runtime:
    """The ``worker`` module. ``collective``: ranks reduce among themselves.

    Collective runtimes have no servers and no schedulers, and settings of their own.
    """

    name: str
    worker: str

    @property
    def collective(self) -> bool:
        """Whether ranks reduce among themselves."""
        return self.name != BYTEPS

    def resolve(self, overrides: Mapping[str, int], payload_bps: int | None) -> dict[str, int]:
        """All settings of a collective runtime; UserError if one is wrong.

        ``payload_bps``: rate of the slowest link, for runtimes that need it and were not given it.
        """
        settings = collective_settings.resolve(self.name, overrides)
        if settings.get(collective_settings.PAYLOAD) == 0 and payload_bps is not None:
            settings[collective_settings.PAYLOAD] = payload_bps
        return settings


_WORKERS = {
    BYTEPS: "worker",
    "ddp": "ddp_worker",
    "fsdp2": "fsdp2_worker",
    "wfbp": "wfbp_worker",
    **dict.fromkeys(collective_settings.SYNCS, "collective_worker"),
}
RUNTIMES: Mapping[str, Runtime] = {
    name: Runtime(name, f"byteprophet.paced.{worker}") for name, worker in _WORKERS.items()
}


def runtime_of(name: str) -> Runtime:
    """The runtime of this name; UserError if there is none."""
    if name not in RUNTIMES:
        raise UserError(f"runtime {name!r}: choose one of {', '.join(RUNTIMES)}")
    return RUNTIMES[name]
