"""The synchroniser that pushes gradients to BytePS' servers and pulls their average.

Threads: training and autograd threads submit tensors. One receiver thread per process handles
completions, because BytePS has one queue of completed handles. ``_changed`` guards the table of
outstanding handles. ``_push_pull`` holds it during BytePS' call, because the receiver may learn of
a completion before that call returns, and must find the handle in the table. Callbacks run without
the lock.

With the plug-in, the receiver blocks in ``byteprophet_next_done`` and learns of completions as they
happen. Without it, the receiver waits for the handle submitted first, because BytePS' own queue is
first-in first-out. Both waits are in native code, without the GIL, and only happen while something
is outstanding.

A third thread, the watcher, sleeps in native code until another role of the job is lost. Then it
fails everything outstanding, because the receiver may be stuck forever. Of these two threads, the
one that removes a handle from the table calls its callback.
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
from byteprophet.errors import PeerLost
from byteprophet.job.fused_file import Fused
from byteprophet.observe.fused_recording import record_fused
from byteprophet.session import process as observing
from byteprophet.tensor_names import buffer_text, gradient_name
from byteprophet.torch.sync import basics, failures, leaving, lost_peer
from byteprophet.torch.sync.alone import Alone
from byteprophet.torch.sync.completion import Done
from byteprophet.torch.sync.partitions import repartition
from byteprophet.torch.sync.synchroniser import Unsharded
from byteprophet.torch.tensors.naming import Names
from byteprophet.torch.tensors.own_streams import OwnStreams

_DTYPES = {
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.uint8, torch.int32, torch.int64,
}  # fmt: skip
_WAIT_MS = 1000  # how often the receiver checks whether it should stop


class BytePSSynchroniser(Unsharded):
    """There is one per process. ``Synchroniser`` describes the methods."""

    def __init__(self, plugin: _plugin.Plugin | None) -> None:
        self._plugin = plugin
        self.names: Names = {}
        self._streams = OwnStreams()  # the receiver's
        self._changed = threading.Condition()
        self._outstanding: dict[int, Done] = {}
        self._calling = False  # the receiver is in a callback, which holds a tensor
        self._receiver: threading.Thread | None = None
        self._closing = threading.Event()  # tells the current receiver to end
        self._watcher: threading.Thread | None = None
        self._lost: str | None = None
        self._gradients: dict[str, None] = {}  # names, in order
        self._iterations = 0  # counted here without the plug-in
        self._fused: dict[str, tuple[str, ...]] = {}  # all optimizers' buffers, as recorded

    @property
    def size(self) -> int:
        """Number of ranks."""
        return int(ops.size())

    @property
    def rank(self) -> int:
        """The rank of this process, 0 to ``size - 1``."""
        return int(ops.rank())

    def declare(self, names: Sequence[str]) -> None:
        """Declare ``names`` to BytePS, which numbers its keys in the order of declaration."""
        for name in names:
            ops.declare(name)
        if self._plugin is not None:
            observing.declared(self._plugin, names)

    def adopted(self, buffers: Mapping[str, Sequence[str]]) -> None:
        """Record which gradients share buffers from the next iteration on.

        ``buffers`` has the parameters by the buffer's name. In records, a buffer is called after
        its parameters.
        """
        texts = {name: buffer_text(held) for name, held in buffers.items()}
        if self._plugin is not None:
            by_name = {gradient_name(name): text for name, text in texts.items()}
            observing.relabelled(self._plugin, by_name)
            self._iterations = self._plugin.iteration()
        held_anew = {each for held in buffers.values() for each in held}
        self._fused = {
            text: held for text, held in self._fused.items() if not held_anew.intersection(held)
        }
        self._fused |= {texts[name]: tuple(held) for name, held in buffers.items()}
        if self.rank == 0:
            record_fused(Fused(self._fused, self._iterations + 1))

    def declare_parameters(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """Check the parameters' types and sizes, and note them for ``reconfigure``."""
        for name, parameter in named:
            if parameter.dtype not in _DTYPES:
                raise ValueError(
                    f"byteprophet: parameter '{name}' is of {parameter.dtype}, which BytePS cannot "
                    "exchange"
                )
            basics.check_size(f"parameter '{name}'", parameter)
        self._gradients.update((gradient_name(name), None) for name, _ in named)

    def submit_gradient(
        self, parameter: str, gradient: Tensor, *, priority: int, done: Done
    ) -> None:
        """Push the gradient, then pull the average."""
        self._push_pull(gradient_name(parameter), gradient, priority, True, done)

    def submit_message(self, name: str, message: Tensor, *, done: Done) -> None:
        """Push the message, then pull the sum."""
        self._push_pull(name, message, 0, False, done)

    def _push_pull(
        self, name: str, tensor: Tensor, priority: int, average: bool, done: Done
    ) -> None:
        """Enqueue ``tensor`` in BytePS: bfloat16 as float32, complex numbers as pairs of reals.

        Raises ``PeerLost`` if another role is lost, or if a worker that must take part has left.
        """
        wire = tensor
        if tensor.dtype == torch.bfloat16:
            wire = tensor.float()
            done = self._into(tensor, wire, done)
        elif tensor.is_complex():
            wire = torch.view_as_real(tensor)
        with self._changed:
            if self._lost is not None:
                raise PeerLost(self._lost)
            try:
                handle = ops.push_pull_async_inplace(
                    wire, average=average, name=name, priority=priority
                )
            except RuntimeError as error:
                raise failures.by_text(str(error)) from error
            self._outstanding[handle] = done
            if self._receiver is None:
                leaving.at_stop(self.close)  # no optimizer may exist any more by then
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

    def begin_iteration(self) -> int:
        """Tell the policy, which counts iterations itself, and return the iteration's number."""
        if self._plugin is None:
            self._iterations += 1
            return self._iterations
        observing.before_iteration()
        self._plugin.on_iteration()
        return self._plugin.iteration()

    def reconfigure(self, settings: Mapping[str, int]) -> None:
        """Pass the settings to the policy, and a new partition size also to BytePS.

        The policy uses them from the next iteration on. A gradient uses the new partition size from
        its next submission on, so there is no need to wait for gradients in flight. Gradients with
        one of BytePS' own compressors keep their partition size.
        """
        pushes = ops.local_rank() == ops.local_size() - 1
        if self._plugin is not None and pushes:
            self._plugin.change_settings(settings)
        if "partition_bytes" in settings:
            repartition(self._gradients, settings["partition_bytes"])

    def preferred_partition_bytes(self) -> int:
        """The partition size that the policy prefers; 0 without the plug-in."""
        return 0 if self._plugin is None else self._plugin.preferred_partition_bytes()

    def let_go(self, timeout_s: float) -> None:
        """See ``Synchroniser``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._calling, timeout_s)

    def close(self) -> None:
        """End the receiver. Nothing may be outstanding."""
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
                if is_ours:  # other handles belong to the script's own push_pull calls
                    error = self._finish(handle)
                    with self._changed:
                        done = self._outstanding.pop(handle, None)
                        self._calling = True
                    if done is not None:
                        done(error)
                    done = None
                    with self._changed:
                        self._calling = False
                        self._changed.notify_all()

    def _finish(self, handle: int) -> BaseException | None:
        try:
            ops.synchronize(handle)  # waits unless the plug-in reported completion
        except RuntimeError as error:
            return failures.by_text(str(error))
        except Exception as error:  # noqa: BLE001 (the waiting thread raises it)
            return error
        return None

    def _into(self, tensor: Tensor, wire: Tensor, done: Done) -> Done:
        def rounded(error: BaseException | None) -> None:
            if error is None:
                with self._streams.used([tensor], {}) as finish:
                    tensor.copy_(wire)
                    finish()
            done(error)

        return rounded

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
                    done(PeerLost(line))
                return

    def _receive_any(self) -> Sequence[int]:
        assert self._plugin is not None
        return self._plugin.next_done(_WAIT_MS)

    def _receive_first(self) -> Sequence[int]:
        with self._changed:
            return list(itertools.islice(self._outstanding, 1))


@functools.cache
def _synchroniser() -> BytePSSynchroniser:
    return BytePSSynchroniser(_plugin.load())


def process_synchroniser() -> BytePSSynchroniser | Alone:
    """The synchroniser of this process: BytePS', or ``Alone`` in a job of one rank.

    Raises ``ValueError`` if BytePS was not initialised.
    """
    return _synchroniser() if int(ops.size()) > 1 else Alone()
