"""Which tests ``make test`` leaves to ``make test-thorough``: many of the combinations of one test.

A marked test is deselected unless ``--thorough`` is given or its node id names it. What is left
must cover: each value of each parameter, a real job of each capability, and each named failure.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

import pytest

OPTION = "--thorough"
THOROUGH = pytest.mark.thorough
_is_thorough = False


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        OPTION,
        action="store_true",
        help="run also tests that are marked thorough: the other combinations of a test",
    )


def configure(config: pytest.Config) -> None:
    """Let ``examples`` know the option: before test modules are imported."""
    global _is_thorough
    _is_thorough = config.getoption(OPTION)


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the marked tests out of ``items`` where they were not asked for."""
    if config.getoption(OPTION):
        return
    marked = [item for item in items if item.get_closest_marker(THOROUGH.name) is not None]
    left = {item for item in marked if not _is_named(config, item)}
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def _is_named(config: pytest.Config, item: pytest.Item) -> bool:
    """Whether an argument of pytest's is this test's node id, with or without its parameters."""
    own = item.nodeid.partition("::")[2]
    for argument in config.args:
        path, _, name = argument.partition("::")
        whole = config.invocation_params.dir / path
        if name and own.startswith(name) and whole.resolve() == item.path:
            return own == name or own[len(name)] in "[:"
    return False


def by_default(values: Iterable[Any], chosen: Container[Any]) -> list[Any]:
    """``values`` as parameters, of which those that are not ``chosen`` are thorough."""
    return [each if each in chosen else pytest.param(each, marks=THOROUGH) for each in values]


def pairs(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """All pairs as parameters; thorough, but for as many as cover each value of both once.

    The longer one's values have the shorter one's in turn.
    """
    most = max(len(first), len(second))
    covering = {(first[at % len(first)], second[at % len(second)]) for at in range(most)}
    return [
        pytest.param(one, other, marks=() if (one, other) in covering else THOROUGH)
        for one in first
        for other in second
    ]


def examples(few: int, many: int) -> int:
    """How many random cases a test has: ``many`` with ``--thorough``."""
    return many if _is_thorough else few


def asked(request: pytest.FixtureRequest, **having: Any) -> list[dict[str, Any]]:
    """The parameters of the selected tests of this module that have these values.

    So a job that is shared by tests does only what those that will run ask for.
    """
    parameters = (
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    )
    return [each for each in parameters if having.items() <= each.items()]
