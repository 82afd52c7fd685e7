"""Writes the order on which workers agreed to a file (``job/order_file.py``).

If the file cannot be written, it warns once and training continues.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from byteprophet.job.order_file import Order, write_order
from byteprophet.observe.strategy_recording import RUN
from byteprophet.whole_files import OneWarning

_or_else = OneWarning("the workers' common order is not saved; training continues")


def record_order(order: Order, environment: Mapping[str, str] = os.environ) -> None:
    """Record that ``order`` is in use, in a job with a run directory."""
    run = environment.get(RUN)
    if run:
        with _or_else.instead():
            write_order(Path(run), order)
