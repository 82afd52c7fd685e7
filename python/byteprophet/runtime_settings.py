"""The runtime's settings, read from the environment once and passed on as plain data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from byteprophet.errors import UserError
from byteprophet.input_files import whole_number

STRATEGY = "BYTEPROPHET_STRATEGY"
STRATEGY_MODEL = "BYTEPROPHET_STRATEGY_MODEL"
"""The file of a strategy that BytePS alone applies: our front only checks its model."""
SYNC = "BYTEPROPHET_SYNC"
OWNERS = "BYTEPROPHET_OWNERS"
REGION_COSTS = "BYTEPROPHET_REGION_COSTS"
REGION_MODES = "BYTEPROPHET_REGION_MODES"
REGION_MEMORY = "BYTEPROPHET_REGION_MEMORY"
REGION_BUDGET_S = "BYTEPROPHET_REGION_BUDGET_S"
SHARDED_MEMORY = "BYTEPROPHET_SHARDED_MEMORY"
DEFAULT_REGION_BUDGET_S = 900.0
FUSION_BYTES = "BYTEPROPHET_FUSION_BYTES"
DEFAULT_FUSION_BYTES, LARGEST_FUSION_BYTES = 256 << 10, 1 << 20
DEFAULT_TIMEOUT_S = 1800.0  # rank 0 may evaluate for long while the others wait


@dataclass(frozen=True)
class RuntimeSettings:
    """How an optimizer behaves at its edges.

    ``overlap``: false makes ``step()`` wait for all updates, as BytePS does; BYTEPROPHET_OVERLAP.
    ``timeout_s``: how long any one wait may last before it is an error; BYTEPROPHET_TIMEOUT_S.
    ``tune``: tune the scheduler's settings (``tuning.py``); BYTEPROPHET_TUNE, checked where used.
    ``sync``: what exchanges the gradients of DistributedDataParallel, "" for itself;
    BYTEPROPHET_SYNC, checked where used.
    ``strategy``: the file of a strategy to apply, "" for none; BYTEPROPHET_STRATEGY.
    ``owners``: without servers, how much each rank owns, as weights; "": equally much;
    BYTEPROPHET_OWNERS, checked where used.
    ``region_costs``: measure what regions of the model cost, save that in this file, and end; "" to
    train; BYTEPROPHET_REGION_COSTS. ``region_modes``: in these modes; BYTEPROPHET_REGION_MODES.
    ``region_memory``: measure also what memory they take, and save that in this file; "" not to;
    BYTEPROPHET_REGION_MEMORY. ``region_budget_s``: how long regions are measured;
    BYTEPROPHET_REGION_BUDGET_S.
    ``sharded_memory``: with sync="fsdp2", measure what memory an iteration takes, and save that in
    this directory; "" not to; BYTEPROPHET_SHARDED_MEMORY.
    ``fusion_bytes``: how large a buffer that small gradients share may be, with servers; 0: every
    gradient travels alone; BYTEPROPHET_FUSION_BYTES.
    ``debug``: report lines that read data in flight (``reads.py``); BYTEPROPHET_DEBUG.
    """

    overlap: bool = True
    debug: bool = False
    tune: str = ""
    sync: str = ""
    strategy: str = ""
    owners: str = ""
    region_costs: str = ""
    region_modes: tuple[str, ...] = ()
    region_memory: str = ""
    region_budget_s: float = DEFAULT_REGION_BUDGET_S
    sharded_memory: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_S
    fusion_bytes: int = DEFAULT_FUSION_BYTES

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> RuntimeSettings:
        """Read and check the variables named above; the first and the last are 0 or 1.

        Raises ``UserError`` naming the variable and its value; also for BytePS' asynchronous mode,
        in which there is no average.
        """
        asynchronous = environment.get("BYTEPS_ENABLE_ASYNC", "")
        if asynchronous not in ("", "0"):
            raise UserError(f"BYTEPS_ENABLE_ASYNC={asynchronous}: not supported; unset it")
        overlap = flag(environment, "BYTEPROPHET_OVERLAP", "1")
        debug = flag(environment, "BYTEPROPHET_DEBUG")
        tune = environment.get("BYTEPROPHET_TUNE", "")
        return cls(
            overlap=overlap,
            debug=debug,
            tune=tune,
            sync=environment.get(SYNC, ""),
            strategy=environment.get(STRATEGY, ""),
            owners=environment.get(OWNERS, ""),
            region_costs=environment.get(REGION_COSTS, ""),
            region_memory=environment.get(REGION_MEMORY, ""),
            region_modes=tuple(environment.get(REGION_MODES, "compiled").split(",")),
            region_budget_s=_seconds(environment, REGION_BUDGET_S, DEFAULT_REGION_BUDGET_S),
            sharded_memory=environment.get(SHARDED_MEMORY, ""),
            timeout_s=timeout_of(environment),
            fusion_bytes=_fusion_bytes(environment),
        )


def _fusion_bytes(environment: Mapping[str, str]) -> int:
    text = environment.get(FUSION_BYTES, str(DEFAULT_FUSION_BYTES))
    size_bytes = whole_number(text)
    if size_bytes is None or size_bytes > LARGEST_FUSION_BYTES:
        raise UserError(
            f"{FUSION_BYTES}={text}: must be a number of bytes from 0 (no fusion) to "
            f"{LARGEST_FUSION_BYTES}"
        )
    return size_bytes


def timeout_of(environment: Mapping[str, str]) -> float:
    """BYTEPROPHET_TIMEOUT_S, in seconds; UserError unless it is a number above 0."""
    return _seconds(environment, "BYTEPROPHET_TIMEOUT_S", DEFAULT_TIMEOUT_S)


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < 1e6:
        raise UserError(f"{name}={text}: must be a number of seconds above 0")
    return seconds


def flag(environment: Mapping[str, str], name: str, default: str = "0") -> bool:
    """Whether variable ``name`` is 1; UserError unless it is 0, 1 or unset: then ``default``."""
    value = environment.get(name, default)
    if value not in ("0", "1"):
        raise UserError(f"{name}={value}: must be 0 or 1")
    return value == "1"
