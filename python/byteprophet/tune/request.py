"""The request to tune: ``BYTEPROPHET_TUNE=ITERATIONS`` or ``ITERATIONS:NAME,NAME``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from byteprophet.errors import UserError
from byteprophet.input_files import whole_number
from byteprophet.tune.space import Settings, candidates, free_settings

VARIABLE = "BYTEPROPHET_TUNE"
TRIALS = 25
SETTLING = 3
"""Iterations of a window that are not measured. During the first, the choice is broadcast; during
the second, transfers with the previous settings remain; in the third, servers resize their second
buffers."""
_LEAST_ITERATIONS = TRIALS * (SETTLING + 1)


@dataclass(frozen=True)
class Request:
    """Tune the settings ``free`` of ``scheduler`` in ``iterations``; the others stay as they are.

    UserError if that is impossible.
    """

    scheduler: str
    settings: Mapping[str, int]
    iterations: int
    free: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.iterations < _LEAST_ITERATIONS:
            raise UserError(
                f"tuning in {self.iterations} iterations: it takes at least {_LEAST_ITERATIONS}, "
                f"{TRIALS} settings of {SETTLING + 1} iterations each"
            )
        self.candidates()

    @property
    def window(self) -> int:
        """Iterations per trial."""
        return self.iterations // TRIALS

    def candidates(self) -> list[Settings]:
        """The choices for the free settings."""
        return candidates(self.scheduler, self.free, self.settings)

    def __str__(self) -> str:
        return f"{self.iterations}:{','.join(self.free)}"


def parse_request(text: str, scheduler: str, settings: Mapping[str, int]) -> Request | None:
    """Parse ``text``, the variable's value for ``scheduler``; ``None``: no tuning ("", "0").

    ``settings`` are all of the scheduler's settings. UserError names what is wrong.
    """
    count, _, names = text.partition(":")
    if count.strip() in ("", "0") and not names:
        return None
    iterations = whole_number(count.strip())
    if iterations is None:
        raise UserError(f"{VARIABLE}={text}: use ITERATIONS or ITERATIONS:SETTING,SETTING")
    free = tuple(name.strip() for name in names.split(",")) if names else free_settings(scheduler)
    return Request(scheduler, settings, iterations, free)
