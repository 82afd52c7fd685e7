"""Values of options and of environment variables: what reads them, and examples to damage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from byteprophet import _core, schedulers
from byteprophet.cli.lists import split
from byteprophet.cli.run import parse_rates, parse_settings
from byteprophet.errors import UserError
from byteprophet.input_files import whole_number
from byteprophet.launcher import JobSpec, check_job
from byteprophet.launcher.environment import SAID_OTHERWISE
from byteprophet.network import format_rate, parse_rate, parse_step, payload_bps
from byteprophet.observe import recording
from byteprophet.observe.windows import Windows
from byteprophet.runtime_settings import RuntimeSettings, flag
from byteprophet.session.profiling import PROFILING
from byteprophet.silence import dead_after_s
from byteprophet.tune.request import VARIABLE, parse_request
from byteprophet.workload import load

_OPTIONS = """bandwidth 500mbit
bandwidth 2.3gbit
bandwidth unlimited
step 3gbit@20s
step 3gbit@8i
set window_max_bytes=2097152
set partition_bytes=262144
worker-bandwidth 1=100mbit
record-steps 10:20
schedulers stock,fifo,p3
workload random:7
command true
workers 2
"""
_ENVIRONMENT = """BYTEPROPHET_TIMEOUT_S=1800
BYTEPROPHET_OVERLAP=1
BYTEPROPHET_DEBUG=0
BYTEPROPHET_TUNE=300:credit_bytes,partition_bytes
BYTEPROPHET_RECORD=1
BYTEPROPHET_RECORD_STEPS=10:20
BYTEPROPHET_PROFILING=1
BYTEPROPHET_DEAD_AFTER_S=12
BYTEPROPHET_START_TIMEOUT_S=600
BYTEPROPHET_SETTINGS=credit_bytes=4194304,partition_bytes=262144
BYTEPROPHET_ROLE=worker-0
BYTEPS_SCHEDULER=bytescheduler
BYTEPS_PARTITION_BYTES=262144
BYTEPS_PCIE_SWITCH_SIZE=1
BYTEPS_NCCL_GROUP_SIZE=1
BYTEPS_REDUCE_ROOTS=0
"""


def write_values(directory: Path) -> None:
    """Examples of both."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "options.txt").write_text(_OPTIONS)
    (directory / "environment.txt").write_text(_ENVIRONMENT)


def read_options(_samples: Path, path: Path) -> None:
    """All options, one per line; UserError for the last that is refused."""
    lines = [line.partition(" ") for line in path.read_text("utf-8", "replace").split("\n")]
    _call_all([partial(_READERS.get(name, len), value) for name, _, value in lines])


def read_environment(_samples: Path, path: Path) -> None:
    """One environment, as launcher, front and recorder read it; UserError as above."""
    lines = path.read_text("utf-8", "replace").replace("\0", "").split("\n")
    environment = {name: value for name, _, value in (line.partition("=") for line in lines)}
    _call_all([partial(read, environment) for read in _OF_ENVIRONMENT])


def _call_all(calls: Sequence[Callable[[], object]]) -> None:
    refusals = [refusal for call in calls if (refusal := _refusal_of(call)) is not None]
    if refusals:
        raise refusals[-1]


def _refusal_of(call: Callable[[], object]) -> UserError | None:
    try:
        call()
    except UserError as error:
        return error
    return None


def _bandwidth(text: str) -> None:
    rate_bps = parse_rate(text, "--bandwidth")
    payload_bps(rate_bps)
    format_rate(rate_bps)


def _set(text: str) -> None:
    schedulers.resolve("prophet", parse_settings([text]))


def _job(**fields: Any) -> None:
    check_job(JobSpec(run_directory=Path(), **{"command": ("true",), **fields}))


_READERS: Mapping[str, Callable[[str], object]] = {
    "bandwidth": _bandwidth,
    "step": lambda text: str(parse_step(text)),
    "set": _set,
    "worker-bandwidth": lambda text: parse_rates([text]),
    "record-steps": lambda text: Windows.parse(text, "--record-steps"),
    "schedulers": lambda text: [schedulers.resolve(n, {}) for n in split(text, "--schedulers")],
    "workload": load,
    "command": lambda text: _job(command=(text,)),
    "workers": lambda text: _job(workers=whole_number(text) or 0),
}


def _policy(environment: Mapping[str, str]) -> None:
    scheduler = environment.get("BYTEPS_SCHEDULER") or schedulers.STOCK
    partition = environment.get("BYTEPS_PARTITION_BYTES", "")
    try:
        overrides = _core.parse_settings(environment.get("BYTEPROPHET_SETTINGS", ""))
        given = int(partition) if partition else None
    except ValueError as error:
        raise UserError(str(error)) from None
    settings, _ = schedulers.resolve(scheduler, overrides, given)
    parse_request(environment.get(VARIABLE, ""), scheduler, settings)


def _of_a_job(environment: Mapping[str, str]) -> Mapping[str, str]:
    """What a job may be given: its policy is not among it."""
    return {name: value for name, value in environment.items() if name not in SAID_OTHERWISE}


_OF_ENVIRONMENT: tuple[Callable[[Mapping[str, str]], object], ...] = (
    RuntimeSettings.from_environment,
    recording.check,
    dead_after_s,
    recording.role_in,
    lambda environment: flag(environment, PROFILING, "1"),
    lambda environment: parse_request(
        environment.get(VARIABLE, ""), "bytescheduler", schedulers.resolve("bytescheduler", {})[0]
    ),
    _policy,
    lambda environment: _job(scheduler="bytescheduler", environment=_of_a_job(environment)),
)
