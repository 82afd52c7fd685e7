"""When an array is complete: an operation in MXNet's engine that reads it and writes the time down.

The engine runs it as soon as what writes the array has ended, in a thread that it keeps for urgent
operations; so neither the script nor an operation of the model waits for it, and bundles of
operations stay as they are: it is handed over where the script hands over whole operations, between
layers and after a pass. The time is taken in native code, without the interpreter's lock.

Threads: ``push`` anywhere, ``take`` in one thread.
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
    """Hands stamps to the engine and takes them back through ``plugin``."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._operation = plugin.stamp_operation

    def push(self, array: Any, number: int) -> None:
        """Have ``number`` stamped when all writes to ``array`` that were asked for have ended."""
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
        """Stamps since the last call, in order of time: fields ``number`` and ``time_ns``."""
        return self._plugin.take_stamps()
