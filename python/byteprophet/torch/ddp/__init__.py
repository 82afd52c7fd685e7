"""Exchanges the gradients of ``DistributedDataParallel`` by our synchronisers (docs/ddp.md)."""
