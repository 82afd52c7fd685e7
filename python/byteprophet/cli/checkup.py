"""The findings of ``byteprophet doctor``: each looks at one thing, and tries it where it can."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from byteprophet.network import tools, why_not_permitted
from byteprophet.remote.preflight.findings import SHM_BYTES, Finding

_IMPORT_TIMEOUT_S = 120.0
_FOUND = "byteprophet doctor found:"
_UNDER_A_POLICY = {"BYTEPS_SCHEDULER": "fifo"}
_SHM = "/dev/shm"  # noqa: S108 - where BytePS puts it

_PLUGIN_CODE = """
import byteps.{0}
if "libbyteprophet_{0}" not in open("/proc/self/maps").read():
    raise SystemExit("the plug-in was not loaded with BYTEPS_SCHEDULER=fifo")
found = "loads with byteps.{0}"
"""
_DEVICE_CODE = """
try:
    device, why = byteps.torch.c_lib.byteprophet_device()
except ValueError as error:
    raise SystemExit(str(error))
found = f"{device}, as {why} (cuda and host are built in; a job chooses when it starts)"
"""
_FRAMEWORKS = {
    "torch": "pip install torch (without a GPU: with --index-url of PyTorch's CPU wheels)",
    "mxnet": "pip install mxnet==1.9.1 numpy==1.23.5 (docs/mxnet.md)",
}


class _Step(NamedTuple):
    """``code`` sets ``found``, and fails otherwise; what it imports is there for the next step."""

    name: str
    code: str
    todo: str


def check_up() -> list[Finding]:
    """All findings; those that need others come after them."""
    # Torch is missing where neither is there: it is what most look for.
    there = [name for name in _FRAMEWORKS if importlib.util.find_spec(name)] or ["torch"]
    built = [finding for name in there for finding in _framework(name)]
    findings = [_python(), *built, *_build_tools(required=not all(each.ok for each in built))]
    findings += [_setpriv(), _namespaces(), _shared_memory(), _cores()]
    return findings


def _framework(name: str) -> list[Finding]:
    """The framework, BytePS' extension for it, its device, and the plug-in for that.

    One process tries them all under a policy: importing a framework takes most of the time. What it
    does not reach may be the plug-in's fault, so then the others are tried without it.
    """
    again = "pip install . again"
    steps = [
        _Step(name, f"import {name}\nfound = {name}.__version__", _FRAMEWORKS[name]),
        _Step(
            f"byteps.{name}",
            f"import byteps.{name}\nfound = byteps.{name}.__file__",
            f"build it for the installed {name}: {again}",
        ),
    ]
    todo = f"build it for the installed byteps: {again}"
    plugin = _Step(f"plug-in for {name}", _PLUGIN_CODE.format(name), todo)
    device = _Step(
        "device of byteps.torch", _DEVICE_CODE, "unset BYTEPROPHET_DEVICE, or set it to host"
    )
    last = [device] if name == "torch" else []
    found = _try([*steps, plugin, *last], _UNDER_A_POLICY)
    if any(finding.name == plugin.name and finding.ok for finding in found):
        *before, loaded = found[: len(steps) + 1]
        return [*before, *found[len(steps) + 1 :], loaded]
    return [*_try([*steps, *last]), *_try([plugin], _UNDER_A_POLICY)]


def _python() -> Finding:
    ok = sys.version_info[:2] >= (3, 10)
    todo = "" if ok else "apt-get install python3 python3-venv (3.10 or newer)"
    return Finding("python", ok, True, f"{platform.python_version()} ({sys.executable})", todo)


def _try(steps: Sequence[_Step], environment: Mapping[str, str] | None = None) -> list[Finding]:
    """Runs ``steps`` in a Python of its own, as what they import may crash.

    The findings end with the first step that fails: those after it need it.
    """
    inherited = {key: value for key, value in os.environ.items() if key != "BYTEPS_SCHEDULER"}
    program = "\n".join(f"{step.code}\nprint({_FOUND!r}, found, flush=True)" for step in steps)
    error = f"no answer within {_IMPORT_TIMEOUT_S:.0f} s"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT_S,
            env={**inherited, **(environment or {})},
            check=False,
        )
        printed = done.stdout
        lines = [line.strip() for line in done.stderr.splitlines()]
        error = next((line for line in reversed(lines) if line), f"status {done.returncode}")
        error = error.removeprefix("byteprophet: error: ")
    except subprocess.TimeoutExpired as stopped:
        printed = (stopped.stdout or b"").decode(errors="replace")
    found = [line[len(_FOUND) + 1 :] for line in printed.splitlines() if line.startswith(_FOUND)]
    findings = [
        Finding(step.name, True, True, told) for step, told in zip(steps, found, strict=False)
    ]
    if len(findings) < len(steps):
        failed = steps[len(findings)]
        findings.append(Finding(failed.name, False, True, error, failed.todo))
    return findings


def _build_tools(required: bool) -> list[Finding]:
    """What building BytePS takes: required only where it is not built yet."""
    found = {
        "g++": (shutil.which("g++"), "g++"),
        "cmake": (shutil.which("cmake"), "cmake"),
        "libzmq": (_library("zmq", "zmq.h"), "libzmq3-dev"),
        "libnuma": (_library("numa", "numa.h"), "libnuma-dev"),
    }
    return [
        Finding(
            f"{name} (to build)",
            path is not None,
            required,
            path or "not found",
            "" if path else f"apt-get install {package}",
        )
        for name, (path, package) in found.items()
    ]


def _library(name: str, header: str) -> str | None:
    """The shared library's file name, if its header is there too."""
    library = ctypes.util.find_library(name)
    folders = [Path("/usr/include"), Path("/usr/local/include")]
    return library if any((folder / header).is_file() for folder in folders) else None


def _setpriv() -> Finding:
    path = tools.find("setpriv")
    todo = "" if path else f"apt-get install {tools.PACKAGES['setpriv']}"
    return Finding("setpriv", path is not None, True, path or "not found", todo)


def _namespaces() -> Finding:
    reason = why_not_permitted()
    if reason is None:
        return Finding("namespaces, veth, bridge, tbf", True, False, "permitted")
    missing = sorted({tools.PACKAGES[name] for name in tools.PACKAGES if not tools.find(name)})
    todo = f"apt-get install {' '.join(missing)}" if missing else "run as root"
    if not missing and os.geteuid() == 0:
        todo = "give the container the capabilities NET_ADMIN and SYS_ADMIN"
    return Finding(
        "namespaces, veth, bridge, tbf", False, False, reason, f"for --bandwidth: {todo}"
    )


def _shared_memory() -> Finding:
    try:
        usage = shutil.disk_usage(_SHM)
    except OSError as error:
        return Finding(_SHM, False, True, str(error), f"mount a tmpfs on {_SHM}")
    ok = usage.free >= SHM_BYTES
    todo = "" if ok else f"mount -o remount,size=4g {_SHM} (docker run --shm-size=4g)"
    return Finding(_SHM, ok, False, f"{usage.free / 2**30:.1f} GiB free", todo)


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    todo = (
        "" if cores >= 2 else "with one core, roles wait for each other: measurements mean little"
    )
    return Finding("cores", cores >= 2, False, str(cores), todo)
