"""Records when an array is complete: an operation in MXNet's engine reads it and notes the time.

The engine runs this operation as soon as the array has been written, in a thread that it reserves
for urgent operations. So neither the script nor an operation of the model waits for it. It does not
split bundles of operations, because it is pushed between layers and after a pass. Native code reads
the clock, without the GIL.

Threads: any thread calls ``push``, one thread calls ``take``.
"""

from __future__ import annotations

import ctypes
from typing import Any

from mxnet.base import _LIB, check_call

from byteprophet._plugin import Plugin
from byteprophet.timeline.tables import Rows

_PRIORITIZED = ctypes.c_int(3)  # FnProperty::kCPUPrioritized of mxnet/engine.h
_CPU = (ctypes.c_int32 * 2)(1, 0)  # mxnet::Context


class EngineStamps:
    """Requests stamps from the engine, and takes them from ``plugin``."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._operation = plugin.stamp_operation

    def push(self, array: Any, number: int) -> None:
        """Request a stamp with ``number`` for when all writes to ``array`` so far have ended."""
        check_call(
            _LIB.MXEnginePushSyncND(
                self._operation,
                ctypes.c_void_p(number),
                None,
                ctypes.byref(_CPU),
                ctypes.byref(array.handle),
                1,
                None,
                0,
                ctypes.byref(_PRIORITIZED),
                0,
                b"byteprophet_stamp",
            )
        )

    def take(self) -> Rows:
        """The stamps since the last call, by time, with the fields ``number`` and ``time_ns``."""
        return self._plugin.take_stamps()
