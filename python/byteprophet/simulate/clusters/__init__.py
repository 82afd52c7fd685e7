"""Descriptions of clusters: built in, as TOML files beside this one, or a user's own file."""

from __future__ import annotations
