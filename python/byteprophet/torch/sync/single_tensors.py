"""Torch's collectives that fill one tensor, under the names that every torch has.

Torch 2.13 has renamed them, and deprecates the older names.
"""

from __future__ import annotations

from typing import Any

from torch import distributed

all_gather: Any = getattr(distributed, "all_gather_single", None)
"""Called as ``all_gather(output, input, group=, async_op=)``."""
reduce_scatter: Any = getattr(distributed, "reduce_scatter_single", None)
"""Called as ``reduce_scatter(output, input, group=, async_op=)``."""
if all_gather is None or reduce_scatter is None:
    all_gather = distributed.all_gather_into_tensor
    reduce_scatter = distributed.reduce_scatter_tensor
