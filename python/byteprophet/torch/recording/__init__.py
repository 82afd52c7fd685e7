"""Observes a training loop while it is recorded or profiled."""
