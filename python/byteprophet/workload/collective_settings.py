"""What a paced job tells the runtime that reduces its gradients, where that is not BytePS.

One table per runtime; every setting is an integer, booleans are 0 or 1. The defaults are the
strongest we know on slow links.

- ``ddp``: buckets far smaller than PyTorch's 25 MiB, so that the link has work early and little is
  left to do when backward ends; gradients that live in their buckets; a graph that is known to be
  the same in every iteration.
- ``fsdp2``: a unit of ``fully_shard`` ends once it holds at least ``unit_layers`` layers and
  ``unit_bytes`` bytes. ``asynchronous``: transfers run while layers do, which on a CPU needs help
  (``fsdp2_worker.py``); 0: as PyTorch has it. ``all_to_all``, of asynchronous ones: without it
  gradients cross the link twice, as gloo's reduce-scatter is an all-reduce inside.
- ``wfbp``: buckets of ``buffer_bytes``; 0: merged by what the link carries (``payload_bps``, which
  a bench fills in where the link is limited; 0: no limit) and what either half of an all-reduce
  costs beyond its bytes (gloo's all-reduce of 64 bytes takes 2 ms).
- ``allreduce``, ``dear``, ``dear-planned``: groups of ``buffer_bytes``, with ``tune`` of a buffer
  size that is searched while training, with ``near_layer`` of four layers. At most one of them; all
  0: planned from what the first iterations show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from byteprophet.errors import UserError

PAYLOAD = "payload_bps"
SYNCS = ("allreduce", "dear", "dear-planned")
"""Our own runtimes, as ``byteprophet.torch.DistributedOptimizer`` calls them."""

_PLANNED_AFTER = 16  # iterations: 12 to agree on an order and time, the search, the exchange
_LARGEST = 1 << 40


@dataclass(frozen=True)
class _Setting:
    default: int
    smallest: int
    largest: int


def _switch(default: int) -> _Setting:
    return _Setting(default, 0, 1)


_GROUPED: Mapping[str, _Setting] = {
    "buffer_bytes": _Setting(0, 0, _LARGEST),
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
        "buffer_bytes": _Setting(0, 0, _LARGEST),
        "message_cost_ns": _Setting(1_000_000, 0, 1_000_000_000),
        PAYLOAD: _Setting(0, 0, _LARGEST),
    },
    **dict.fromkeys(SYNCS, _GROUPED),
}


def resolve(runtime: str, overrides: Mapping[str, int]) -> dict[str, int]:
    """All settings of ``runtime``; UserError for what does not fit."""
    table = _TABLES[runtime]
    for name, value in overrides.items():
        if name not in table:
            raise UserError(f"setting {name!r}: of {runtime} there are {', '.join(table)}")
        smallest, largest = table[name].smallest, table[name].largest
        if not smallest <= value <= largest:
            raise UserError(f"setting {name}={value}: must be from {smallest} to {largest}")
    settings = {name: setting.default for name, setting in table.items()} | dict(overrides)
    given = [name for name in _GROUPED if settings.get(name)]
    if runtime in SYNCS and len(given) > 1:
        raise UserError(f"settings {' and '.join(given)}: each says what a group is, give one")
    return settings


def settles_after(runtime: str, settings: Mapping[str, int]) -> int:
    """Iterations after which ``runtime`` keeps its groups; 0 where it looks for none."""
    if runtime not in SYNCS or settings.get("buffer_bytes") or settings.get("near_layer"):
        return 0
    if not settings.get("tune"):
        return _PLANNED_AFTER
    from byteprophet.allreduce.tuner import ITERATIONS_PER_TRIAL, TRIALS  # scipy takes its time

    return TRIALS * ITERATIONS_PER_TRIAL + 10
