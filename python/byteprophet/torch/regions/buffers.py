"""Keeps the buffers of recomputed modules right.

A recomputed forward runs twice, but a running mean, or a vector of a power iteration, must change
once, and the second run must begin with what the first one began with. So the second run works on
copies of the values from before the first one. All buffers are copied in the first pass, and later
those that any pass has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

Place = tuple[nn.Module, str]


class ChangedBuffers:
    """The buffers of ``modules``, and which of them their forward changes."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._parts = list(dict.fromkeys(part for each in modules for part in each.modules()))
        self._changed: set[Place] | None = None

    def contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Those in which ``torch.utils.checkpoint`` runs a forward, and runs it again."""
        before: dict[Place, Tensor] = {}
        return self._first(before), self._again(before)

    @contextmanager
    def _first(self, before: dict[Place, Tensor]) -> Iterator[None]:
        held = self._held()
        versions = {place: buffer._version for place, buffer in held.items()}
        known = held.keys() if self._changed is None else self._changed & held.keys()
        copies = _copies({place: held[place] for place in known})
        yield
        after = self._held()
        # Normalisation writes its means without a new version: so values are compared, once.
        changed = {
            place
            for place, buffer in after.items()
            if buffer is not held.get(place)
            or buffer._version != versions[place]
            or (self._changed is None and not torch.equal(buffer, copies[place]))
        }
        self._changed = {*(self._changed or ()), *changed}
        # What changes for the first time has no copy from before. The second run must still not
        # change it again.
        missing = _copies({place: after[place] for place in changed - copies.keys()})
        before.update({place: copies[place] for place in self._changed & copies.keys()} | missing)

    @contextmanager
    def _again(self, before: dict[Place, Tensor]) -> Iterator[None]:
        held = self._held()
        for (part, name), copy in _copies(before).items():
            part._buffers[name] = copy
        try:
            yield
        finally:
            for part, name in before:
                part._buffers[name] = held.get((part, name))

    def _held(self) -> dict[Place, Tensor]:
        return {
            (part, name): buffer
            for part in self._parts
            for name, buffer in part._buffers.items()
            if buffer is not None
        }


def _copies(buffers: Mapping[Place, Tensor]) -> dict[Place, Tensor]:
    """Copies; what was one tensor is one again."""
    copied: dict[int, Tensor] = {}
    for buffer in buffers.values():
        if id(buffer) not in copied:
            copied[id(buffer)] = buffer.detach().clone()
    return {place: copied[id(buffer)] for place, buffer in buffers.items()}
