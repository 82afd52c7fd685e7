"""Compiles a model and a strategy to what each pipeline rank computes and communicates."""

from __future__ import annotations
