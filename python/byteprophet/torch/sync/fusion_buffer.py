"""A buffer in which several gradients travel under one name.

Threads: the owner's lock guards ``add`` and ``missing``. ``send`` runs in one thread at a time, and
the averages are copied back in the base's thread, before any member's ``done`` is called. So the
memory is free again when the first member is submitted the next time.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from byteprophet.torch.sync.changed import changed
from byteprophet.torch.sync.completion import Done
from byteprophet.torch.sync.fused_layout import Small
from byteprophet.torch.sync.synchroniser import Synchroniser
from byteprophet.torch.tensors import own_streams, pending


class FusionBuffer:
    """Averages its ``members`` together, under ``name``.

    ``place`` is its place among all messages, in forward order. All members have one type and are
    on one device.
    """

    def __init__(self, name: str, place: int, members: Mapping[str, Small]) -> None:
        self.name = name
        self.place = place
        self._members = members
        self._memory: Tensor | None = None
        self._views: dict[str, Tensor] = {}
        self._streams = own_streams.OwnStreams()
        self._submitted: dict[str, tuple[Tensor, Done, own_streams.Events]] = {}

    def add(self, member: str, gradient: Tensor, done: Done) -> bool:
        """Add a member's gradient. Returns True if it was the last one.

        Raises ``RuntimeError`` if the gradient differs in type or shape from earlier ones.
        """
        expected = self._members[member]
        if (gradient.shape, gradient.dtype) != (expected.shape, expected.dtype):
            raise changed(member, expected, Small.of(gradient, expected.size_bytes))
        self._submitted[member] = gradient, done, own_streams.events([gradient])
        return len(self._submitted) == len(self._members)

    def missing(self) -> list[str]:
        """The members whose gradients were not added."""
        return [name for name in self._members if name not in self._submitted]

    def send(self, base: Synchroniser) -> None:
        """Average what was added. Missing members count as zeros."""
        submitted, self._submitted = self._submitted, {}
        memory = self._allocated()
        gradients = [gradient for gradient, _, _ in submitted.values()]
        views = [self._views[name] for name in submitted]
        for _, _, events in submitted.values():
            own_streams.wait(events)
        with torch.no_grad(), pending.values():  # the gradients are marked by now
            for name in self._members.keys() - submitted.keys():
                self._views[name].zero_()
            torch._foreach_copy_(views, gradients)

        def arrived(error: BaseException | None) -> None:
            if error is None:
                try:
                    with torch.no_grad(), self._streams.used([memory], {}) as finish:
                        torch._foreach_copy_(gradients, views)
                        finish()
                except Exception as failure:  # noqa: BLE001 (the waiting thread raises it)
                    error = failure
            for _, done, _ in submitted.values():
                done(error)

        try:
            base.submit_gradient(self.name, memory, priority=-1 - self.place, done=arrived)
        except Exception as error:  # noqa: BLE001 (the waiting thread raises it)
            arrived(error)

    def _allocated(self) -> Tensor:
        if self._memory is None:
            first = next(iter(self._members.values()))
            elements = sum(member.shape.numel() for member in self._members.values())
            self._memory = torch.empty(elements, dtype=first.dtype, device=first.device)
            begin = 0
            for name, member in self._members.items():
                end = begin + member.shape.numel()
                self._views[name] = self._memory[begin:end].view(member.shape)
                begin = end
        return self._memory
