"""Why a search made its moves: which pass made them, and which theorem expected them to pay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from byteprophet.optimize.search import Checked, Decision

_NONE = Checked(0, 0)


@dataclass(frozen=True)
class Reason:
    """The moves that led to the best job and that one theorem expected to pay.

    ``theorem``: "" for those that none did, so that the replay alone decided. ``tested``: of all
    moves that the theorem expected to pay, how many the search replayed, and how many paid.
    """

    theorem: str
    moves: int
    gain_ns: int
    tested: Checked

    @property
    def text(self) -> str:
        """The moves, and how often the theorem was right."""
        moves = f"{self.moves} move{'' if self.moves == 1 else 's'}"
        if not self.theorem:
            return f"{moves} that no theorem expected to pay"
        return (
            f"{moves} that it expected to pay; {self.tested.paid} of {self.tested.replayed} such "
            "moves paid when they were replayed"
        )

    def as_json(self) -> dict[str, Any]:
        """As ``byteprophet optimize --json`` and the page have it."""
        return {
            "theorem": self.theorem or None,
            "moves": self.moves,
            "gain_ns": self.gain_ns,
            "replayed": self.tested.replayed if self.theorem else None,
            "paid": self.tested.paid if self.theorem else None,
        }


def reasons_of(decisions: Sequence[Decision], tested: Mapping[str, Checked]) -> tuple[Reason, ...]:
    """The reasons for ``decisions``, the largest gain first."""
    by_theorem: dict[str, list[Decision]] = {}
    for each in decisions:
        by_theorem.setdefault(each.theorem, []).append(each)
    found = [
        Reason(
            theorem,
            len(made),
            sum(each.gain_ns for each in made),
            tested.get(theorem, _NONE),
        )
        for theorem, made in by_theorem.items()
    ]
    return tuple(sorted(found, key=lambda each: -each.gain_ns))


def by_pass(decisions: tuple[Decision, ...]) -> tuple[Decision, ...]:
    """A pass's moves as one decision: how many it made, and the last of them."""
    together: dict[str, list[Decision]] = {}
    for decision in decisions:
        together.setdefault(decision.by, []).append(decision)
    merged = [
        Decision(
            by,
            _together(made),
            sum(each.gain_ns for each in made),
            ", ".join(sorted({each.theorem for each in made if each.theorem})),
        )
        for by, made in together.items()
    ]
    return tuple(sorted(merged, key=lambda each: -each.gain_ns))


def _together(made: list[Decision]) -> str:
    """What a pass's moves changed, and how many of them a theorem expected to pay."""
    by_theorem = Counter(each.theorem for each in made if each.theorem)
    if len(made) == 1:
        return made[0].what + "".join(f" (by {theorem})" for theorem in by_theorem)
    counts = "".join(f", {count} by {theorem}" for theorem, count in sorted(by_theorem.items()))
    return f"{len(made)} moves{counts}; the last: {made[-1].what}"
