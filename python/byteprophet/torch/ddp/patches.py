"""Changes methods of ``DistributedDataParallel``, for models that were given to ``models.add``.

The class stays the same, so all that looks at it finds what it expects. Other models run as before.

Threads: the training thread. While it waits for rank 0's buffers, a timer's thread may say so.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors

from byteprophet.errors import warn
from byteprophet.torch.ddp import models, takeover
from byteprophet.torch.ddp.optimizers import note_all
from byteprophet.torch.sync.patience import Patience
from byteprophet.torch.tensors.compiling import stays_eager

_GIVES_BACK = {
    "join_hook": "join() lets ranks end at different times",
    "register_comm_hook": "it has a communication hook",
    "_register_builtin_comm_hook": "it has a communication hook",
    "_register_buffer_comm_hook": "it has a communication hook for buffers",
    "_update_process_group": "its process group has changed",
}
"""Methods that need the reducer, and what to say about it."""
_patience = Patience()  # with the broadcast of buffers


@functools.cache
def install() -> None:
    """Change the methods. This takes effect once per process."""
    note_all()
    kind: Any = DistributedDataParallel
    kind._pre_forward = _before(kind._pre_forward)
    kind._post_forward = _after(kind._post_forward)
    kind.__setstate__ = _copying(kind.__setstate__)
    kind._sync_buffers = _watched(kind._sync_buffers)
    for name, reason in _GIVES_BACK.items():
        setattr(kind, name, _giving_back(getattr(kind, name), reason))


def _before(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    @stays_eager
    def before(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        known = models.known(self)
        if known is not None and torch.is_grad_enabled():
            takeover.before_forward(known)
        elif known is None:
            models.say_of_copy(self)
        return plain(self, *inputs, **kwargs)

    return before


def _after(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    @stays_eager
    def after(self: Any, output: Any) -> Any:
        known = models.known(self)
        if known is None:
            return plain(self, output)
        if known.backward is None:
            output = plain(self, output)
            if known.times_own and self.require_forward_param_sync:
                known.await_backward()
            return output
        if self._check_sync_bufs_post_fwd():
            self._sync_buffers()
        # As in the original: the next forward broadcasts buffers only after one like this.
        self.require_forward_param_sync = (
            torch.is_grad_enabled() and self.require_backward_grad_sync
        )
        if self.require_forward_param_sync:
            known.backward.expect(_find_tensors(output))  # type: ignore[no-untyped-call]
        return output

    return after


def _watched(plain: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(plain)
    def watched(self: Any) -> None:
        known = models.known(self)
        rank = distributed.get_rank()
        if known is None or known.backward is None:
            plain(self)
            return
        limit_s, began_s = _patience.limit_s, time.monotonic()
        timer = threading.Timer(limit_s, _say_waiting, [self, rank, limit_s])
        timer.daemon = True
        timer.start()
        try:
            plain(self)
        except RuntimeError:
            for front in takeover.fronts():
                front.finish()  # says which rank is gone, if one is
            raise
        finally:
            timer.cancel()
            _patience.waited(time.monotonic() - began_s)

    return watched


def _say_waiting(model: DistributedDataParallel, rank: int, waited_s: float) -> None:
    """Say that the broadcast of rank 0's buffers takes long, and who is late."""
    late = "rank 0 sends them before each forward"
    if rank == 0:
        late = next(
            filter(None, (front.awaited() for front in takeover.fronts())), "another rank is late"
        )
    name = type(model.module).__name__
    warn(f"rank {rank} has waited {waited_s:g} s in the broadcast of buffers of {name}: {late}")


def _copying(plain: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(plain)
    def copied(self: Any, state: Any) -> None:
        plain(self, state)
        models.note_copy(self)

    return copied


def _giving_back(plain: Callable[..., Any], reason: str) -> Callable[..., Any]:
    @functools.wraps(plain)
    def giving_back(self: Any, *args: Any, **kwargs: Any) -> Any:
        known = models.known(self)
        if known is not None:
            takeover.give_back(known, reason)
        return plain(self, *args, **kwargs)

    return giving_back
