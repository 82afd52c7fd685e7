"""Loads the plug-in: the scheduled queue that replaces BytePS' own.

The plug-in redefines the methods of BytePS' queue. So it must be loaded after the framework (torch
or mxnet) and before BytePS' extension for it, and only with the build of BytePS that it was linked
against. There is one plug-in per framework. It is loaded if ``BYTEPS_SCHEDULER`` names a policy. A
wrong setting ends the process with one line and exit status 2. With another build of BytePS, the
plug-in is not loaded, and one warning says so.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

import byteprophet
from byteprophet.errors import UserError, one_line
from byteprophet.observe.messages import MessageSource
from byteprophet.timeline.native_rows import take_all
from byteprophet.timeline.tables import TRANSFER

_BUILT_FOR = "byteps.json"  # beside the libraries: which BytePS each was built for
# By framework: imported, it has BytePS' extension loaded.
_EXTENSIONS = {"torch": "byteps.torch.c_lib", "mxnet": "byteps.mxnet.ops"}
_BATCH = 256  # completed handles taken at once
_ERROR_BYTES = 1024
_STARTS = 1000  # of iterations, kept for who asks
_STAMP = np.dtype([("number", np.uint64), ("time_ns", np.int64)])  # byteprophet::EngineStamp


class _ReadyTime(ctypes.Structure):
    """``prophet::ReadyTime``."""

    _fields_ = (
        ("tensor", ctypes.c_uint64),
        ("priority", ctypes.c_int32),
        ("ready_ns", ctypes.c_int64),
        ("spread_ns", ctypes.c_int64),
    )


@dataclass(frozen=True)
class Learned:
    """What a policy has learned of its job.

    Attributes:
        bandwidth_bps: payload of the link; 0: nothing is known, or the policy plans no order with
            others, or this process pushes nothing.
        has_plan: it has been given an order, and needs none.
        ready_ns: ready times by tensor, from the first of them on.
    """

    bandwidth_bps: int = 0
    has_plan: bool = False
    ready_ns: Mapping[int, int] = field(default_factory=dict)


class Plugin:
    """The loaded library. Every call releases the GIL.

    Calls may be made by any thread, but those that ask the policy, or begin an iteration, only by
    the one that also suspends and resumes BytePS.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.messages = MessageSource(library)
        self._starts: deque[tuple[int, int]] = deque(maxlen=_STARTS)
        self._staging = threading.Lock()  # guards _plans
        self._plans = 0
        library.byteprophet_scheduled_partitions.argtypes = []
        library.byteprophet_scheduled_partitions.restype = ctypes.c_uint64
        library.byteprophet_next_done.argtypes = [
            ctypes.c_int,
            ctypes.POINTER(ctypes.c_int),
            ctypes.c_int,
        ]
        library.byteprophet_next_done.restype = ctypes.c_int
        library.byteprophet_on_iteration.argtypes = []
        library.byteprophet_on_iteration.restype = None
        library.byteprophet_iteration.argtypes = []
        library.byteprophet_iteration.restype = ctypes.c_int64
        library.byteprophet_record_transfers.argtypes = [ctypes.c_int]
        library.byteprophet_record_transfers.restype = None
        library.byteprophet_take_transfers.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.byteprophet_take_transfers.restype = ctypes.c_int
        library.byteprophet_lost_transfers.argtypes = []
        library.byteprophet_lost_transfers.restype = ctypes.c_uint64
        library.byteprophet_take_stamps.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.byteprophet_take_stamps.restype = ctypes.c_int
        library.byteprophet_tensor.argtypes = [ctypes.c_char_p]
        library.byteprophet_tensor.restype = ctypes.c_int64
        library.byteprophet_stage_plan.argtypes = [
            ctypes.c_int64,
            ctypes.c_char_p,
            ctypes.POINTER(_ReadyTime),
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_int,
        ]
        library.byteprophet_stage_plan.restype = ctypes.c_int
        library.byteprophet_change_settings.argtypes = [
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_int,
        ]
        library.byteprophet_change_settings.restype = ctypes.c_int
        library.byteprophet_learned.argtypes = [
            ctypes.POINTER(ctypes.c_int64),
            ctypes.POINTER(ctypes.c_int),
            ctypes.POINTER(_ReadyTime),
            ctypes.c_int,
        ]
        library.byteprophet_learned.restype = ctypes.c_int
        library.byteprophet_stage_order.argtypes = [
            ctypes.c_int64,
            ctypes.POINTER(_ReadyTime),
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_int,
        ]
        library.byteprophet_stage_order.restype = ctypes.c_int
        for partition_bytes in (
            library.byteprophet_partition_bytes,
            library.byteprophet_preferred_partition_bytes,
        ):
            partition_bytes.argtypes = []
            partition_bytes.restype = ctypes.c_int64

    def scheduled_partitions(self) -> int:
        """Partitions that went through the policy so far."""
        return int(self._library.byteprophet_scheduled_partitions())

    def next_done(self, timeout_ms: int) -> list[int]:
        """Handles of ``push_pull`` calls that completed; waits for one, at most ``timeout_ms``."""
        handles = (ctypes.c_int * _BATCH)()
        count = self._library.byteprophet_next_done(timeout_ms, handles, _BATCH)
        return list(handles[:count])

    def on_iteration(self) -> None:
        """Tell the policy that an iteration's gradients are about to come."""
        self._library.byteprophet_on_iteration()
        self._starts.append((self.iteration(), time.monotonic_ns()))

    def iteration_starts(self) -> list[tuple[int, int]]:
        """Number and time of the iterations begun since the last call; one thread calls it."""
        return [self._starts.popleft() for _ in range(len(self._starts))]

    def iteration(self) -> int:
        """Iterations begun so far, the number of the current one; 0 before the first."""
        return int(self._library.byteprophet_iteration())

    def record_transfers(self, every: int) -> None:
        """Record the transfers of every iteration (1), of every n-th (n), or none (0)."""
        self._library.byteprophet_record_transfers(every)

    def take_transfers(self) -> npt.NDArray[np.void]:
        """The transfers completed since the last call, in order of completion, as ``TRANSFER``."""
        return take_all(self._library.byteprophet_take_transfers, TRANSFER)

    def lost_transfers(self) -> int:
        """Transfers that were recorded but not taken before others needed their place."""
        return int(self._library.byteprophet_lost_transfers())

    @property
    def stamp_operation(self) -> ctypes.c_void_p:
        """The address of an operation for MXNet's engine: it writes down when it ran."""
        return ctypes.cast(self._library.byteprophet_stamp, ctypes.c_void_p)

    def take_stamps(self) -> npt.NDArray[np.void]:
        """What such operations have written since the last call, in order of time."""
        return take_all(self._library.byteprophet_take_stamps, _STAMP)

    def tensor(self, name: str) -> int:
        """The number of the tensor declared as ``name`` (``key >> 16`` of its keys); -1: none."""
        return int(self._library.byteprophet_tensor(f"byteps.{name}".encode()))

    def stage_plan(
        self,
        at_iteration: int,
        settings: Mapping[str, int],
        times: Sequence[tuple[int, int, int, int]] = (),
    ) -> None:
        """Have the policy adopt settings and ready times when iteration ``at_iteration`` begins.

        ``times``: (tensor, priority, ready_ns, spread_ns), as ``_core.Policy.set_ready_times``
        takes them. Settings not named keep their values. Takes the place of what was staged and
        not yet adopted. ``ValueError``, and nothing changes, if that iteration has begun or the
        policy refuses.
        """
        with self._staging:
            self._stage(at_iteration, settings, times)
            self._plans += 1

    def plans(self) -> int:
        """Plans staged so far."""
        return self._plans

    def stage_ready_times(self, times: Sequence[tuple[int, int, int, int]], plans: int) -> bool:
        """Have the policy adopt ready times when the next iteration begins; they count as no plan.

        Returns whether they were staged: not if more than ``plans`` plans were staged before,
        because they would take the place of the last one, nor if this process schedules nothing.
        ``ValueError`` as for ``stage_plan``.
        """
        if self.partition_bytes() == 0:
            return False
        with self._staging:
            if self._plans > plans:
                return False
            self._stage(self.iteration() + 1, {}, times)
            return True

    def learned(self) -> Learned:
        """What this worker would have all workers plan their order with."""
        bandwidth_bps, has_plan = ctypes.c_int64(), ctypes.c_int()
        learned = functools.partial(
            self._library.byteprophet_learned, ctypes.byref(bandwidth_bps), ctypes.byref(has_plan)
        )
        capacity = learned(None, 0)
        array = (_ReadyTime * capacity)()
        count = learned(array, capacity)
        ready_ns = {time.tensor: time.ready_ns for time in array[: min(count, capacity)]}
        return Learned(bandwidth_bps.value, bool(has_plan.value), ready_ns)

    def stage_order(self, bandwidth_bps: int, ready_ns: Mapping[int, int]) -> int:
        """Have the policy plan its order with them, unless it has one from a plan.

        ``ready_ns``: ready times by tensor. Returns the first iteration in that order, or 0 if this
        process schedules nothing.
        """
        if self.partition_bytes() == 0:
            return 0
        since = self.iteration() + 1
        array = (_ReadyTime * len(ready_ns))(
            *(_ReadyTime(tensor, -1, time_ns, 0) for tensor, time_ns in ready_ns.items())
        )
        _call(self._library.byteprophet_stage_order, bandwidth_bps, array, len(ready_ns))
        return since

    def _stage(
        self,
        at_iteration: int,
        settings: Mapping[str, int],
        times: Sequence[tuple[int, int, int, int]],
    ) -> None:
        array = (_ReadyTime * len(times))(*(_ReadyTime(*time) for time in times))
        stage = self._library.byteprophet_stage_plan
        _call(stage, at_iteration, _text(settings), array, len(times))

    def change_settings(self, settings: Mapping[str, int]) -> None:
        """Have the policy take them over when the next iteration begins, whatever is staged.

        ``ValueError``, and nothing changes, if the policy refuses.
        """
        _call(self._library.byteprophet_change_settings, _text(settings))

    def partition_bytes(self) -> int:
        """Of the current iteration, as the policy knows it; 0 where nothing is scheduled."""
        return int(self._library.byteprophet_partition_bytes())

    def preferred_partition_bytes(self) -> int:
        """What would suit this worker's link, as the policy knows it; 0: no wish."""
        return int(self._library.byteprophet_preferred_partition_bytes())


def wanted_scheduler(environment: MutableMapping[str, str] = os.environ) -> str | None:
    """The policy asked for, or ``None`` for BytePS as it is (unset, empty or ``stock``)."""
    name = environment.get("BYTEPS_SCHEDULER", "")
    return None if name in ("", "stock") else name


def load(framework: str = "torch") -> Plugin | None:
    """Load the plug-in for ``framework`` if ``BYTEPS_SCHEDULER`` asks for it; once per process.

    ``None``: not asked for, or the BytePS installed is not the one it was built for. Exits with
    status 2 for a wrong setting, or if an extension of BytePS was loaded already.
    """
    return _load(framework)


@functools.cache
def _load(framework: str) -> Plugin | None:
    scheduler = wanted_scheduler()
    if scheduler is None:
        return None
    from byteprophet import schedulers

    settings = _check_settings(scheduler)
    for other, extension in _EXTENSIONS.items():
        if extension in sys.modules:
            _refuse(
                f"byteps.{other} was imported before the scheduler for {framework} could be "
                f"loaded: import byteprophet.{framework} first, or set BYTEPS_SCHEDULER before "
                "python starts; a process has one framework"
            )
    native = _native_folder(framework)
    mismatch = _mismatch(native, framework)
    if native is None or mismatch is not None:
        print(
            f"byteprophet: warning: {mismatch}; BYTEPS_SCHEDULER={scheduler} has no effect, BytePS "
            "runs as shipped",
            file=sys.stderr,
        )
        return None
    importlib.import_module(framework)  # the plug-in is linked against its libraries
    import zmq  # noqa: F401  (after the plug-in it would find BytePS' libzmq instead of its own)

    os.environ["BYTEPS_PARTITION_BYTES"] = str(settings[schedulers.PARTITION])
    os.environ["BYTEPROPHET_SETTINGS"] = schedulers.settings_text(settings)
    return Plugin(ctypes.CDLL(str(native / _library(framework)), mode=ctypes.RTLD_GLOBAL))


def _call(function: Callable[..., int], *arguments: object) -> None:
    """Call a function of the library that may refuse; ``ValueError`` with its line if it does."""
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    if function(*arguments, error, _ERROR_BYTES):
        raise ValueError(error.value.decode(errors="replace"))


def _text(settings: Mapping[str, int]) -> bytes:
    from byteprophet import schedulers

    return schedulers.settings_text(settings).encode()


def _library(framework: str) -> str:
    return f"libbyteprophet_{framework}.so"


def _check_settings(scheduler: str) -> dict[str, int]:
    """The policy's settings, all of them. Exits if the environment is not right."""
    from byteprophet import _core, schedulers
    from byteprophet.tune.request import VARIABLE, parse_request

    if os.environ.get("BYTEPS_ENABLE_ASYNC", "0") not in ("", "0"):
        _refuse("BYTEPS_ENABLE_ASYNC is set: asynchronous training cannot be scheduled; unset it")
    partition = os.environ.get("BYTEPS_PARTITION_BYTES")
    try:
        overrides = _core.parse_settings(os.environ.get("BYTEPROPHET_SETTINGS", ""))
        given = None if partition is None else int(partition)
        settings, _ = schedulers.resolve(scheduler, overrides, given)
        parse_request(os.environ.get(VARIABLE, ""), scheduler, settings)
        return settings
    except (UserError, ValueError) as error:
        _refuse(
            f"{error} (from BYTEPS_SCHEDULER, BYTEPROPHET_SETTINGS, BYTEPS_PARTITION_BYTES and "
            f"{VARIABLE})"
        )


def _native_folder(framework: str) -> Path | None:
    """Where the plug-in is installed; in an editable install that is not beside this file."""
    for folder in byteprophet.__path__:
        native = Path(folder) / "native"
        if (native / _library(framework)).is_file() and (native / _BUILT_FOR).is_file():
            return native
    return None


def _mismatch(native: Path | None, framework: str) -> str | None:
    """Why the plug-in does not fit the BytePS installed, or ``None`` if it does."""
    if native is None:
        return f"the plug-in for {framework} is not installed"
    built_for = json.loads((native / _BUILT_FOR).read_text())
    try:
        version = importlib.import_module("byteps.__version__").__version__
    except ImportError:
        return "BytePS is not installed"
    folder = Path(importlib.import_module("byteps").__path__[0])
    if version != built_for["version"]:
        return f"BytePS {version} is not {built_for['version']}, which the plug-in was built for"
    extensions = sorted((folder / framework).glob("c_lib*.so"))
    digests = [hashlib.sha256(extension.read_bytes()).hexdigest() for extension in extensions]
    if built_for["c_lib_sha256"].get(framework) not in digests:
        where = folder / framework
        return f"BytePS' {framework} extension in {where} is another build than the plug-in's"
    return None


def _refuse(message: str) -> NoReturn:
    print(f"byteprophet: error: {one_line(message)}", file=sys.stderr)
    raise SystemExit(2)
