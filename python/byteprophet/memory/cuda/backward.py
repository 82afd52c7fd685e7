"""The backward pass of tensors without data on a CUDA device, in the calling thread.

Autograd's own engine refuses CUDA tensors where there is no GPU. This one walks the same graph in
the same order: of the nodes whose gradients are complete, those that accumulate into leaves come
first, then the youngest. It sums gradients in place where the engine would, and lets go of what a
node saved once the node has run. So storages begin and end as they do on a GPU.

Hooks of tensors and nodes are not run, but for those after the accumulation of a leaf's gradient.
Modules under ``torch.utils.checkpoint`` are computed again once per backward pass, which they know
by a number that this one gives them.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from byteprophet.errors import UserError
from byteprophet.memory.cuda.device import replaced

_ONE_HOLDER = 2  # of a local variable: itself and the argument of getrefcount
_ONE_STORAGE = 2  # a tensor, and the Python object of its storage
_passes = itertools.count()
_places = itertools.count()  # nodes of equal age run in the order in which they became complete


@dataclass
class _Pending:
    """A node that is to run: edges that lead to it and have not, and the sums of those that have.

    The node is kept alive here, and nowhere else once its successor has run.
    """

    node: Any
    missing: int = 0
    sums: dict[int, Tensor] = field(default_factory=dict)


def backward(loss: Tensor) -> None:
    """Compute the gradients of the leaves of ``loss``, as ``loss.backward()`` does.

    ``loss`` is detached from its graph, so that the graph can end.

    Raises ``UserError`` if ``loss`` is not a scalar with a graph.
    """
    root = loss.grad_fn
    if root is None or loss.numel() != 1:
        raise UserError("memory: backward() needs a loss of one element that depends on parameters")
    number = next(_passes)  # as autograd's engine would give it
    with torch.no_grad(), replaced(torch._C, "_current_graph_task_id", lambda: number):
        first = torch.ones_like(loss, memory_format=torch.preserve_format)
        loss.detach_()
        pending = _pending(root)
        pending[root].sums[0] = first
        queue: list[tuple[int, int, Any]] = []
        _push(queue, [root])
        del root
        while queue:
            # No variable here may hold a node, else what it saved would live too long.
            _push(queue, _run(pending.pop(heapq.heappop(queue)[-1]), pending))
        del first  # autograd, too, holds it until the end


def _push(queue: list[tuple[int, int, Any]], nodes: list[Any]) -> None:
    for node in nodes:
        heapq.heappush(queue, (-node._sequence_nr(), next(_places), node))


def _pending(root: Any) -> dict[Any, _Pending]:
    pending = {root: _Pending(root)}
    left = [root]
    while left:
        node = left.pop()
        for successor, _ in node.next_functions:
            if successor is None:
                continue
            if successor not in pending:
                pending[successor] = _Pending(successor)
                left.append(successor)
            pending[successor].missing += 1
    return pending


def _run(run: _Pending, pending: dict[Any, _Pending]) -> list[Any]:
    """Run a node, hand on its gradients, and return those nodes that are complete by that."""
    node = run.node
    run.node = None
    if hasattr(node, "variable"):
        _accumulate(node.variable, run)
        return []
    inputs = [run.sums.pop(place, None) for place in range(len(node._input_metadata))]
    is_function = isinstance(node, BackwardCFunction)
    found = _run_function(node, inputs) if is_function else node(*inputs)
    del inputs
    gradients: list[Tensor | None] = list(found) if isinstance(found, tuple) else [found]
    del found
    edges = node.next_functions
    del node  # and with it what it saved
    complete = []
    for place, (successor, number) in enumerate(edges):
        gradient = gradients[place]
        gradients[place] = None
        if successor is None:
            continue
        to = pending[successor]
        to.missing -= 1
        if gradient is not None:
            gradient = _fitting(gradient, successor._input_metadata[number])
            before = to.sums.pop(number, None)
            to.sums[number] = gradient if before is None else _sum(before, gradient)
            del before, gradient
        if not to.missing:
            complete.append(successor)
    return complete


def _run_function(node: Any, inputs: list[Tensor | None]) -> Any:
    """Run the backward method of a ``torch.autograd.Function``, which gets zeros in place of none.

    It gets them also where it has asked for none (``set_materialize_grads(False)``): a node does
    not tell.
    """
    gradients = (
        torch.zeros(its.shape, dtype=its.dtype, device=its.device) if gradient is None else gradient
        for gradient, its in zip(inputs, node._input_metadata, strict=True)
    )
    found = node.apply(*gradients)
    node.maybe_clear_saved_tensors()
    return found


def _fitting(gradient: Tensor, metadata: Any) -> Tensor:
    """A gradient in the shape and type of the tensor that it belongs to."""
    if gradient.shape != metadata.shape:
        gradient = gradient.sum_to_size(metadata.shape)
    if gradient.dtype != metadata.dtype:
        gradient = gradient.to(metadata.dtype)
    return gradient


def _sum(before: Tensor, gradient: Tensor) -> Tensor:
    # One reference each in this frame, its argument and the caller's.
    is_ours = sys.getrefcount(before) <= _ONE_HOLDER + 1
    storage = before.untyped_storage()
    if is_ours and torch._C._storage_Use_Count(storage._cdata) <= _ONE_STORAGE:
        return before.add_(gradient)
    return before + gradient


def _accumulate(variable: Tensor, run: _Pending) -> None:
    gradient = run.sums.pop(0, None)
    if gradient is None:
        return
    if variable.grad is not None:
        variable.grad.add_(gradient)
    elif sys.getrefcount(gradient) <= _ONE_HOLDER and gradient.stride() == variable.stride():
        variable.grad = gradient.detach()
    else:
        variable.grad = torch.empty_like(variable).copy_(gradient)
    del gradient
    for hook in (getattr(variable, "_post_accumulate_grad_hooks", None) or {}).values():
        hook(variable)
