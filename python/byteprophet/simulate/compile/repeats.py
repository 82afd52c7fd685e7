"""Modules that run again: in the backward pass, or in micro-batches of their own.

A module may run in micro-batches of its own, one after the other. What it keeps for the backward
pass is the same then, unless its node limits how many are between their forward and their backward
pass (``max_ongoing``). Only the last block of a model can do that, because the backward pass of all
others begins when the forward pass of the whole model has ended. Its backward pass then runs in the
forward pass, and leaves the gradients of its inputs, as fused linear cross-entropy does.
"""

from __future__ import annotations

from dataclasses import replace

from byteprophet.simulate.compile.compiled import Compiled
from byteprophet.simulate.compile.steps import Phase
from byteprophet.simulate.models.module import Module
from byteprophet.simulate.operation.layout import Layout
from byteprophet.simulate.tree.scope import Scope
from byteprophet.simulate.tree.strategy import Strategy


def recomputed(compiled: Compiled, module: Module, strategy: Strategy) -> Compiled:
    """``compiled``, with its forward pass repeated before the backward pass, if it has one."""
    if not compiled.backward:
        return compiled
    again = tuple(replace(step, phase=Phase.RECOMPUTE) for step in compiled.forward)
    made = _made_bytes(compiled, module)
    kept = made if strategy.delays_weights else 0
    return replace(
        compiled,
        backward=again + compiled.backward,
        saved=_kept_inputs(compiled, module),
        transient_bytes=compiled.transient_bytes + made - kept,
        recomputed_bytes=compiled.recomputed_bytes + kept,
    )


def _kept_inputs(compiled: Compiled, module: Module) -> dict[tuple[str, Layout], int]:
    """What is kept if only inputs are, as they come: those that no operator saves, too."""
    come = {tensor for tensor, _ in compiled.inputs}
    others = set(module.inputs) - come
    kept = {key: size for key, size in compiled.saved.items() if key[0] in others}
    return kept | dict(compiled.inputs)


def _made_bytes(compiled: Compiled, module: Module) -> int:
    """What is kept besides inputs, also what inputs were gathered into."""
    kept = _kept_inputs(compiled, module)
    return sum(size for key, size in compiled.saved.items() if key not in kept)


def in_micro_batches(whole: Compiled, chunk: Compiled, scope: Scope, module: Module) -> Compiled:
    """A module that runs as ``chunk`` again and again; ``whole``: as it would run at once."""
    count = scope.micro_batches
    if not scope.limits_ongoing:
        return replace(
            whole,
            forward=chunk.forward * count,
            backward=chunk.backward * count,
            transient_bytes=chunk.transient_bytes,
        )
    of_chunk = _made_bytes(chunk, module)
    return replace(
        whole,
        forward=(chunk.forward + chunk.backward) * count,
        backward=(),
        saved=_kept_inputs(whole, module),
        transient_bytes=chunk.transient_bytes
        + chunk.recomputed_bytes
        + scope.max_ongoing * of_chunk,
        recomputed_bytes=0,
    )
