"""How long the supervisor of clients waits for them, and they for what roles have written."""

from __future__ import annotations

from dataclasses import replace

from byteprophet.launcher.spec import JobSpec, Limits

ENDING_S = 10.0
"""How long a role may take to end after its grace: it kills its processes, and removes memory."""
FETCH_TIMEOUT_S = 600.0
"""How long a client may take to fetch the files of its roles, which is after their end."""
_HEARING_S = 60.0  # how long a client may take to hear of an end, and to end itself


def with_client_limits(
    spec: JobSpec, fetch_s: float = 0.0, ending_s: float | None = None
) -> JobSpec:
    """``spec`` for the supervisor of clients, whose roles have the grace of ``spec`` themselves.

    ``fetch_s`` is how long a client may take to fetch files; 0: it fetches none. Roles that end
    together have clients that end as far apart as this. ``ending_s``: how long a client may take to
    end its roles; None: their grace.
    """
    ending_s = spec.limits.grace_s if ending_s is None else ending_s
    limits = Limits(
        grace_s=ending_s + _HEARING_S + fetch_s,
        farewell_s=20.0,
        premature_s=30.0 + fetch_s,
        last_words_s=8.0,
    )
    return replace(spec, limits=limits)
