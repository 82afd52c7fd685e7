"""Separate GPU streams for our own threads, which wait until the GPU has finished their work.

A thread starts with the device's default stream. Its work would run there after all work that the
script has already queued. And a script that trains on another stream would not wait for it.

Threads: one thread at a time uses an ``OwnStreams``. The script's threads call ``events``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

Events = Mapping[torch.device, Any]
"""One ``torch.cuda.Event`` for each GPU."""
NO_EVENTS: Events = MappingProxyType({})
"""Of tensors on CPUs: always the same object, because there would be one for each gradient."""

_cuda: Any = torch.cuda  # parts of it have no type annotations
_URGENT = -1  # a high CUDA priority, because others wait for this work


def events(tensors: Iterable[Tensor]) -> Events:
    """Record events after all work now in the current streams of the ``tensors``' GPUs.

    Returns no events for tensors on CPUs.
    """
    if not _cuda.is_initialized():
        return NO_EVENTS
    devices = {tensor.device for tensor in tensors}
    return {
        device: _cuda.current_stream(device).record_event()
        for device in devices
        if device.type == "cuda"
    }


def wait(after: Events) -> None:
    """Let the current streams wait for the events ``after``."""
    for device, event in after.items():
        _cuda.current_stream(device).wait_event(event)


class OwnStreams:
    """One stream per GPU, made when it is first needed. CPUs have none."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}

    @contextlib.contextmanager
    def used(self, tensors: Iterable[Tensor], after: Events) -> Iterator[Callable[[], None]]:
        """Within this context, work on ``tensors`` runs on our streams, after the events ``after``.

        Yields a function that returns when the GPUs have finished the work begun within. If the
        script does not access ``tensors`` until then, no other stream needs to be synchronised.
        """
        if not _cuda.is_initialized():
            yield _nothing
            return
        streams = [
            self._stream(device)
            for device in {tensor.device for tensor in tensors}
            if device.type == "cuda"
        ]

        def finish() -> None:
            for stream in streams:
                stream.synchronize()

        with contextlib.ExitStack() as stack:
            for stream in streams:
                if stream.device in after:
                    stream.wait_event(after[stream.device])
                stack.enter_context(_cuda.stream(stream))
            yield finish

    def _stream(self, device: torch.device) -> Any:
        if device not in self._streams:
            self._streams[device] = _cuda.Stream(device, priority=_URGENT)
        return self._streams[device]


def _nothing() -> None:
    """Do nothing: work on CPUs is finished already."""
