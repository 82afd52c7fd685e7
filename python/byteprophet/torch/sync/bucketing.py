"""Assigns each parameter of an optimizer to a bucket, and changes the assignment.

Until a plan is adopted, a rule makes the buckets: a size, or a number of layers per bucket. Each
change makes a new *layout version*, which is the same on all ranks.

Threads: the synchroniser's lock guards everything here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from byteprophet.allreduce.groups import Groups, fixed_size, near_layer
from byteprophet.allreduce.model import Order
from byteprophet.allreduce.timing import Timing
from byteprophet.job.staleness import NO_DELAYS
from byteprophet.torch.sync.bucket_layout import BucketLayout, Size, arranged, by_rule

PLANNED, TUNED, NEAR_LAYER = "planned", "tuned", "near-layer"
"""The values that ``fusion`` of ``DistributedOptimizer`` may have, besides a number of bytes."""
_BUCKET_BYTES = 2_000_000  # until there is a plan
_NEAR_LAYERS = 4  # as in the DeAR paper


class Bucketing:
    """The current buckets.

    ``mode`` and ``fusion`` are ``sync`` and ``fusion`` of ``DistributedOptimizer``. ``shardable``
    says whether a rank may update only a shard of a parameter. ``delays``: of averages, in
    iterations, by parameter.
    """

    def __init__(
        self,
        mode: str,
        shardable: bool,
        fusion: int | str,
        delays: Mapping[str, int] = NO_DELAYS,
    ) -> None:
        self.mode = mode
        self.shardable = shardable
        self.bucket_bytes = fusion if isinstance(fusion, int) else _BUCKET_BYTES
        self.layouts: list[BucketLayout] = []
        self.layout_version = 0
        self.sizes: Mapping[str, Size] = {}
        self.needed: Sequence[str] = ()
        """The parameters in forward order, as far as it is known."""
        self.position: Mapping[str, int] = {}
        """Each parameter's position in the agreed order, which includes parameters without
        elements."""
        self._ready: Sequence[str] = ()  # in the order in which backward makes gradients ready
        self._fusion = fusion
        self._delays = delays
        self._rule_shards = shardable
        self._bucket_of: dict[str, int] = {}

    def bucket_of(self, parameter: str) -> int | None:
        """The index in ``layouts`` of the bucket of ``parameter``, or None if it has no bucket."""
        return self._bucket_of.get(parameter)

    def is_sharded(self, parameter: str) -> bool:
        """Whether each rank updates its shard of ``parameter``."""
        place = self._bucket_of.get(parameter)
        return place is not None and not self.layouts[place].whole

    def set_parameters(self, sizes: Mapping[str, Size]) -> None:
        """Replace the parameters. Assumes that backward makes gradients ready in reverse order."""
        self.sizes = sizes
        needed = list(sizes)
        self._set_orders(needed[::-1], needed)

    def begin_whole(self) -> None:
        """Until a plan is adopted, every rank updates all parameters.

        For a plan with whole buckets: if these were sharded before it is adopted, every rank would
        have the optimizer's state of its shards only.
        """
        self._rule_shards = False
        self._set_orders(self._ready, self.needed)

    def set_orders(self, ready: Sequence[str], agreed: Sequence[str]) -> None:
        """Use the agreed orders: of gradients becoming ready, and of parameters being needed."""
        self.position = {name: number for number, name in enumerate(agreed)}
        self._set_orders(ready, [name for name in agreed if name in self.sizes])

    def set_bucket_bytes(self, bucket_bytes: int) -> None:
        """Make buckets of up to ``bucket_bytes`` bytes."""
        self.bucket_bytes = bucket_bytes
        self._set_orders(self._ready, self.needed)

    def adopt(self, groups: Groups, order: Order) -> None:
        """Adopt a plan: ``groups`` are buckets of positions in ``needed``, sent in ``order``."""
        self._set_layouts(
            arranged(self.sizes, self.needed, groups, order, self.shardable, self._delays)
        )

    def _set_orders(self, ready: Sequence[str], needed: Sequence[str]) -> None:
        self._ready, self.needed = ready, needed
        shards = self._rule_shards
        self._set_layouts(
            by_rule(self.mode, self.sizes, ready, needed, self._rule, shards, self._delays)
        )

    def _rule(self, timing: Timing) -> Groups:
        if self._fusion == NEAR_LAYER:
            return near_layer(timing, _NEAR_LAYERS)
        return fixed_size(timing, self.bucket_bytes)

    def _set_layouts(self, layouts: list[BucketLayout]) -> None:
        self.layouts = layouts
        self.layout_version += 1
        self._bucket_of = {
            name: place for place, layout in enumerate(layouts) for name in layout.parameters
        }
