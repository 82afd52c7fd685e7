"""Hands gradients to the synchroniser, and the averaged gradients to the updater.

Threads: ``submit`` runs in the training thread and in autograd's, ``_finish`` in the
synchroniser's. The lock ``_begin`` guards the iteration flag, because the gradients of several
devices may become ready at once. It is held while waiting for updates, which is safe because
updates never take it.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from byteprophet.errors import UserError
from byteprophet.observe.pace import process_pace
from byteprophet.observe.span_log import process_spans
from byteprophet.torch.front import other_synchronisers
from byteprophet.torch.front.cast import Cast
from byteprophet.torch.front.kept import Kept, refuse_unusable
from byteprophet.torch.front.slots import Slot, Transfer
from byteprophet.torch.front.unsharding import Unsharding
from byteprophet.torch.front.updates import Updater
from byteprophet.torch.recording.layer_spans import process_layers
from byteprophet.torch.recording.stopwatch import process_stopwatch
from byteprophet.torch.sync.synchroniser import Synchroniser
from byteprophet.torch.tensors import own_streams, pending
from byteprophet.torch.tensors.dense import arranged, flat, is_dense
from byteprophet.torch.tensors.sparse import alias_of


class Sender:
    """Sends the gradients of one optimizer.

    The first gradient after ``end_iteration`` begins a new iteration. ``compression`` has the
    methods ``compress(tensor)``, which returns a tensor and a context, and
    ``decompress(tensor, context)``. ``kept``: has what is sent besides. ``allows_graphs``: whether
    a gradient may itself be differentiable (create_graph=True), although the exchange is not.
    """

    def __init__(
        self,
        synchroniser: Synchroniser,
        updater: Updater,
        unsharding: Unsharding,
        compression: Any,
        kept: Kept,
        allows_graphs: bool,
    ) -> None:
        self._synchroniser = synchroniser
        self._unsharding = unsharding
        self._updater = updater
        self._compression = compression
        self._kept = kept
        self._allows_graphs = allows_graphs
        self._streams = own_streams.OwnStreams()
        self._begin = threading.Lock()
        self._between_iterations = True
        process_pace.tells_waits = True

    def accept(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """Raise ``UserError`` if gradients of these parameters cannot be sent as they are to be."""
        if isinstance(self._compression, Cast):
            self._compression.check(named)

    def submit(self, slot: Slot) -> Transfer:
        """Send the current gradient of ``slot``, or zeros if it has none."""
        if not slot.sent and self._synchroniser.size > 1:
            other_synchronisers.refuse_parameter(slot.name, slot.parameter)
        slot.sent = True
        transfer = self._transfer(slot, self._sendable(slot))
        self._unsharding.leave(slot)  # last, because reading a partial gradient above unshards it
        self._send(transfer)
        return transfer

    def submit_parameter(self, slot: Slot) -> Transfer:
        """Average the parameter of ``slot`` itself over all ranks, in place."""
        values = slot.parameter.detach()
        in_place = is_dense(values)
        wire = flat(values) if in_place else values.contiguous()
        transfer = Transfer(slot, values, wire, None, in_place=in_place)
        self._send(transfer)
        return transfer

    def _send(self, transfer: Transfer) -> None:
        slot = transfer.slot
        slot.transfer = transfer
        self._begin_iteration()
        transfer.iteration = process_spans.iteration
        if transfer.gradient.numel() == 0:
            self._updater.arrive(transfer, None)
        else:
            self._synchroniser.submit_gradient(
                slot.name,
                transfer.wire,
                priority=slot.priority,
                done=functools.partial(self._finish, transfer),
            )

    def at_hand(self, slot: Slot) -> Transfer:
        """A finished transfer of the current gradient of ``slot``, which is used as it is.

        If the parameter is sharded, the transfer covers this rank's shard.
        """
        self._unsharding.take(slot)
        gradient = slot.parameter.grad
        assert gradient is not None
        shard = self._synchroniser.shard(slot.name)
        if shard is not None:
            gradient = slot.parameter.grad = arranged(gradient, slot.parameter)
        transfer = Transfer(slot, gradient, gradient, None, in_place=True, shard=shard)
        transfer.iteration = process_spans.iteration
        transfer.arrived.set()
        slot.transfer = transfer
        slot.known = weakref.ref(gradient)
        return transfer

    def end_iteration(self) -> None:
        """Let the next submitted gradient begin a new iteration."""
        self._between_iterations = True

    def _sendable(self, slot: Slot) -> Tensor:
        """The gradient of ``slot`` as the optimizer will see it."""
        gradient = slot.parameter.grad
        if gradient is None:
            gradient = slot.parameter.grad = slot.no_gradient()
        refuse_unusable(slot, gradient, allows_graphs=self._allows_graphs)
        slot.dense = not gradient.is_sparse
        parameter_type = slot.parameter.dtype
        if gradient.dtype != parameter_type and self._synchroniser.size > 1:
            raise UserError(
                f"parameter '{slot.name}' is of {parameter_type}, and its gradient of "
                f"{gradient.dtype}: only gradients of the parameter's own type are averaged: "
                "do not set grad_dtype"
            )
        if gradient.is_conj() or gradient.is_neg():  # its memory does not hold its values
            gradient = slot.parameter.grad = gradient.resolve_conj().resolve_neg()
        self._kept.merge(slot, gradient)
        return gradient

    def _transfer(self, slot: Slot, gradient: Tensor) -> Transfer:
        shard = self._synchroniser.shard(slot.name)
        if shard is not None:
            gradient = slot.parameter.grad = arranged(gradient, slot.parameter)
            if slot.merged is not None:
                slot.merged = gradient
        wire, context = self._compression.compress(gradient)
        # The synchroniser gets an unmarked alias, so that it does not wait for itself.
        if wire.is_sparse:
            alias, in_place = alias_of(wire), False
        else:
            wire = wire.contiguous() if shard is None else arranged(wire, slot.parameter)
            alias, in_place = wire.detach(), wire is gradient
        transfer = Transfer(slot, gradient, alias, context, in_place=in_place, shard=shard)
        if not transfer.in_place:
            transfer.compressed = own_streams.events([gradient])
        return transfer

    def _begin_iteration(self) -> None:
        """If this is the first gradient of an iteration, notify all that count iterations."""
        if not self._between_iterations:
            return
        with self._begin:
            if not self._between_iterations:
                return
            try:
                iteration = self._synchroniser.begin_iteration()
                process_pace.begin(iteration, by=id(self))
                process_stopwatch.begin_iteration(iteration)
                process_layers.first_gradient(iteration)
            finally:
                self._between_iterations = False  # last: the others look at it without the lock

    def _finish(self, transfer: Transfer, error: BaseException | None) -> None:
        if error is None and not transfer.in_place:
            after = transfer.compressed or own_streams.NO_EVENTS
            try:
                with (
                    torch.no_grad(),
                    pending.values(),
                    self._streams.used([transfer.gradient], after) as finish,
                ):
                    transfer.gradient.copy_(
                        self._compression.decompress(transfer.wire, transfer.context)
                    )
                    finish()
            except Exception as failure:  # noqa: BLE001 (the waiting thread raises it)
                error = failure
        self._updater.arrive(transfer, error)
