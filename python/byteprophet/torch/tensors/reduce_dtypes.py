"""torch's types by the names that strategies have for them."""

from __future__ import annotations

import torch

from byteprophet.job.strategy import BF16, FP16

REDUCE_DTYPES = {BF16: torch.bfloat16, FP16: torch.float16}
"""The types in which gradients may travel."""
