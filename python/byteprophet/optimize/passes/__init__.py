"""The passes of the house, and those that other packages bring along."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.optimize.blame import GROUP, blaming, error_text, text_of
from byteprophet.optimize.moves import Effect, Pass, effect_in


def load_passes(names: Sequence[str] | None, allowed: Sequence[str]) -> list[Pass]:
    """The passes called ``names`` (None: all) that keep results, and those that are ``allowed``.

    ``UserError`` names a pass that is not there, cannot be loaded, or is asked for without leave.
    """
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    for name in (*(names or ()), *allowed):
        if name not in found:
            raise UserError(f"pass {name!r}: choose of {', '.join(sorted(found))}")
    loaded = [_load(found[name]) for name in sorted(found) if names is None or name in names]
    for each in loaded:
        if names is not None and each.effect is not Effect.EXACT and each.name not in allowed:
            raise UserError(f"pass {each.name!r}: {each.effect.value}: allow it with --allow")
    return [each for each in loaded if each.effect is Effect.EXACT or each.name in allowed]


def without_leave(passes: Sequence[Pass], job: Job, allowed: Sequence[str]) -> list[Pass]:
    """Those of ``passes`` that would change results of the recorded ``job`` and are not allowed."""
    lossy = []
    for each in passes:
        with blaming(each):
            if effect_in(each, job) is not Effect.EXACT and each.name not in allowed:
                lossy.append(each)
    return lossy


def _load(entry: EntryPoint) -> Pass:
    try:
        made: Pass = entry.load()()
    except Exception as error:  # noqa: BLE001 (it is another package's)
        raise UserError(f"{text_of(entry)} cannot be loaded: {error_text(error)}") from None
    name = getattr(made, "name", None)
    if name != entry.name:
        raise UserError(f"{text_of(entry)} calls itself {name!r}")
    if not isinstance(getattr(made, "effect", None), Effect):
        raise UserError(f"{text_of(entry)} does not say its effect (byteprophet.optimize.moves)")
    for needed in ("starts", "moves"):
        if not callable(getattr(made, needed, None)):
            raise UserError(f"{text_of(entry)} has no {needed}()")
    return made


def not_allowed(allowed: Sequence[str]) -> list[Pass]:
    """The passes that change results and are not ``allowed``, by name."""
    loaded = [_load(entry) for entry in entry_points(group=GROUP)]
    lossy = [each for each in loaded if each.effect is not Effect.EXACT]
    return sorted((each for each in lossy if each.name not in allowed), key=lambda each: each.name)
