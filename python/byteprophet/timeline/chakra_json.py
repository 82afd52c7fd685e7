"""Reads Chakra traces as JSON, in both existing forms.

Chakra's jsonizer     the metadata and then each node, as protobuf prints messages, one by one
ASTRA-sim's feeder    {"workload_graph": [{"Id": 0, "Name": "x", "NodeType": 4, ...}, ...]}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.timeline.chakra_graph import READ_ATTRIBUTES, ChakraGraph
from byteprophet.timeline.chakra_schema import schema
from byteprophet.timeline.events import Events
from byteprophet.timeline.span_list import valid_text

FEEDER = "workload_graph"
_FIELDS = {
    "Id": "id",
    "Name": "name",
    "NodeType": "type",
    "ctrl_deps": "ctrlDeps",
    "data_deps": "dataDeps",
    "runtime": "durationMicros",
}


class ChakraJsonReader:
    """Takes the parts of a trace (``json_traces.json_parts``) and then returns its spans."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._graph = ChakraGraph(path)
        self._number = 0
        self._is_of_feeder = False

    def take(self, key: str, value: Any) -> None:
        """Takes the next part. Raises ``UserError`` if it is not part of such a trace."""
        if not isinstance(value, dict):
            raise self._wrong("must be an object")
        if key == FEEDER:
            if not self._is_of_feeder:
                self._is_of_feeder = True
                self._graph.add(schema().metadata())
            self._add(schema().node(), _of_feeder(value))
        elif key == "" and not self._is_of_feeder:
            message = schema().node() if self._number else schema().metadata()
            self._add(message, _with_read_attributes(value))
        elif key != "":
            raise UserError(f"{self._path}: is not a Chakra trace: it has a list {key}")

    def events(self, rank: int) -> Events:
        """All spans. ``rank`` is used if neither the trace nor its file name states the rank."""
        return self._graph.events(rank)

    def _add(self, message: Any, value: Mapping[str, Any]) -> None:
        from google.protobuf import json_format

        wrong = (json_format.ParseError, ArithmeticError, AttributeError, TypeError, ValueError)
        try:
            json_format.ParseDict(_encodable(value), message, ignore_unknown_fields=True)
        except wrong as error:
            raise self._wrong(" ".join(str(error).split())[:200]) from None
        self._graph.add(message)
        self._number += 1

    def _wrong(self, reason: str) -> UserError:
        return UserError(f"{self._path}: is not a Chakra trace: message {self._number}: {reason}")


def _with_read_attributes(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Removes the attributes that we do not read, because parsing them takes most of the time."""
    attr = value.get("attr")
    if not isinstance(attr, list):
        return value
    read = [one for one in attr if not isinstance(one, dict) or one.get("name") in READ_ATTRIBUTES]
    return {**value, "attr": read}


def _encodable(value: Any, levels: int = 3) -> Any:
    """``value`` with all text made valid for protobuf, down to ``levels`` of nesting."""
    if isinstance(value, str):
        return valid_text(value)
    if levels and isinstance(value, list):
        return [_encodable(one, levels - 1) for one in value]
    if levels and isinstance(value, dict):
        return {valid_text(name): _encodable(one, levels - 1) for name, one in value.items()}
    return value


def _of_feeder(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Converts a node of ASTRA-sim's feeder to the form in which protobuf prints it."""
    message = {ours: value[theirs] for theirs, ours in _FIELDS.items() if theirs in value}
    if "comm_size" in value:
        message["attr"] = [{"name": "comm_size", "int64Val": value["comm_size"]}]
    return message
