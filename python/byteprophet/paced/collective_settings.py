"""Settings of the runtimes that reduce a paced job's gradients without BytePS.

There is one table per runtime. Every setting is an integer; booleans are 0 or 1. The defaults are
the fastest that we know on slow links.

- ``ddp``: buckets are far smaller than PyTorch's 25 MiB, so that the link has work early and little
  is left to send when backward ends. Gradients live in their buckets, and the graph is declared to
  be the same in every iteration.
- ``fsdp2``: a unit of ``fully_shard`` ends once it holds at least ``unit_layers`` layers and
  ``unit_bytes`` bytes. With ``asynchronous``, transfers overlap layers, which needs extra code on a
  CPU (``fsdp2_worker.py``); without it, they are as in PyTorch. With ``all_to_all`` (which requires
  ``asynchronous``), gradients cross the link once instead of twice, because gloo's reduce-scatter
  is an all-reduce inside.
- ``wfbp``: buckets have ``bucket_bytes``. If that is 0, gradients are merged according to the
  link's rate (``payload_bps``, which a bench sets for limited links; 0 means no limit) and
  ``message_cost_ns``, the cost of each half of an all-reduce beyond its bytes (gloo's all-reduce of
  64 bytes takes 2 ms).
- ``allreduce``, ``dear``, ``dear-planned``: buckets have ``bucket_bytes``; with ``tune``, a size
  that is tuned during training; with ``near_layer``, four layers. At most one of these may be set.
  If all are 0, buckets are planned from the first iterations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from byteprophet.allreduce.strategies import WFBP_MESSAGE_NS
from byteprophet.errors import UserError

PAYLOAD = "payload_bps"
SYNCS = ("allreduce", "dear", "dear-planned")
"""Our own runtimes, as ``byteprophet.torch.DistributedOptimizer`` calls them."""

_PLANNED_AFTER = 16  # iterations: 12 to agree on an order and to measure, then search and exchange
_LARGEST = 1 << 40


@dataclass(frozen=True)
class _Setting:
    default: int
    smallest: int
    largest: int


def _switch(default: int) -> _Setting:
    return _Setting(default, 0, 1)


_GROUPED: Mapping[str, _Setting] = {
    "bucket_bytes": _Setting(0, 0, _LARGEST),
    "tune": _switch(0),
    "near_layer": _switch(0),
}
_TABLES: Mapping[str, Mapping[str, _Setting]] = {
    "ddp": {
        "bucket_cap_mb": _Setting(1, 1, 1 << 20),
        "gradient_as_bucket_view": _switch(1),
        "static_graph": _switch(1),
    },
    "fsdp2": {
        "unit_layers": _Setting(1, 1, 1 << 20),
        "unit_bytes": _Setting(4 << 20, 0, _LARGEST),
        "asynchronous": _switch(1),
        "all_to_all": _switch(1),
    },
    "wfbp": {
        "bucket_bytes": _Setting(0, 0, _LARGEST),
        "message_cost_ns": _Setting(WFBP_MESSAGE_NS, 0, 1_000_000_000),
        PAYLOAD: _Setting(0, 0, _LARGEST),
    },
    **dict.fromkeys(SYNCS, _GROUPED),
}


def resolve(runtime: str, overrides: Mapping[str, int]) -> dict[str, int]:
    """All settings of ``runtime``, with ``overrides`` in place of defaults.

    Raises ``UserError`` if an override has an unknown name or an invalid value.
    """
    table = _TABLES[runtime]
    for name, value in overrides.items():
        if name not in table:
            raise UserError(f"setting {name!r}: {runtime} has only {', '.join(table)}")
        smallest, largest = table[name].smallest, table[name].largest
        if not smallest <= value <= largest:
            raise UserError(f"setting {name}={value}: must be from {smallest} to {largest}")
    settings = {name: setting.default for name, setting in table.items()} | dict(overrides)
    given = [name for name in _GROUPED if settings.get(name)]
    if runtime in SYNCS and len(given) > 1:
        raise UserError(f"settings {' and '.join(given)}: they exclude each other; give one")
    return settings


def settles_after(runtime: str, settings: Mapping[str, int]) -> int:
    """The number of iterations after which ``runtime`` keeps its buckets; 0 if it never changes."""
    if runtime not in SYNCS or settings.get("bucket_bytes") or settings.get("near_layer"):
        return 0
    if not settings.get("tune"):
        return _PLANNED_AFTER
    from byteprophet.allreduce.tuner import ITERATIONS_PER_TRIAL, TRIALS  # scipy loads slowly

    return TRIALS * ITERATIONS_PER_TRIAL + 10
