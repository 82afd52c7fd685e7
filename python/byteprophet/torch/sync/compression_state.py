"""What compression keeps from step to step, for each compressed parameter of an optimizer.

With error feedback, a rank keeps what it has not sent of its gradient, and adds it to the next one:
its *error*. Errors differ between ranks; all else is the same on all of them. It is saved with the
optimizer's state (``front/saved_compression.py``).

A gradient that the script drops before ``step()`` has used it leaves no error, and counts as none:
what there was before it is kept until the next one has been averaged.

If the number of ranks changes, every rank gets the mean of all errors. Only the mean of the ranks'
errors matters for what all of them will have sent in the end, and this keeps it.

Threads: the worker that compresses changes the state, and the training thread reads and replaces
it while no gradient of the optimizer is in flight. Events between them order both
(``Transfer.arrived``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from byteprophet.job.compression import Compressor
from byteprophet.torch.sync.completion import Call, Completion, Done

GatherErrors = Callable[[str, Tensor, Done], None]
"""All-gathers the rows of a tensor, of which this rank has its own; for the parameter's name."""


@dataclass
class Kept:
    """What is kept for one parameter.

    Attributes:
        compressor: its compressor.
        shape: of the parameter.
        steps: how many gradients were averaged.
        error: what this rank has not sent, flat; None: nothing, or no error feedback.
        common: what the compressor keeps itself (``Turn.common``).
        before: the same without the gradient that was averaged last.
    """

    compressor: Compressor
    shape: tuple[int, ...]
    steps: int = 0
    error: Tensor | None = None
    common: dict[str, Tensor] = field(default_factory=dict)
    before: Kept | None = None

    def remember(self) -> None:
        """Remember all this as it is before another gradient. Tensors are replaced, not changed."""
        self.before = replace(self, common=dict(self.common), before=None)


class CompressionState:
    """The state of one optimizer, on ``rank`` of ``ranks``."""

    def __init__(self, rank: int, ranks: int, gather_errors: GatherErrors) -> None:
        self.rank = rank
        self.ranks = ranks
        self.of: dict[str, Kept] = {}
        """By the name of the parameter, in the same order on all ranks."""
        self._gather_errors = gather_errors

    def own_error(self, name: str) -> Tensor:
        """What this rank has not sent of a parameter, in the parameter's shape."""
        kept = self.of[name]
        if kept.error is None:
            return torch.zeros(kept.shape)
        return kept.error.clone().view(kept.shape)

    def forget(self, name: str) -> None:
        """Go back to before the last gradient of a parameter. All ranks must do so.

        Does nothing if this was done, or if the parameter's gradients are not compressed.
        """
        kept = self.of.get(name)
        if kept is not None and kept.before is not None:
            self.of[name] = kept.before

    def all_errors(self, call: Call) -> Mapping[str, tuple[Tensor, Completion]]:
        """Begin to gather all ranks' errors: (ranks, *shape) by name, there once it is complete.

        ``call`` names the script's call, which all ranks must make.
        """
        found = {}
        for name, kept in self.of.items():
            if not kept.compressor.error_feedback:
                continue
            errors = torch.zeros((self.ranks, *kept.shape))
            errors[self.rank] = self.own_error(name)
            completion = Completion(f"other ranks' errors of '{name}'", call)
            self._gather_errors(name, errors, completion)
            found[name] = errors, completion
        return found
