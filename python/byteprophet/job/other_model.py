"""What is said where a strategy is another model's."""

from __future__ import annotations

from byteprophet.errors import UserError


def other_model(path: str, difference: str) -> UserError:
    """The error for the strategy in the file ``path``; ``difference`` is the first one."""
    return UserError(f"{path} is the strategy of another model: {difference}")


def other_size(name: str, size_bytes: int, here_bytes: int) -> str:
    """The difference of a parameter that has ``size_bytes`` in the strategy's model."""
    return f"parameter {name!r} has {size_bytes} bytes, and {here_bytes} in this model"
