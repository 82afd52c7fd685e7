"""Waits for MXNet's engine with a time limit, which its own waits do not have."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import mxnet as mx

from byteprophet.runtime_settings import RuntimeSettings


def wait_for(wait: Callable[[], Any], what: str) -> None:
    """Call ``wait`` in a separate thread, which releases the GIL while it waits in the engine.

    Raises ``RuntimeError``, which names ``what``, after BYTEPROPHET_TIMEOUT_S seconds.
    """
    timeout_s = RuntimeSettings.from_environment().timeout_s
    failure: list[BaseException] = []

    def run() -> None:
        try:
            wait()
        except Exception as error:  # noqa: BLE001 (raised below)
            failure.append(error)

    waiter = threading.Thread(target=run, name="byteprophet-waiter", daemon=True)
    waiter.start()
    waiter.join(timeout_s)
    if waiter.is_alive():
        raise RuntimeError(
            f"byteprophet: waited {timeout_s:g} s for {what}; a worker or a server may be gone "
            "(BYTEPROPHET_TIMEOUT_S sets the limit)"
        )
    if failure:
        raise failure[0]


def wait_for_all() -> None:
    """Wait until the engine has finished every transfer and update."""
    wait_for(mx.nd.waitall, "the outstanding operations")
