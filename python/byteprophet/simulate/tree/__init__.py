"""The strategy tree: settings at nodes of a model's tree, which hold for all that is below."""

from __future__ import annotations
