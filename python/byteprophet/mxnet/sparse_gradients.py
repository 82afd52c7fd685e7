"""Refuses sparse gradients, on which BytePS would end the process."""

from __future__ import annotations


def refusal(parameter: object) -> ValueError:
    """What is raised for ``parameter``, whose gradient is sparse."""
    return ValueError(
        f"byteprophet: the gradient of {parameter} is sparse, and BytePS sends dense ones: make "
        "its layer without sparse_grad=True"
    )
