"""Writes which gradients share buffers to a file (``job/fused_file.py``).

Rank 0 of a job with servers and a run directory does so whenever its buffers change, which is about
once per optimizer. If the file cannot be written, it warns once and training continues.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from byteprophet.job.fused_file import Fused, write_fused
from byteprophet.observe.strategy_recording import RUN
from byteprophet.whole_files import OneWarning

_or_else = OneWarning("it is not saved which gradients share buffers; training continues")


def record_fused(fused: Fused, environment: Mapping[str, str] = os.environ) -> None:
    """Record that ``fused`` is in use."""
    run = environment.get(RUN)
    if run:
        with _or_else.instead():
            write_fused(Path(run), fused)
