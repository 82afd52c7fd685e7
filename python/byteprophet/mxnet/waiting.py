"""Waiting for MXNet's engine, with a time limit: its own waits have none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import mxnet as mx

from byteprophet.runtime_settings import RuntimeSettings


def wait_for(wait: Callable[[], Any], what: str) -> None:
    """Call ``wait``; ``RuntimeError`` with ``what`` if it takes longer than BYTEPROPHET_TIMEOUT_S.

    It runs in a thread of its own, without the GIL while it waits in the engine.
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
    """Wait until the engine has nothing left to do: every transfer and update is finished."""
    wait_for(mx.nd.waitall, "the operations under way")
