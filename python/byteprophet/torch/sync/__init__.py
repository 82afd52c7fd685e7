"""Synchronisers, which average gradients over all ranks, and the transports that they use."""
