"""What a host says about itself: versions, checksums, limits, memory. One line of JSON.

    python -m byteprophet.remote.preflight.host INDEX TOLD

runs on that host. TOLD is a file, or - for standard input, with a list of lists in JSON: by index,
the paths that a job needs there.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import byteprophet
from byteprophet.input_files import parse_json
from byteprophet.remote.look import Look, look
from byteprophet.remote.preflight.mark import own_index, read_told, tell_marked

_SHM = "/dev/shm"  # noqa: S108 - where BytePS puts it
LIMITS = {"open files": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC}
NO_LIMIT = -1


@dataclass(frozen=True)
class HostFacts:
    """A host as it sees itself.

    Attributes:
        look: as before every job.
        python: its version.
        torch: its version; "": there is none.
        checksums: SHA-256 of native files, by name.
        shared_memory_bytes: free in /dev/shm; 0: there is none.
        limits: soft limits of the user there, by name; ``NO_LIMIT``: none.
        cores: that a process may use.
        free_port: one of those that the kernel gives to whoever asks for any.
    """

    look: Look
    python: str
    torch: str
    checksums: dict[str, str]
    shared_memory_bytes: int
    limits: dict[str, int]
    cores: int
    free_port: int

    @classmethod
    def parse(cls, fields: dict[str, object]) -> HostFacts:
        """The facts that ``asdict`` and JSON wrote; ``TypeError``: by another version."""
        inner = fields.get("look")
        if not isinstance(inner, dict):
            raise TypeError("look")
        return cls(**{**fields, "look": Look(**inner)})  # type: ignore[arg-type]


def facts(paths: list[str]) -> HostFacts:
    """Look at this host. ``paths`` are those that a job needs."""
    try:
        free_bytes = shutil.disk_usage(_SHM).free
    except OSError:
        free_bytes = 0
    soft = {name: resource.getrlimit(kind)[0] for name, kind in LIMITS.items()}
    return HostFacts(
        look=look(paths),
        python=platform.python_version(),
        torch=_version("torch"),
        checksums=_checksums(),
        shared_memory_bytes=free_bytes,
        limits={
            name: NO_LIMIT if value == resource.RLIM_INFINITY else value
            for name, value in soft.items()
        },
        cores=len(os.sched_getaffinity(0)),
        free_port=_free_port(),
    )


def _free_port() -> int:
    with socket.create_server(("", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _checksums() -> dict[str, str]:
    """The native files that all roles of a job must have the same of. Loads none of them."""
    found = [path for folder in byteprophet.__path__ for path in _native(Path(folder))]
    spec = importlib.util.find_spec("byteps")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        found += sorted(Path(folder).glob("*/c_lib*.so"))
    return {
        f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in found
    }


def _native(folder: Path) -> list[Path]:
    return sorted([*folder.glob("_core*.so"), *folder.glob("native/lib*.so")])


def main(arguments: list[str]) -> int:
    """Look as the arguments say; prints one line."""
    index = own_index(arguments[0])
    needed = parse_json(read_told(arguments[1]))
    found = asdict(facts(needed[min(index, len(needed) - 1)]))
    tell_marked({"index": index, "facts": found})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
