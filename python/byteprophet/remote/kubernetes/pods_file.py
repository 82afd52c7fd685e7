"""Pods files: what ``byteprophet run --on kubernetes`` must know of pods. docs/formats.md."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, parse_table, read_text

SCHEMA = 1
EXAMPLE_IMAGE = "registry.example.com/training:latest"
_FIELDS = (
    "image", "name", "namespace", "directory", "shared_memory", "volumes", "worker", "server",
)  # fmt: skip
_OF_A_ROLE = ("limits", "node_selector")
# Names of pods are longer, and have at most 63 letters.
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([KMGTPE]i|[mkMGTPE])?")


@dataclass(frozen=True)
class RolePods:
    """Pods of one kind of role: ``limits`` of resources by name, and labels of their nodes."""

    limits: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PodsFile:
    """What a user says about pods.

    Attributes:
        image: of all pods; None: the user has named none.
        name: of the job's objects.
        namespace: where they are; None: kubectl's own.
        directory: where workers start; None: the image's working directory.
        volumes: of workers: names of PersistentVolumeClaims, by the paths where they are mounted.
        shared_memory: the size of a worker's /dev/shm; None: up to half of the node's memory.
        worker, server: their pods. The scheduler role's have neither limits nor a selector.
    """

    image: str | None
    name: str
    namespace: str | None = None
    directory: str | None = None
    shared_memory: str | None = None
    volumes: Mapping[str, str] = field(default_factory=dict)
    worker: RolePods = RolePods()
    server: RolePods = RolePods()


def read_pods_file(path: Path | None) -> PodsFile:
    """Read ``path``; None: there is no file. Raises ``UserError``, which names file and field.

    A job whose file has no name gets one that no other job has.
    """
    name = f"byteprophet-{secrets.token_hex(3)}"
    if path is None:
        return PodsFile(None, name)
    table = parse_table(read_text(path), str(path))
    try:
        return _pods(table, name)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _pods(table: Mapping[str, Any], usual_name: str) -> PodsFile:
    if not has_schema(table, SCHEMA):
        raise UserError(f"schema: must be {SCHEMA}")
    _refuse_unknown({key: value for key, value in table.items() if key != "schema"}, _FIELDS)
    name = _text(table, "name") or usual_name
    if not _NAME.fullmatch(name):
        raise UserError(
            f"name {name!r}: must be at most 40 lower-case letters, digits and hyphens, and begin "
            "with a letter"
        )
    namespace = _text(table, "namespace")
    if namespace is not None and not _NAMESPACE.fullmatch(namespace):
        raise UserError(
            f"namespace {namespace!r}: must be at most 63 lower-case letters, digits and hyphens"
        )
    size = _text(table, "shared_memory")
    if size is not None and not _QUANTITY.fullmatch(size):
        raise UserError(f"shared_memory {size!r}: must be a quantity of Kubernetes, such as 8Gi")
    return PodsFile(
        image=_text(table, "image"),
        name=name,
        namespace=namespace,
        directory=_text(table, "directory"),
        shared_memory=size,
        volumes=_volumes(table),
        worker=_role(table, "worker"),
        server=_role(table, "server"),
    )


def _volumes(table: Mapping[str, Any]) -> dict[str, str]:
    claims = _texts(table, "volumes")
    for path in claims:
        if not path.startswith("/"):
            raise UserError(f"volumes: {path!r}: must be an absolute path")
    return claims


def _role(table: Mapping[str, Any], name: str) -> RolePods:
    own = table.get(name, {})
    if not isinstance(own, dict):
        raise UserError(f"{name}: must be a table")
    try:
        _refuse_unknown(own, _OF_A_ROLE)
        limits, selector = _texts(own, "limits"), _texts(own, "node_selector")
        for resource, quantity in limits.items():
            if not _QUANTITY.fullmatch(quantity):
                raise UserError(
                    f"limits: {resource} {quantity!r}: must be a quantity of Kubernetes, such as "
                    '"1" or "32Gi"'
                )
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    return RolePods(limits, selector)


def _refuse_unknown(table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise UserError(f"{unknown[0]}: there is no such field; there are {', '.join(known)}")


def _text(table: Mapping[str, Any], name: str) -> str | None:
    value = table.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise UserError(f"{name} {value!r}: must be text")
    return value


def _texts(table: Mapping[str, Any], name: str) -> dict[str, str]:
    values = table.get(name, {})
    if not isinstance(values, dict) or not all(isinstance(each, str) for each in values.values()):
        raise UserError(f"{name}: must be a table of texts")
    return dict(values)
