"""Tells whether a thread is in a backward pass."""

from __future__ import annotations

import torch


def in_backward() -> bool:
    """Whether this thread is in a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)
