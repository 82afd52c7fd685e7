"""Parameters that several operators read: each pipeline rank has them once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from byteprophet.errors import UserError
from byteprophet.simulate.compile.compiled import Compiled, LocalParameter


def shared_once(
    blocks: Sequence[Compiled], places: Sequence[tuple[int, str]], pp: int
) -> tuple[list[Compiled], int]:
    """``blocks`` with what is repeated marked, and the elements that the outer ranks share.

    A rank has a parameter where it is used first. There its gradient is complete last. It is
    trained if one of its users gives it a gradient.

    Args:
        blocks: all blocks of a model, in the order of the forward pass.
        places: the pipeline rank and the path of each.
        pp: the number of pipeline ranks.

    Raises:
        UserError: other ranks than the first and the last share parameters.
    """
    first: dict[str, dict[int, LocalParameter]] = {}
    users: dict[str, str] = {}
    trained = {one.shared for each in blocks for one in each.parameters if one.trained}
    made: dict[tuple[int, tuple[LocalParameter, ...]], Compiled] = {}
    found = []
    for compiled, (rank, path) in zip(blocks, places, strict=True):
        parameters = []
        for own in compiled.parameters:
            of_rank = first.setdefault(own.shared, {}) if own.shared else {}
            learns = own.trained or (own.shared != "" and own.shared in trained)
            one = replace(own, repeated=rank in of_rank, trained=learns)
            parameters.append(one)
            of_rank.setdefault(rank, one)
            user = users.setdefault(one.shared, path)
            if len(of_rank) > 1 and not set(of_rank) <= {0, pp - 1}:
                raise UserError(
                    f"strategy: {user} and {path} share {one.shared} on pipeline ranks "
                    f"{sorted(of_rank)}: only the first and the last one can share parameters"
                )
        key = (id(compiled), tuple(parameters))
        if key not in made:
            marked = key[1] != compiled.parameters
            made[key] = replace(compiled, parameters=key[1]) if marked else compiled
        found.append(made[key])
    twice = (of_rank[pp - 1] for of_rank in first.values() if len(of_rank) > 1)
    tied = sum(one.elements for one in twice if one.trained)
    return found, tied
