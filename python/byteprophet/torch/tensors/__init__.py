"""Helpers for tensors in flight that torch lacks: waits, memory order, names, module calls."""
