"""The compressors of a strategy file (``strategy_file.py``): read, checked, and written.

A file has rules: patterns of names, a type, and its settings. Of the rules that match a parameter,
the first one counts. What is read is the *canonical form*: every setting has a value, parameters
have names and no patterns, and each compressor occurs once. So files that say the same have the
same digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from fnmatch import fnmatchcase
from typing import Any

from byteprophet.job.compression import (
    ELEMENT_BYTES,
    Compressed,
    Compressor,
    Dithering,
    OneBit,
    PowerSgd,
    RandomK,
    TopK,
    why_unfit,
)
from byteprophet.job.model import Model

NONE = "none"
"""The type of a rule whose parameters travel as they are."""
_KINDS: Mapping[str, type[Compressor]] = {
    each.type: each for each in (OneBit, TopK, RandomK, Dithering, PowerSgd)
}
_OF_RULES = ("parameters", "type", "min_bytes")


def read_compressors(rows: object, model: Model) -> tuple[Compressed, ...]:
    """The canonical form of ``rows``, the member ``compressors`` of a file.

    Raises ``ValueError``, which says what is wrong: a rule, a type, a setting, a pattern that
    matches no parameter of ``model``, or a rule that compresses nothing.
    """
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError("compressors: must be a list of tables, one at least")
    sizes = dict(zip(model.names, model.sizes_bytes, strict=True))
    chosen: dict[str, Compressor | None] = {}
    for number, row in enumerate(rows, start=1):
        where = f"compressors: rule {number}"
        try:
            compressor, least_bytes = _compressor(row), _least_bytes(row)
            matched = [n for n in _matched(row, model) if sizes[n] >= max(1, least_bytes)]
            new = [name for name in matched if name not in chosen]
            if not new:
                raise ValueError(
                    "it is for nothing: earlier rules have its parameters, or they have fewer than "
                    f"{least_bytes} bytes"
                )
            if compressor is not None:
                _check_sizes(compressor, new, sizes)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        chosen.update(dict.fromkeys(new, compressor))
    found: dict[Compressor, list[str]] = {}
    for name in model.names:
        own = chosen.get(name)
        if own is not None:
            found.setdefault(own, []).append(name)
    if not found:
        raise ValueError("compressors: they compress nothing: leave them out")
    return tuple(Compressed(tuple(names), own) for own, names in found.items())


def compressors_as_json(compressors: Iterable[Compressed]) -> list[dict[str, Any]]:
    """The member ``compressors`` of a file, which ``read_compressors`` reads."""
    return [
        {
            "parameters": list(each.parameters),
            "type": each.compressor.type,
            **asdict(each.compressor),
        }
        for each in compressors
    ]


def text_of(compressor: Compressor) -> str:
    """The compressor in one line, for people, such as ``topk, k=0.01, error feedback``."""
    settings = asdict(compressor)
    feedback = "error feedback" if settings.pop("error_feedback") else "no error feedback"
    return ", ".join([compressor.type, *(f"{n}={v}" for n, v in settings.items()), feedback])


def _compressor(row: Mapping[str, Any]) -> Compressor | None:
    """The compressor of a rule; None if its parameters travel as they are."""
    kind = row.get("type")
    if kind != NONE and (not isinstance(kind, str) or kind not in _KINDS):
        known = ", ".join((*_KINDS, NONE))
        raise ValueError(f"type {str(kind)[:40]!r}: must be one of {known}")
    given = {name: value for name, value in row.items() if name not in _OF_RULES}
    known_settings = [] if kind == NONE else [field.name for field in fields(_KINDS[kind])]
    unknown = min(given.keys() - set(known_settings), default=None)
    if unknown is not None:
        has = f"has only {', '.join(known_settings)}" if known_settings else "has no settings"
        raise ValueError(f"{unknown[:40]}: there is no such setting: {kind} {has}")
    if kind == NONE:
        return None
    for field in fields(_KINDS[kind]):
        if field.default is MISSING and field.name not in given:
            raise ValueError(f"{field.name} is missing: {kind} needs it")
    k = given.get("k")
    if isinstance(k, float) and k.is_integer():
        given["k"] = int(k)
    return _KINDS[kind](**given)


def _least_bytes(row: Mapping[str, Any]) -> int:
    least_bytes = row.get("min_bytes", 0)
    if type(least_bytes) is not int or least_bytes < 0:
        raise ValueError("min_bytes: must be a number of bytes from 0")
    return least_bytes


def _matched(row: Mapping[str, Any], model: Model) -> list[str]:
    """The parameters of a rule, in the order of the model."""
    patterns = row.get("parameters")
    if not isinstance(patterns, list) or not patterns:
        raise ValueError("parameters: must be a list of names or patterns, at least one")
    found: set[str] = set()
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ValueError("parameters: must be a list of names or patterns, at least one")
        if pattern in model.places:
            found.add(pattern)
            continue
        matched = [name for name in model.names if fnmatchcase(name, pattern)]
        if not matched:
            raise ValueError(f"parameters: nothing is called {pattern[:80]!r}")
        found.update(matched)
    return [name for name in model.names if name in found]


def _check_sizes(compressor: Compressor, names: Sequence[str], sizes: Mapping[str, int]) -> None:
    """Refuse parameters that are known to be unfit without their shapes."""
    for name in names:
        if sizes[name] % ELEMENT_BYTES:
            raise ValueError(f"parameter {name!r} has {sizes[name]} bytes, and is not of float32")
        if not isinstance(compressor, PowerSgd):
            why = why_unfit(compressor, (sizes[name] // ELEMENT_BYTES,))
            if why:
                raise ValueError(f"parameter {name!r}: {why}")
