"""Rank 0 suspends, but rank 1 does not."""

from __future__ import annotations

import time

import byteps.torch as bps
import torch

bps.init()
bps.push_pull(torch.ones(3), name="both are there")
if bps.rank() == 0:
    bps.suspend()
time.sleep(60)
