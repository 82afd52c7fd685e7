"""Models as trees of operators: built in, or from a Hugging Face ``config.json``."""

from __future__ import annotations
