"""The time of operators and collectives on a cluster."""

from __future__ import annotations
