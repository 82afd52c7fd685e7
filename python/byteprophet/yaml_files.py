"""Reads and writes YAML files that say what a JSON file could say, and nothing else.

Scalars are what JSON makes of them: ``true``, ``false``, ``null`` and numbers as JSON writes them;
all other plain text is text, also ``no``, ``on``, ``1:30`` and ``2026-11-27``, of which YAML 1.1
makes other things. Refused are keys that occur twice, keys that are no text, aliases (a short file
may stand for a very large value), several documents, and tags.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from byteprophet.errors import UserError
from byteprophet.input_files import check_plain, read_text

_LARGEST_BYTES = 1 << 20
"""PyYAML reads some 100 kB/s. JSON has no such limit."""
_TAG = "tag:yaml.org,2002:"
_BREAKS = frozenset("\x85\u2028\u2029")
_SCALARS = (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"-?(?:0|[1-9][0-9]*)", "-0123456789"),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", "-0123456789"),
)


class _Loader(yaml.SafeLoader):
    """See the top of this file."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node that is no alias and has no tag."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        problem = ""
        if isinstance(event, yaml.AliasEvent):
            problem = "aliases are not read"
        elif getattr(event, "tag", None) is not None:
            problem = f"tags are not read: leave out {event.tag[:40]!r}"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping whose keys are texts, each of them once."""
        found: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            mark = key_node.start_mark
            if not isinstance(key, str):
                problem = f"key {str(key)[:40]!r} is no text: put it into quotes"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
            if key in found:
                problem = f"key {key[:80]!r} occurs twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
            found.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes what ``_Loader``, or a reader of YAML 1.1, would not take for text."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Represent a text; what YAML 1.1 takes for line breaks is written as escapes."""
        style = '"' if _BREAKS.intersection(data) else None
        return self.represent_scalar(f"{_TAG}str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)

for _name, _pattern, _first in _SCALARS:
    _resolver = f"{_TAG}{_name}", re.compile(rf"(?:{_pattern})\Z"), list(_first)
    _Loader.add_implicit_resolver(*_resolver)
    _Dumper.add_implicit_resolver(*_resolver)


def read_yaml(path: Path) -> Any:
    """The value in the YAML file at ``path``; ``UserError``, of one line, where there is none."""
    text = read_text(path)
    check_size(path, text)
    try:
        value = yaml.load(text, _Loader)  # noqa: S506 (it is a SafeLoader)
        check_plain(value)
        _check_numbers(value)
    except RecursionError:
        raise UserError(f"{path}: is not YAML: it is nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        said = ", ".join(filter(None, (error.context, error.problem)))
        raise UserError(f"{path}: is not YAML: {where}{said}") from None
    except (yaml.YAMLError, ValueError) as error:
        said = " ".join(str(error).split())
        raise UserError(f"{path}: is not YAML: {said[:200]}") from None
    return value


def check_size(path: Path, text: str) -> None:
    """Raise ``UserError`` if ``text`` at ``path`` is too large for ``read_yaml``."""
    if len(text.encode()) > _LARGEST_BYTES:
        raise UserError(
            f"{path}: is larger than {_LARGEST_BYTES >> 20} MiB, the limit for YAML: use JSON"
        )


def yaml_text(value: Any) -> str:
    """The text of a YAML file with ``value``, from which ``read_yaml`` reads an equal one."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))


def _check_numbers(value: Any) -> None:
    """Raise ``ValueError`` if a number is too large for a float."""
    nodes = [value]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node
        elif isinstance(node, float) and not abs(node) < float("inf"):
            raise ValueError(f"{node} is not a number that JSON has")
