"""Which rank has saved a state of its own shards: no other rank may load it.

The shards of two ranks often have equal shapes, which then do not tell whose they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEY = "byteprophet_saver"
"""The key of ``sharded_state_dict()`` under which ``named`` is."""


def named(rank: int, ranks: int) -> dict[str, int]:
    """What a state says of ``rank``, which saves it in a job of so many ``ranks``."""
    return {"rank": rank, "ranks": ranks}


def refuse_shards(state: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if ``load_state_dict()`` gets ``state`` with one rank's shards."""
    if KEY in state:
        saver = state[KEY]
        raise ValueError(
            f"load_state_dict(): it has the shards of rank {saver['rank']} only: give it to "
            "load_sharded_state_dict() on that rank, or load what state_dict() returned"
        )


def refuse_other(saver: Mapping[str, int], rank: int, ranks: int, call: str) -> None:
    """Raise ``ValueError`` unless ``saver`` is ``rank`` in a job of so many ``ranks``.

    ``saver`` is what ``named`` returned. It is empty if the state does not say who saved it, and
    then nothing is refused. ``call`` names the script's call, which loads the state.
    """
    found = saver.get("rank", rank), saver.get("ranks", ranks)
    if found != (rank, ranks):
        raise ValueError(
            f"{call}: it was saved by rank {found[0]} of {found[1]}, and this is rank {rank} of "
            f"{ranks}: use state_dict()"
        )
