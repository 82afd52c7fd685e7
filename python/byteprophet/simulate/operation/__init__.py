"""Operators as data, and the layouts of their tensors on a device mesh."""

from __future__ import annotations
