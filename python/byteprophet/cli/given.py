"""Options that were given although they belong to another way of calling the command."""

from __future__ import annotations

import typer

from byteprophet.errors import UserError

# Where users say it unlike the parameter's name.
_SPELLED = {"settings": "--set", "run": "RUN", "as_json": "--json"}


def is_given(context: typer.Context, name: str) -> bool:
    """Whether the parameter was given, and does not just have its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def spelled(name: str) -> str:
    """The parameter as users write it."""
    return _SPELLED.get(name) or f"--{name.strip('_').replace('_', '-')}"


def refuse_given(context: typer.Context, names: tuple[str, ...], why: str) -> None:
    """UserError where one of the parameters was given."""
    for name in names:
        if is_given(context, name):
            raise UserError(f"{spelled(name)} {why}")
