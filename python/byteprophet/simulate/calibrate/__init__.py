"""How far a predicted time may be off, and what measured runs say about a cluster's constants."""

from __future__ import annotations
