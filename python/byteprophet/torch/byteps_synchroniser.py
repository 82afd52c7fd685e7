"""The synchroniser that pushes gradients to BytePS' servers and pulls their average.

Threads: ``submit`` runs in training and autograd threads, completions in one receiver thread per
process (BytePS has one queue of completed handles). ``_changed`` guards the table of outstanding
handles; ``submit`` holds it across BytePS' call, so the receiver, which may learn of a completion
before that call returns, finds every handle in the table. Callbacks run without the lock.

With the plug-in the receiver blocks in ``byteprophet_next_done`` and learns of completions as they
happen. Without it, it waits for the handle submitted first, as BytePS' own queue is first-in
first-out. Both waits are in native code, without the GIL, and only while something is outstanding.

A third thread, the watcher, sleeps in native code until another role of the job is lost, then fails
all that is outstanding; the receiver may be stuck for good by then. Whoever of the two takes a
handle out of the table calls back.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence

import torch
from byteps.torch import ops
from torch import Tensor

from byteprophet import _plugin
from byteprophet.observe import process as observing
from byteprophet.torch import lost_peer
from byteprophet.torch.layer_spans import process_layers
from byteprophet.torch.naming import Names
from byteprophet.torch.partitions import repartition
from byteprophet.torch.stopwatch import process_stopwatch
from byteprophet.torch.synchroniser import Alone, Done, Synchroniser, Unshared

_WAIT_MS = 1000  # how often the receiver looks whether it should still wait


class BytePSSynchroniser(Unshared):
    """One per process; the methods are ``Synchroniser``'s."""

    def __init__(self, plugin: _plugin.Plugin | None) -> None:
        self._plugin = plugin
        self.names: Names = {}
        self._changed = threading.Condition()
        self._outstanding: dict[int, Done] = {}
        self._receiver: threading.Thread | None = None
        self._closing = threading.Event()  # of that receiver
        self._watcher: threading.Thread | None = None
        self._lost: str | None = None
        self._gradients: dict[str, None] = {}  # declared, in order
        self._iterations = 0  # counted here without the plug-in

    @property
    def size(self) -> int:
        """Number of ranks."""
        return int(ops.size())

    @property
    def rank(self) -> int:
        """Of the calling process, 0 to ``size - 1``."""
        return int(ops.rank())

    def declare(self, names: Sequence[str]) -> None:
        """BytePS numbers its keys in the order of declaration."""
        for name in names:
            ops.declare(name)
            if name.startswith("Gradient."):
                self._gradients[name] = None
        if self._plugin is not None:
            observing.declared(self._plugin, names)

    def submit(
        self, name: str, tensor: Tensor, *, priority: int, average: bool, done: Done
    ) -> None:
        """Enqueue ``tensor`` in BytePS; bfloat16, which BytePS does not know, as float32.

        Raises ``RuntimeError`` once another role is lost.
        """
        wire = tensor
        if tensor.dtype == torch.bfloat16:
            wire = tensor.float()
            done = _into(tensor, wire, done)
        with self._changed:
            if self._lost is not None:
                raise RuntimeError(self._lost)
            handle = ops.push_pull_async_inplace(
                wire, average=average, name=name, priority=priority
            )
            self._outstanding[handle] = done
            if self._receiver is None:
                receive = self._receive_first if self._plugin is None else self._receive_any
                self._closing = threading.Event()
                self._receiver = threading.Thread(
                    target=self._run,
                    args=(receive, self._closing),
                    name="byteprophet-receiver",
                    daemon=True,
                )
                self._receiver.start()
            if self._watcher is None:
                self._watcher = threading.Thread(
                    target=self._watch, name="byteprophet-watcher", daemon=True
                )
                self._watcher.start()
            self._changed.notify()

    def begin_iteration(self) -> None:
        """Tell the policy, and whoever observes it."""
        if self._plugin is not None:
            observing.before_iteration(self._plugin)
            self._plugin.on_iteration()
            process_stopwatch.begin_iteration(self._plugin.iteration())
            process_layers.first_gradient(self._plugin.iteration())
        else:
            self._iterations += 1
            process_layers.first_gradient(self._iterations)

    def reconfigure(self, settings: Mapping[str, int]) -> None:
        """Tell the policy, for the next iteration, and BytePS if the partition size changes.

        Each gradient has the new size from its next ``submit`` on, whatever travels meanwhile; so
        nothing is waited for. Gradients with one of BytePS' own compressors keep their size.
        """
        pushes = ops.local_rank() == ops.local_size() - 1
        if self._plugin is not None and pushes:
            self._plugin.change_settings(settings)
        if "partition_bytes" in settings:
            repartition(self._gradients, settings["partition_bytes"])

    def preferred_partition_bytes(self) -> int:
        """The policy's."""
        return 0 if self._plugin is None else self._plugin.preferred_partition_bytes()

    def close(self) -> None:
        """End the receiver; nothing may be outstanding."""
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
            receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.join(timeout=2 * _WAIT_MS / 1000)

    def _run(self, receive: Callable[[], Sequence[int]], closing: threading.Event) -> None:
        while True:
            with self._changed:
                while not self._outstanding and not closing.is_set():
                    self._changed.wait()
                if closing.is_set():
                    return
            for handle in receive():
                with self._changed:
                    is_ours = handle in self._outstanding
                if is_ours:  # others belong to the script's own push_pull calls
                    error = self._finish(handle)
                    with self._changed:
                        done = self._outstanding.pop(handle, None)
                    if done is not None:
                        done(error)

    def _finish(self, handle: int) -> BaseException | None:
        try:
            ops.synchronize(handle)  # waits, unless the plug-in said that it is done
        except Exception as error:  # noqa: BLE001 (whoever waits for the gradient raises it)
            return error
        return None

    def _watch(self) -> None:
        wait = lost_peer.when_lost()
        while wait is not None:
            line = wait()
            if line is not None:
                with self._changed:
                    self._lost = line
                    outstanding = list(self._outstanding.values())
                    self._outstanding.clear()
                for done in outstanding:
                    done(RuntimeError(line))
                return

    def _receive_any(self) -> Sequence[int]:
        assert self._plugin is not None
        return self._plugin.next_done(_WAIT_MS)

    def _receive_first(self) -> Sequence[int]:
        with self._changed:
            return list(itertools.islice(self._outstanding, 1))


def _into(tensor: Tensor, wire: Tensor, done: Done) -> Done:
    def rounded(error: BaseException | None) -> None:
        if error is None:
            tensor.copy_(wire)
        done(error)

    return rounded


@functools.cache
def _synchroniser() -> BytePSSynchroniser:
    return BytePSSynchroniser(_plugin.load())


def process_synchroniser() -> Synchroniser:
    """The synchroniser of this process: BytePS', or none at all for a job of one rank.

    Raises ``ValueError`` if BytePS was not initialised.
    """
    return _synchroniser() if int(ops.size()) > 1 else Alone()
