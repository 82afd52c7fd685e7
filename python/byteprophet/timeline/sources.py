"""Traces of any kind that we read, told apart by what is in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.timeline.events import SUFFIX, Events
from byteprophet.timeline.json_traces import parse_json_values, read_bytes
from byteprophet.timeline.read_chakra import (
    chakra_events,
    is_chakra_json,
    messages_of_json,
    read_chakra,
)
from byteprophet.timeline.read_comm_json import comm_json_events, is_comm_json
from byteprophet.timeline.read_events import load_events, load_run
from byteprophet.timeline.read_kineto import is_kineto, kineto_events

READ = (
    "a run directory, our events (*.arrows), BytePS' comm.json, a torch.profiler trace, or a "
    "Chakra trace (*.et, or as JSON)"
)


def load_sources(paths: Sequence[Path]) -> list[Events]:
    """The events of run directories and files of any kind, in the order of ``paths``.

    A foreign file that does not say its worker's rank gets the next one among files of its kind.
    UserError in one line that names the file and what is wrong with it.
    """
    events: list[Events] = []
    seen: Counter[str] = Counter()
    for path in paths:
        if path.is_dir():
            events += load_run(path)
        elif path.suffix == SUFFIX:
            events.append(load_events(path))
        else:
            kind, found = _load_foreign(path, seen)
            seen[kind] += 1
            events.append(found)
    return events


def _load_foreign(path: Path, seen: Counter[str]) -> tuple[str, Events]:
    """Its kind and events; ``seen``: how many there were of each kind."""
    content = read_bytes(path)
    if path.suffix == ".et" or content.lstrip()[:1] not in b"{[":
        if path.suffix != ".et":
            raise UserError(f"{path}: is none of what can be read: {READ}")
        return "chakra", read_chakra(path, seen["chakra"])
    values = parse_json_values(path, content)
    if is_kineto(values[0]) and len(values) == 1:
        return "kineto", kineto_events(path, values[0], seen["kineto"])
    if is_comm_json(values[0]) and len(values) == 1:
        return "comm", comm_json_events(path, values[0], seen["comm"])
    if is_chakra_json(values):
        return "chakra", chakra_events(path, messages_of_json(path, values), seen["chakra"])
    if isinstance(values[0], dict) and "nodes" in values[0] and "schema" in values[0]:
        raise UserError(
            f"{path}: a host trace of PyTorch says no times: give it to chakra_trace_link and "
            "chakra_converter first"
        )
    raise UserError(f"{path}: is none of what can be read: {READ}")
