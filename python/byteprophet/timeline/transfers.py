"""The record of one partition's way in one iteration, as the plug-in hands it out."""

from __future__ import annotations

import numpy as np

TRANSFER = np.dtype(
    [
        ("key", np.uint64),  # tensor << 16 | partition
        ("size_bytes", np.uint64),  # on the wire, one direction
        ("ready_ns", np.int64),
        ("sent_ns", np.int64),
        ("acked_ns", np.int64),
        ("pulled_ns", np.int64),
        ("server", np.uint32),
        ("iteration", np.uint32),
        ("priority", np.int32),
        ("reserved", np.uint32),
    ]
)
