"""One bucket in one iteration: collects submissions, then starts its collective operations.

Threads: the synchroniser's lock guards everything here.
"""

from __future__ import annotations

from collections.abc import Collection

from byteprophet.tensor_names import gradient_name
from byteprophet.torch.sync.bucket_layout import BucketLayout
from byteprophet.torch.sync.operations import Operations, Submission


class Bucket:
    """Collects one tensor for each parameter in ``expects``.

    The tensors are either gradients to be reduced, or the parameters of a sharded bucket, to be
    all-gathered once each rank has updated its shards. ``label`` identifies the bucket and is the
    same on all ranks. ``iteration`` is the iteration in which the gradients were computed. The
    bucket may still be in flight when the next iteration has begun.
    """

    def __init__(
        self,
        operations: Operations,
        layout: BucketLayout,
        label: str,
        iteration: int,
        expects: Collection[str],
    ) -> None:
        self._operations = operations
        self._layout = layout
        self._label = label
        self._iteration = iteration
        self._expects = len(expects)
        self._submitted: dict[str, Submission] = {}

    def add(self, parameter: str, submission: Submission) -> bool:
        """Add a submission. Returns True if it was the last expected one."""
        self._submitted[parameter] = submission
        return len(self._submitted) == self._expects

    def reduce_gradients(self) -> None:
        """Start the reduce-scatter of the gradients that were submitted.

        If the bucket is whole, an all-gather of the averages follows.
        """
        operations, layout = self._operations, self._layout
        position = operations.position(layout.reduce_place, layout.delay)
        if layout.whole:
            positions = position, operations.position(layout.gather_place, layout.delay)
            operations.all_reduce(self._label, self._members(), positions, self._iteration)
        else:
            operations.reduce_scatter(self._label, self._members(), position, self._iteration)

    def gather_parameters(self) -> None:
        """Start the all-gather of the parameters, after this rank has updated its shards."""
        position = self._operations.position(self._layout.gather_place)
        label = f"all-gather {self._label}"
        self._operations.all_gather(label, self._members(), position, self._iteration)

    def _members(self) -> dict[str, Submission]:
        """The submissions by gradient name, in the layout's order, the same on all ranks."""
        submitted = self._submitted
        return {
            gradient_name(name): submitted[name]
            for name in self._layout.parameters
            if name in submitted
        }
