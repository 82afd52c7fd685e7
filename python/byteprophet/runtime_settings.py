"""The runtime's settings, read from the environment once and passed on as plain data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from byteprophet.errors import UserError

DEFAULT_TIMEOUT_S = 1800.0  # rank 0 may evaluate for long while the others wait


@dataclass(frozen=True)
class RuntimeSettings:
    """How an optimizer behaves at its edges.

    ``overlap``: false makes ``step()`` wait for all updates, as BytePS does; BYTEPROPHET_OVERLAP.
    ``timeout_s``: how long any one wait may last before it is an error; BYTEPROPHET_TIMEOUT_S.
    ``tune``: tune the scheduler's settings (``tuning.py``); BYTEPROPHET_TUNE, checked where used.
    ``debug``: tell which lines read what is still under way (``reads.py``); BYTEPROPHET_DEBUG.
    """

    overlap: bool = True
    debug: bool = False
    tune: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_S

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
        text = environment.get("BYTEPROPHET_TIMEOUT_S", str(DEFAULT_TIMEOUT_S))
        try:
            timeout_s = float(text)
        except ValueError:
            timeout_s = 0.0
        if not 0.0 < timeout_s < 1e6:
            raise UserError(f"BYTEPROPHET_TIMEOUT_S={text}: must be a number of seconds above 0")
        tune = environment.get("BYTEPROPHET_TUNE", "")
        return cls(overlap=overlap, debug=debug, tune=tune, timeout_s=timeout_s)


def flag(environment: Mapping[str, str], name: str, default: str = "0") -> bool:
    """Whether variable ``name`` is 1; UserError unless it is 0, 1 or unset: then ``default``."""
    value = environment.get(name, default)
    if value not in ("0", "1"):
        raise UserError(f"{name}={value}: must be 0 or 1")
    return value == "1"
