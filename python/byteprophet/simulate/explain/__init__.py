"""Explains a result: lanes of pipeline ranks, critical path, what takes memory; the page's data."""

from __future__ import annotations
