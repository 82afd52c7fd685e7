"""A job on virtual time: gradients in bursts, as the plug-in would record them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from byteprophet.timeline.tables import TRANSFER, Transfers


@dataclass
class VirtualJob:
    """``ready_ns`` by tensor number, from the first; each tensor has two partitions.

    Every time is off by ``noise_ns`` (standard deviation), as seen by ``random``.
    """

    ready_ns: Mapping[int, int]
    noise_ns: float = 0.0
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))
    iteration: int = 0
    now_ns: int = 10**12

    def iterate(self, scale: float = 1.0, late_ns: int = 0) -> Transfers:
        """The transfers of the next iteration, all times scaled, in random order of completion.

        ``late_ns``: half of the tensors are late by that.
        """
        self.iteration += 1
        transfers = np.zeros(2 * len(self.ready_ns), TRANSFER)
        row = 0
        for number, ready_ns in self.ready_ns.items():
            off_ns = abs(self.random.normal(0, self.noise_ns)) + late_ns * (number % 2)
            for partition in range(2):
                at_ns = int(self.now_ns + ready_ns * scale + off_ns + 20_000 * partition)
                transfers[row]["key"] = number << 16 | partition
                transfers[row]["size_bytes"] = 1000 * (number + 1)
                transfers[row]["ready_ns"] = at_ns
                transfers[row]["sent_ns"] = at_ns + 1000
                transfers[row]["acked_ns"] = at_ns + 500_000
                transfers[row]["pulled_ns"] = at_ns + 900_000
                transfers[row]["iteration"] = self.iteration
                transfers[row]["priority"] = -1 - number
                row += 1
        self.now_ns += int(2 * max(self.ready_ns.values()) * scale) + 10**8
        self.random.shuffle(transfers)
        return transfers


@pytest.fixture
def virtual_job() -> type[VirtualJob]:
    return VirtualJob
