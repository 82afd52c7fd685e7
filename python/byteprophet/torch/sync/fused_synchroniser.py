"""The synchroniser that lets small gradients share buffers on their way to BytePS' servers.

It stands between the front of one optimizer and the synchroniser of the process (*base*). Until all
ranks have agreed on the forward order, each gradient travels alone, under its own name. Then all
ranks adopt the same buffers between two steps (``job/shared_buffers.py``). A gradient waits until
its buffer is complete. Then the members are copied into the buffer, which is averaged under one
name, and copied back. ``flush`` completes buffers with zeros, because their other members take no
part in this iteration. Averages do not depend on what travels together, so results stay the same,
bit for bit. If ranks do not all want the same buffers, every gradient goes on travelling alone.

A strategy may delay averages (``front/delays.py``): a gradient is then pushed while those of up to
k iterations before are still in flight, and BytePS has one sum of a name at a time. So such a
gradient has k + 1 names, one after the other, all of one placement, and travels alone. Every rank
submits each gradient once per step, so all count alike. Its priority is behind all others of its
iteration.

Names: BytePS numbers its keys in the order of declaration, and a rank that joins a resumed job
declares all names anew. So as many names as any order may need are declared together with the
parameters' own names, and ``adopt`` only uses them. A name keeps its size until BytePS is resumed,
so a buffer that would need another size is divided into its members.

Threads: gradients are submitted in training and autograd threads. Averages arrive in the base's
threads. ``_lock`` guards the buffers that are being filled. It is not held while anything is sent.
"""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from byteprophet.errors import UserError
from byteprophet.job.shared_buffers import messages
from byteprophet.job.staleness import NO_DELAYS
from byteprophet.tensor_names import (
    buffer_name,
    buffer_text,
    gradient_name,
    late_name,
    parameter_of,
)
from byteprophet.torch.sync import agreement
from byteprophet.torch.sync.completion import Done
from byteprophet.torch.sync.fused_layout import Small
from byteprophet.torch.sync.fusion_buffer import FusionBuffer
from byteprophet.torch.sync.own_keys import OwnKeys
from byteprophet.torch.sync.synchroniser import Synchroniser, Unsharded
from byteprophet.torch.tensors.backward import in_backward
from byteprophet.torch.tensors.naming import Names

Adopted = Callable[[Mapping[str, Sequence[str]]], None]
"""Called with the members of each buffer, by the buffer's name, when all ranks have adopted it."""

_used: dict[str, tuple[int, torch.dtype]] = {}  # elements and type of each name that was sent


class FusedSynchroniser(Unsharded):
    """There is one per optimizer. ``Synchroniser`` describes the methods.

    Args:
        base: averages what is sent; one per process.
        limit_bytes: the size of a buffer. 0: every gradient travels alone.
        timeout_s: how long a rank waits for the others when buffers are adopted.
        compressed: the tensors that BytePS compresses, by name. They travel alone.
        adopted: told of new buffers.
        keys: what its strategy says of partitions and servers; all ranks compare it. None: a
            network that has neither.
        messages: sums messages, if ``base`` is to carry gradients only.
        delays: of averages, in steps, by parameter.
    """

    def __init__(
        self,
        base: Synchroniser,
        limit_bytes: int,
        timeout_s: float,
        compressed: Collection[str] = (),
        adopted: Adopted | None = None,
        keys: OwnKeys | None = None,
        messages: Synchroniser | None = None,
        delays: Mapping[str, int] = NO_DELAYS,
    ) -> None:
        self._base = base
        self._messages = messages or base
        self._limit_bytes = limit_bytes
        self._timeout_s = timeout_s
        self._compressed = compressed
        self._adopted = adopted
        self._keys = keys
        self._delays = delays
        self._turns: Counter[str] = Counter()  # submissions of delayed gradients
        self._sizes_bytes: dict[str, int] = {}
        self._expected: set[str] = set()  # parameters of which gradients are sent
        self._sent: dict[str, Small] = {}  # gradients as they were sent, until it is decided
        self._reserved: list[str] = []
        self._decided = False  # whether ``agreed`` was called since the parameters changed
        self._refrains = False  # the script uses gradients one by one
        self._submitted: set[str] = set()  # in this iteration, until it is decided
        self._buffer_of: dict[str, FusionBuffer] = {}
        self._lock = threading.Lock()
        self._filling: dict[FusionBuffer, None] = {}  # in the order in which they were begun

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._base.size

    @property
    def rank(self) -> int:
        """The rank of this process, 0 to ``size - 1``."""
        return self._base.rank

    @property
    def names(self) -> Names:
        """The base's table of names."""
        return self._base.names

    @property
    def bucketed(self) -> bool:
        """Whether there are buffers now."""
        return bool(self._buffer_of)

    def declare(self, names: Sequence[str]) -> None:
        """See ``Synchroniser``."""
        self._base.declare(names)
        for name in names:
            parameter = parameter_of(name)
            if self._keys is not None and parameter is not None:
                self._keys.give(name, parameter)

    def declare_parameters(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """Send every gradient alone until the next ``agreed``. No transfer may be in flight."""
        self._base.declare_parameters(named)
        if self._keys is not None:
            self._keys.check(named)
        self.separate()
        self._sizes_bytes = {name: p.nbytes for name, p in named}
        self._expected = {name for name, p in named if p.requires_grad and p.numel()}
        self._sent.clear()

    def declare_buffers(self) -> None:
        """Declare the names of as many buffers as any order of the parameters may need."""
        first = min(self._sizes_bytes)
        count = len(self._sizes_bytes)
        self._reserved = [buffer_name(first, count, number) for number in range(count // 2)]
        self._messages.declare([self._message()])
        self._base.declare_parameters([(name, torch.empty(0)) for name in self._reserved])
        self._base.declare([gradient_name(name) for name in self._reserved])
        self._declare_late()
        if self._keys is not None:
            self._keys.tell(self._messages, self._message("strategy"))

    def _declare_late(self) -> None:
        """Declare the further names of delayed gradients."""
        for name in self._delays:
            if gradient_name(name) in self._compressed:
                raise UserError(
                    f"the script gives the gradient of {name!r} one of BytePS' compressors, and "
                    "its averages cannot be delayed: give it a staleness of 0 in the strategy"
                )
        late = {
            late_name(name, turn): name
            for name, steps in self._delays.items()
            if name in self._sizes_bytes
            for turn in range(1, steps + 1)
        }
        self._base.declare_parameters([(name, torch.empty(0)) for name in late])
        self._base.declare([gradient_name(name) for name in late])
        for name, parameter in late.items():
            if self._keys is not None:
                self._keys.give(gradient_name(name), parameter)

    def _turn(self, parameter: str) -> str:
        """The name that the gradient of a delayed parameter has this time."""
        turn = self._turns[parameter] % (self._delays[parameter] + 1)
        self._turns[parameter] += 1
        return late_name(parameter, turn) if turn else parameter

    def submit_gradient(
        self, parameter: str, gradient: Tensor, *, priority: int, done: Done
    ) -> None:
        """Send the gradient, or add it to its buffer, and send that if it is complete."""
        if self._keys is not None:
            self._keys.compare(self._timeout_s)
        buffer = self._buffer_of.get(parameter)
        if buffer is None:
            if not self._decided:
                self._submitted.add(parameter)
                self._sent[parameter] = Small.of(gradient, self._sizes_bytes[parameter])
            if parameter in self._delays:
                priority -= self._delays[parameter] * len(self._sizes_bytes)
                parameter = self._turn(parameter)
            self._base.submit_gradient(parameter, gradient, priority=priority, done=done)
            return
        with self._lock:
            complete = buffer.add(parameter, gradient, done)
            if complete:
                self._filling.pop(buffer, None)
            else:
                self._filling[buffer] = None
        if complete:
            buffer.send(self._base)

    def submit_message(self, name: str, message: Tensor, *, done: Done) -> None:
        """See ``Synchroniser``."""
        self._messages.submit_message(name, message, done=done)

    def flush(self, updating: Collection[str]) -> None:
        """Send the buffers that have some of their members."""
        if not self._filling:
            return
        with self._lock:
            incomplete = sorted(self._filling, key=lambda buffer: buffer.place)
            self._filling.clear()
        for buffer in incomplete:
            buffer.send(self._base)

    def agreed(self, parameters: Sequence[str]) -> Sequence[int]:
        """Adopt buffers for the forward order ``parameters`` if all ranks want the same ones.

        Returns the place of each parameter's message. Raises ``TimedOut`` if other ranks do not
        answer.
        """
        self.separate()
        found = self._divided(parameters)
        wanted = 0 if self._refrains else 1 + zlib.crc32(repr(found).encode())
        what = "buffers that ranks would use"
        collection = agreement.Collection(self._messages, self._message(), wanted, what)
        wishes = set(collection.wait(self._timeout_s))
        self._decided = True
        if self._refrains or wishes != {wanted}:
            found = [(each, (each,)) for each in parameters]
        self._adopt(found)
        place_of = {each: place for place, (_, held) in enumerate(found) for each in held}
        return [place_of[name] for name in parameters]

    def holds_back(self, parameter: str) -> bool:
        """Whether the gradient waits for others of its buffer.

        Before buffers are adopted, this notes scripts that use a gradient while others of the same
        step are missing. They get no buffers. Raises ``RuntimeError`` if such a use comes later and
        from within backward, which cannot go on to the missing gradients.
        """
        buffer = self._buffer_of.get(parameter)
        if buffer is None:
            if not self._decided and not self._expected <= self._submitted:
                self._refrains = True
            return False
        with self._lock:
            held = buffer in self._filling
        if held and in_backward():
            raise RuntimeError(
                f"byteprophet: the gradient of '{parameter}' is used within backward, but shares a "
                "buffer with gradients that are not computed yet: set BYTEPROPHET_FUSION_BYTES=0"
            )
        return held

    def separate(self) -> None:
        """Send every gradient alone until the next ``agreed``."""
        self.flush(())
        self._buffer_of = {}
        self._decided = False

    def resumed(self) -> None:
        """Let names have other sizes. Send every gradient alone, as new ranks do."""
        _used.clear()
        self.separate()
        if self._keys is not None:
            self._keys.again(self._messages, self._message("strategy"))

    def let_go(self, timeout_s: float) -> None:
        """See ``Synchroniser``."""
        self._base.let_go(timeout_s)
        if self._messages is not self._base:
            self._messages.let_go(timeout_s)

    def awaited(self, name: str) -> str:
        """Name the missing members of the buffer of ``name``, for messages."""
        parameter = parameter_of(name)
        buffer = None if parameter is None else self._buffer_of.get(parameter)
        with self._lock:
            missing = buffer.missing() if buffer is not None and buffer in self._filling else []
        if missing:
            return f"it shares a buffer with '{missing[0]}', which has no gradient yet"
        return self._base.awaited(name)

    def late(self, name: str) -> list[int]:
        """See ``Synchroniser``."""
        return self._base.late(name)

    def begin_iteration(self) -> int:
        """See ``Synchroniser``."""
        self._submitted.clear()
        return self._base.begin_iteration()

    def reconfigure(self, settings: Mapping[str, int]) -> None:
        """See ``Synchroniser``."""
        self._base.reconfigure(settings)

    def preferred_partition_bytes(self) -> int:
        """See ``Synchroniser``."""
        return self._base.preferred_partition_bytes()

    def close(self) -> None:
        """Close the base, which all optimizers of this process share."""
        if self._keys is not None:
            self._keys.drain()
        self._base.close()

    def _divided(self, order: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
        """The parameters in each message for this order, with the message's name.

        Buffers whose names have other sizes already are divided into their members.
        """
        small = {
            name: own
            for name, own in self._sent.items()
            if own.size_bytes <= self._limit_bytes
            and gradient_name(name) not in self._compressed
            and name not in self._delays
        }
        found: list[tuple[str, tuple[str, ...]]] = []
        reserved = iter(self._reserved)
        for held in messages(order, self._sizes_bytes, small, self._limit_bytes):
            name = held[0]
            if len(held) > 1:
                name = next(reserved)
                elements = sum(small[each].shape.numel() for each in held)
                kind = elements, small[held[0]].dtype
                if _used.setdefault(name, kind) != kind:
                    found.extend((each, (each,)) for each in held)
                    continue
            found.append((name, held))
        return found

    def _adopt(self, found: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        fused: dict[str, Sequence[str]] = {}
        for place, (name, held) in enumerate(found):
            if len(held) > 1:
                buffer = FusionBuffer(name, place, {each: self._sent[each] for each in held})
                self._buffer_of.update(dict.fromkeys(held, buffer))
                fused[name] = held
        if self._keys is not None:
            texts = {buffer_text(held): name for name, held in fused.items()}
            for text, name in texts.items():
                self._keys.give(gradient_name(name), text)
            if self.rank == 0:
                self._keys.adopted(texts)
        if fused and self._adopted is not None:
            self._adopted(fused)

    def _message(self, what: str = "fusion") -> str:
        return f"byteprophet.{what}.{min(self._sizes_bytes)}.{len(self._sizes_bytes)}"
