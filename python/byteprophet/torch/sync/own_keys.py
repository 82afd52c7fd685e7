"""Gives gradients of one optimizer the keys that its strategy says: partition sizes and servers.

A name gets them right after it is declared, or when a buffer is adopted, and so before it is sent
for the first time. BytePS' server waits for each key from all workers, so all must have the same
strategy. Every rank says which one it has in a message, and reads the others' before it sends its
first gradient.

Threads: the training thread declares and adopts; ``compare`` may be called by autograd's threads.
Reading the same message twice does no harm.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence

from byteps.torch import c_lib

from byteprophet.errors import UserError, warn
from byteprophet.job.strategy import Keys
from byteprophet.torch.sync import agreement, compressed
from byteprophet.torch.sync.completion import Call
from byteprophet.torch.sync.partitions import keep_size
from byteprophet.torch.sync.synchroniser import Synchroniser

_CALL = Call("made as many distributed optimizers")
_DRAIN_S = 10.0

_told: dict[str, agreement.Collection] = {}  # the last one of each message


class OwnKeys:
    """The keys of one optimizer's gradients, as the strategy in the file ``path`` says.

    ``digest``: of that strategy; "": the optimizer has none.
    """

    def __init__(self, keys: Sequence[Keys] = (), digest: str = "", path: str = "") -> None:
        self._keys = {each.tensor: each for each in keys}
        self._digest = int(digest or "0", 16)
        self._path = path
        self._used: dict[str, Keys] = {}  # by name in BytePS
        self._told: agreement.Collection | None = None

    def check(self, parameters: Collection[str]) -> None:
        """Raise ``UserError`` if a key is for none of ``parameters``, the optimizer's.

        A buffer of several gradients is known by the first of them until it is adopted.
        """
        for tensor in self._keys:
            if tensor not in parameters and tensor.rpartition(" and ")[0] not in parameters:
                raise UserError(
                    f"{self._path} is the strategy of another model: this optimizer has no "
                    f"parameter {tensor!r}"
                )

    def give(self, name: str, tensor: str) -> None:
        """Give ``name``, which BytePS knows and has not sent yet, the keys of ``tensor``, if any.

        Raises ``UserError`` if it was sent before to other servers, or is compressed.
        """
        own = self._keys.get(tensor)
        if own is None:
            return
        if own.partition_bytes:
            if name in compressed.names:
                raise UserError(
                    f"{self._path}: the gradient of {tensor!r} is compressed, and its partitions "
                    "decide how: it cannot have a partition size of its own"
                )
            keep_size(name, own.partition_bytes)
        if own.servers and not _place(name, own.servers):
            raise UserError(
                f"{self._path}: the gradient of {tensor!r} was sent to other servers before: its "
                "servers stay until the job ends"
            )
        self._used[name] = own

    def adopted(self, tensors: Collection[str]) -> None:
        """Warn of buffers that the strategy knows and that are not among ``tensors``.

        Rank 0 calls it for all.
        """
        for tensor, own in self._keys.items():
            if tensor not in tensors and own not in self._used.values():
                warn(
                    f"{self._path}: there is no buffer {tensor!r}: gradients share buffers in "
                    "another way than in the recorded job, and what it says of this one is not used"
                )

    def again(self, synchroniser: Synchroniser, message: str) -> None:
        """Give all names their keys again, and tell again, because BytePS was resumed."""
        for name, own in self._used.copy().items():
            self.give(name, own.tensor)
        self.tell(synchroniser, message)

    def tell(self, synchroniser: Synchroniser, message: str) -> None:
        """Send this rank's digest to all others in ``message``, which every rank declares now."""
        self.drain()
        earlier = _told.get(message)
        if earlier is not None:  # of an optimizer of the same parameters, which sent no gradient
            earlier.arrives_within(_DRAIN_S)
        what = "strategies of all ranks"
        self._told = agreement.Collection(synchroniser, message, self._digest, what, _CALL)
        _told[message] = self._told

    def drain(self) -> None:
        """Wait until no message is in flight, but only for a while: it may never arrive."""
        if self._told is not None:
            self._told.arrives_within(_DRAIN_S)

    def compare(self, timeout_s: float) -> None:
        """Raise ``UserError``, on all ranks, if they do not all have the same strategy."""
        told = self._told
        if told is None:
            return
        digests = told.wait(timeout_s)
        for rank, digest in enumerate(digests):
            if digest != digests[0]:
                raise UserError(
                    f"ranks have different strategies: {_named(digests[0])} on rank 0, "
                    f"{_named(digest)} on rank {rank}"
                )
        self._told = None


def _named(digest: int) -> str:
    return f"{digest:012x}" if digest else "none"


def _place(name: str, servers: Sequence[int]) -> bool:
    """Place a declared tensor. False if it was sent to other servers before (patch 0051)."""
    place = ctypes.CDLL(c_lib.__file__).byteps_place
    place.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_int), ctypes.c_int]
    place.restype = ctypes.c_int
    numbers = (ctypes.c_int * len(servers))(*servers)
    return bool(place(f"byteps.{name}".encode(), numbers, len(servers)) == 0)
