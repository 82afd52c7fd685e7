"""Builds the graph of a program, replays it, and measures time and memory."""

from __future__ import annotations
