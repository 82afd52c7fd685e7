"""Goes on from what an earlier search of the same run left behind.

While a search runs, its best strategy so far is saved as ``strategy.partial.json``; in the end
``strategy.json`` takes its place. Beside each of the two, ``decisions.partial.json`` and
``decisions.json`` say what led to it. The latter also says that the result is a search's: one that
is not is refused. A later search of the same run into the same directory begins with both
strategies, besides its other starts.

The gradients of a result may travel compressed, which is decided anew behind each search
(``compression.py``). A later search begins with that result without its compressors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, read_json
from byteprophet.job import Job
from byteprophet.job.strategy import BF16, without_compressed
from byteprophet.job.strategy_file import Used, read_strategy_file, strategy_path, write_strategy
from byteprophet.optimize.blame import blaming
from byteprophet.optimize.compression import COMPRESSION
from byteprophet.optimize.computing import Computing
from byteprophet.optimize.gradient_changes import with_changes_of
from byteprophet.optimize.moves import Move, Pass
from byteprophet.optimize.recorded import used_by
from byteprophet.optimize.search import RESUMED, Candidate, Decision, Left
from byteprophet.replay.under import under
from byteprophet.whole_files import make_directory, write_whole

SCHEMA = 1


class Resume:
    """The files of one output directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._partial = directory / "strategy.partial.json"

    def refuse_others(self) -> None:
        """Refuse a directory with a strategy that no search saved there: it would be replaced.

        Raises:
            UserError: it has one.
        """
        path = strategy_path(self._directory)
        if not path.exists():
            return
        try:
            decisions = _read(path)
            known = _digest(path) in (decisions["strategy"], decisions.get("replaces"))
        except (UserError, KeyError):
            known = False
        if not known:
            raise UserError(
                f"{path}: was not saved by this command, which would replace it: use another --out"
            )

    def left(self, jobs: Sequence[Job], passes: Sequence[Pass], *, asked: bool) -> list[Left]:
        """What earlier searches left, as far as ``passes`` may make it.

        That is a result, and what a search behind it had found when it was stopped.

        ``jobs``: the recorded one, and what it is under other transports, if that is known.
        ``asked``: the user named the passes, so that no other one may have had a part in it.
        """
        names = {each.name for each in passes}
        found = []
        for path in (self._partial, strategy_path(self._directory)):
            if not path.exists():
                continue
            try:
                used = read_strategy_file(path)
                fitting = [_under(job, used, passes) for job in jobs]
            except UserError:
                continue  # it is of another version, or damaged: search without it
            decisions = _decisions(path, used)
            if not _made_by(decisions, names, asked):
                continue
            made = next(filter(None, fitting), None)
            if made is not None:
                found.append(Left(Move("as an earlier search left it", made), decisions))
        return found

    def keep(self, best: Candidate, recorded: Job) -> None:
        """Save the best so far of what may take the place of ``recorded``."""
        make_directory(self._directory)
        _write(self._partial, used_by(best.job, recorded), best.decisions)

    def end(self, used: Used | None, decisions: Sequence[Decision]) -> Path | None:
        """Save the result at the search's end, and say where: nothing is partial any more.

        ``used``: None if nothing better was found. The result of an earlier search, which may have
        had leave for more, must not be taken for it then. Until now, a search that is stopped could
        begin with it.
        """
        saved = strategy_path(self._directory)
        if used is None:
            _remove(saved)
        else:
            _write(saved, used, decisions)
        _remove(self._partial)
        return None if used is None else saved


def decisions_beside(strategy: Path) -> Path:
    """The file of the decisions that led to ``strategy``."""
    return strategy.with_name(strategy.name.replace("strategy", "decisions"))


def _write(path: Path, used: Used, decisions: Sequence[Decision]) -> None:
    """Write a strategy, and beside it the decisions that led to it.

    Until the strategy is there, the decisions also know the one that it replaces, so that a search
    that is stopped in between leaves what a later one knows.
    """
    replaced = _digest(path) if path.exists() else ""
    _write_decisions(path, used, decisions, replaced)
    write_strategy(path, used)
    if replaced:
        _write_decisions(path, used, decisions)


def _write_decisions(
    path: Path, used: Used, decisions: Sequence[Decision], replaced: str = ""
) -> None:
    data: dict[str, Any] = {"schema": SCHEMA, "strategy": used.digest}
    if replaced:
        data["replaces"] = replaced
    data["decisions"] = [asdict(decision) for decision in decisions]
    write_whole(decisions_beside(path), json.dumps(data, indent=1) + "\n")


def _digest(path: Path) -> str:
    """The digest of the strategy in ``path``; "" if the file is damaged."""
    try:
        return read_strategy_file(path).digest
    except UserError:
        return ""


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    decisions_beside(path).unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    """The decisions beside the strategy ``path``, as the file has them; "strategy" is its digest.

    Raises ``UserError`` if there is no such file.
    """
    data: Any = read_json(decisions_beside(path))
    if not has_schema(data, SCHEMA):
        raise UserError(f"{decisions_beside(path)}: schema: must be {SCHEMA}")
    return dict(data)


def _decisions(path: Path, used: Used) -> tuple[Decision, ...]:
    """The moves that led to ``used``, the strategy in ``path``; none if they are not known."""
    try:
        data = _read(path)
        if data["strategy"] != used.digest:
            return ()
        found = (
            Decision(
                _text(row["by"]),
                _text(row["what"]),
                _time_ns(row["gain_ns"]),
                _text(row["theorem"]),
            )
            for row in data["decisions"]
        )
        return tuple(each for each in found if each.by != COMPRESSION)
    except (UserError, ValueError, KeyError, TypeError):
        return ()


def _made_by(decisions: Sequence[Decision], names: set[str], asked: bool) -> bool:
    """Whether passes called ``names`` alone may have made these decisions.

    Where it is not known which passes did, that is so unless the user ``asked`` for single ones.
    """
    by = {each.by for each in decisions} or {RESUMED}
    return by <= (names if asked else {*names, RESUMED})


def _under(job: Job, used: Used, passes: Sequence[Pass]) -> Job | None:
    """``job`` under the strategy of an earlier search; None if it does not fit."""
    used = replace(used, strategy=without_compressed(used.strategy))
    strategy = used.strategy
    if strategy.staleness or strategy.local_sgd:
        return None  # no pass makes these, and a search has no leave for them
    if strategy.changes_model:
        used_words = {word for each in strategy.regions for word in each.mode().split("-")}
        if strategy.autocast:
            used_words.add(BF16)
        learned = [each for each in passes if isinstance(each, Computing)]
        if used_words - {word for each in learned for word in each.words}:
            return None  # this search has no leave for it
        with blaming(learned[0]):
            changed = learned[0].changed(
                job, replace(job.strategy, regions=strategy.regions, autocast=strategy.autocast)
            )
        if changed is None:
            return None
        job = changed
    casting = with_changes_of(job, strategy.reduce_dtype, strategy.accumulation, passes)
    if casting is None:
        return None
    try:
        return under(casting, used, "earlier search")
    except UserError:
        return None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    return value


def _time_ns(value: Any) -> int:
    if type(value) is not int or abs(value) >= 1 << 60:
        raise ValueError("not a time")
    return value
