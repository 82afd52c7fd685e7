"""Rules for compressors as users type them: ``PATTERN=TYPE`` or ``PATTERN=TYPE,NAME=VALUE,...``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from byteprophet.errors import UserError
from byteprophet.job.strategy_file import Used, with_compressors


def with_rules(used: Used, rules: Sequence[str], path: str) -> Used:
    """The strategy ``used``, which is in the file ``path``, with compressors by ``rules``.

    Raises ``UserError`` if it has compressors already, or if a rule is wrong.
    """
    if used.strategy.compressors:
        raise UserError(f"{path}: it has compressors already: take the file that had none")
    try:
        return with_compressors(used, [_parse(rule) for rule in rules])
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def _parse(rule: str) -> dict[str, Any]:
    pattern, is_rule, rest = rule.partition("=")
    kind, *settings = rest.split(",")
    if not is_rule or not pattern or not kind:
        raise UserError(
            f"rule {rule!r:.100}: write PATTERN=TYPE,NAME=VALUE, as *.weight=topk,k=0.01"
        )
    found: dict[str, Any] = {"parameters": [pattern], "type": kind}
    for setting in settings:
        name, is_setting, value = setting.partition("=")
        if not is_setting or name in found:
            raise UserError(
                f"rule {rule!r:.100}: {setting!r} is not a setting: write NAME=VALUE once"
            )
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    """A number, true or false as JSON writes them; any other text as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text
