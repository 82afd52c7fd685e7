"""Keeps the buffers of recomputed modules right.

A recomputed forward runs twice, but a running mean, or a vector of a power iteration, must change
once, and the second run must begin with what the first one began with. So the second run works on
copies of the values from before the first one. All buffers are copied before each pass, because any
of them may change in any pass, and copies of those that did not change are dropped after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

Place = tuple[nn.Module, str]
Before = dict[Place, Tensor | None]
_MADE = torch.empty(0)
"""Stands for the value of a buffer that the module did not have before its first run."""


class ChangedBuffers:
    """The buffers of ``modules``, and which of them their forward changes."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._parts = list(dict.fromkeys(part for each in modules for part in each.modules()))
        self._changed: set[Place] = set()

    def contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Those in which ``torch.utils.checkpoint`` runs a forward, and runs it again."""
        before: Before = {}
        return self._first(before), _Again(self, before)

    @contextmanager
    def _first(self, before: Before) -> Iterator[None]:
        held = self.held()
        versions = {place: buffer._version for place, buffer in held.items()}
        names = {part: set(part._buffers) for part in self._parts}
        copies = _copies(held)
        yield
        after = self.held()
        # Normalisation writes its means without a new version: so values are compared, too.
        self._changed |= {
            place
            for place in {*held, *after}
            if place not in held
            or after.get(place) is not held[place]
            or held[place]._version != versions[place]
            or (place not in self._changed and not torch.equal(held[place], copies[place]))
        }
        for part, name in self._changed & {*held, *after}:
            made = name not in names[part]
            before[part, name] = _MADE if made else copies.get((part, name))

    def held(self) -> dict[Place, Tensor]:
        """What the buffers are now; those that are None are left out."""
        return {
            (part, name): buffer
            for part in self._parts
            for name, buffer in part._buffers.items()
            if buffer is not None
        }


class _Again(AbstractContextManager[None]):
    """A second run, on buffers as they were ``before`` the first one.

    torch enters it once for each backward pass through the same forward pass.
    """

    def __init__(self, buffers: ChangedBuffers, before: Before) -> None:
        self._buffers = buffers
        self._before = before
        self._held: dict[Place, Tensor] = {}

    def __enter__(self) -> None:
        self._held = self._buffers.held()
        copies = _copies({place: each for place, each in self._before.items() if each is not None})
        for (part, name), value in self._before.items():
            if value is _MADE:
                part._buffers.pop(name, None)
            else:
                part._buffers[name] = copies.get((part, name))

    def __exit__(self, *_: object) -> None:
        for part, name in self._before:
            part._buffers[name] = self._held.get((part, name))
        self._held = {}


def _copies(buffers: Mapping[Place, Tensor]) -> dict[Place, Tensor]:
    """Copies; what was one tensor is one again."""
    copied: dict[int, Tensor] = {}
    for buffer in buffers.values():
        if id(buffer) not in copied:
            copied[id(buffer)] = buffer.detach().clone()
    return {place: copied[id(buffer)] for place, buffer in buffers.items()}
