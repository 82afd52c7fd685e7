"""Why a job has failed whose roles one client starts: from what its roles have said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from byteprophet.launcher.causes import error_in, verdict_in

_KILLED = "was killed by signal"


def told_cause(
    said: Mapping[str, Sequence[str]], failed: Sequence[str], places: Mapping[str, str]
) -> str | None:
    """One line about the cause; None: no role has said any.

    Args:
        said: the last lines of every role, by its name.
        failed: the roles that have failed, those first that are to be believed first.
        places: where each of these ran, for people.
    """
    verdicts = {
        role: found
        for role, lines in said.items()
        for line in lines
        if (found := verdict_in(line)) is not None
    }
    if verdicts:  # the scheduler role knows best which role is lost
        return verdicts.get("scheduler") or next(iter(verdicts.values()))
    causes = []
    for role in sorted(failed, key=lambda name: not name.startswith("worker-")):
        told = [found for line in said.get(role, ()) if (found := error_in(line)) is not None]
        if told:
            own = told[-1] if told[-1].startswith(role) else f"{role}: {told[-1]}"
            causes.append(f"{own} ({places[role]})")
    # The others only miss the one that was killed.
    return next((cause for cause in causes if _KILLED in cause), causes[0] if causes else None)
