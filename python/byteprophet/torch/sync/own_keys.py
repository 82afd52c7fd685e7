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
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from byteps.torch import c_lib
from torch import Tensor

from byteprophet.errors import UserError, warn
from byteprophet.job.other_model import other_model, other_size, refuse_second
from byteprophet.job.strategy import Keys
from byteprophet.job.strategy_file import Used, read_strategy_file
from byteprophet.runtime_settings import STRATEGY_MODEL
from byteprophet.tensor_names import is_buffer_text
from byteprophet.torch.sync import agreement, compressed
from byteprophet.torch.sync.completion import Call
from byteprophet.torch.sync.partitions import keep_size
from byteprophet.torch.sync.synchroniser import Synchroniser

_CALL = Call("made as many distributed optimizers")
_DRAIN_S = 10.0

_told: dict[str, agreement.Collection] = {}  # the last one of each message


class OwnKeys:
    """The keys of one optimizer's gradients, as the strategy in the file ``path`` says.

    ``digest``: of that strategy; "": the optimizer has none. ``known``: the strategy whose model
    the optimizer's must be; None: any model will do.
    """

    def __init__(
        self,
        keys: Sequence[Keys] = (),
        digest: str = "",
        path: str = "",
        known: Used | None = None,
    ) -> None:
        self._keys = {each.tensor: each for each in keys}
        self._digest = int(digest or "0", 16)
        self._path = path
        self._known = known
        self._used: dict[str, Keys] = {}  # by name in BytePS
        self._told: agreement.Collection | None = None

    def check(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """Raise ``UserError`` if these parameters are not of the strategy's model, or miss a key.

        A buffer of several gradients is known by the first of them until it is adopted.
        """
        parameters = {name for name, _ in named}
        if self._known is not None:
            refuse_second(self._path, self._known.model.places, parameters)
        for tensor in self._keys:
            if tensor not in parameters and tensor.rpartition(" and ")[0] not in parameters:
                raise other_model(self._path, f"this optimizer has no parameter {tensor!r}")
        difference = "" if self._known is None else _difference(self._known, named)
        if difference:
            raise other_model(self._path, difference)

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


def given_model() -> tuple[str, Used | None]:
    """The file that ``STRATEGY_MODEL`` names, and its strategy; None if it is not on this host."""
    path = os.environ.get(STRATEGY_MODEL, "")
    if not path or not Path(path).is_file():
        return "", None
    return path, read_strategy_file(Path(path))


def _difference(known: Used, named: Sequence[tuple[str, Tensor]]) -> str:
    """What of these parameters is not in the model of ``known``; "": nothing.

    Parameters that are missing may belong to another optimizer. A recorded buffer of several
    gradients is one parameter of ``known``, so only the total size of these can be compared.
    """
    expected = {each.name: each.size_bytes for each in known.model.parameters}
    buffers_bytes = sum(size for name, size in expected.items() if is_buffer_text(name))
    sizes_bytes = {name: p.nbytes for name, p in named if p.requires_grad and p.numel()}
    for name, size_bytes in sizes_bytes.items():
        if name not in expected:
            buffers_bytes -= size_bytes
            if buffers_bytes < 0:
                return f"parameter {name!r} of this model is not in it"
        # A script that compresses gradients was recorded with the sizes that it sends.
        elif expected[name] != size_bytes and not known.strategy.reduce_fixed:
            return other_size(name, expected[name], size_bytes)
    return ""


def _named(digest: int) -> str:
    return f"{digest:012x}" if digest else "none"


def _place(name: str, servers: Sequence[int]) -> bool:
    """Place a declared tensor. False if it was sent to other servers before (patch 0051)."""
    place = ctypes.CDLL(c_lib.__file__).byteps_place
    place.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_int), ctypes.c_int]
    place.restype = ctypes.c_int
    numbers = (ctypes.c_int * len(servers))(*servers)
    return bool(place(f"byteps.{name}".encode(), numbers, len(servers)) == 0)
