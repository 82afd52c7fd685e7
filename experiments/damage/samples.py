"""Makes files to be damaged, by running the commands and jobs that write them.

small.toml  grid.toml                   a workload and a grid
prophet/  tuned/  stock/                recorded runs: with controller and monitor; tuned during the
                                        run; under stock
ring/  mesh/                            runs without servers: DistributedDataParallel, and dear
grid/                                   results of the grid's jobs
kineto.json  comm.json  chakra.0.et     traces of torch.profiler, BytePS and Chakra
learned/                                what an optimisation learns of a job
keys/                                   keys of a controller
options.txt  environment.txt            values of options and environment variables
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from byteprophet.control.keys import make_keys
from byteprophet.control.log import NAME, PLAN_NAME, read_events
from byteprophet.control.messages import Plan
from byteprophet.errors import JobFailed
from byteprophet.job.order_file import Order, write_order
from byteprophet.workload import Tensor, Workload, to_toml
from damage.controller import write_messages
from damage.learned import write_learned
from damage.variables import write_values

MS = 1_000_000
_LIMIT_S = 300
_TRIES = 5

_GRID = """name = "mine"
iterations = 2
warmup_iterations = 2
[[cell]]
workload = "small.toml"
link = "unlimited"
"""
_OTHER_CELL = """[[cell]]
workload = "random:7"
link = 0.9
compute_ns = 900000000
workers = 3
servers = 2
slow_worker = "500mbit"
tensors_per_burst = 8
tuning = true
name = "other"
"""
# comm.json is written by a thread of its own, once the last tensor has reached the last step.
_TRACED = """
import os, pathlib, time
import torch
import byteps.torch as bps
trace = pathlib.Path(os.environ["TRACES"], os.environ["DMLC_WORKER_ID"])
(trace / "0").mkdir(parents=True)
os.environ["BYTEPS_TRACE_DIR"] = str(trace)
bps.init()
for step in range(6):
    for name in ("a", "b"):
        tensor = torch.full((3000,), 1.0 + bps.rank())
        bps.synchronize(bps.byteps_push_pull(tensor, average=False, name=name))
deadline, written = time.monotonic() + 60, trace / "0/comm.json"
while not (written.exists() and '"displayTimeUnit"' in written.read_text()):
    assert time.monotonic() < deadline
    time.sleep(0.1)
bps.shutdown()
"""
_PROFILED = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile, schedule
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with profile(
    activities=[ProfilerActivity.CPU],
    record_shapes=True,
    schedule=schedule(wait=0, warmup=1, active=2, repeat=1),
    on_trace_ready=lambda profiler: profiler.export_chrome_trace(sys.argv[1]),
) as profiler:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        profiler.step()
"""
_STEPS = [{"rate_bps": 10**9, "at_s": 2.5, "at_update": None, "began_ns": 5, "done_ns": None}]


def make_samples(directory: Path, parts: Collection[str]) -> Path:
    """Make the missing ones of ``parts`` in ``directory``; JobFailed if a command fails."""
    _MAKERS["workloads"](directory)
    for part in sorted(set(parts) - {"workloads"}):
        made = directory / f"{part}.made"
        if not made.exists():
            _MAKERS[part](directory)
            made.touch()
    return directory


def _workloads(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    tensors = [Tensor(f"layer{n}.weight", 100_000 * n + 4000, MS, 2 * MS) for n in range(4)]
    (directory / "small.toml").write_text(to_toml(Workload("small", 4, tuple(tensors))))
    (directory / "grid.toml").write_text(_GRID)
    (directory / "whole.toml").write_text(_GRID + _OTHER_CELL)


def _prophet(directory: Path) -> None:
    arguments = (*_RECORDED, "--schedulers", "prophet", "--controller")
    for _ in range(_TRIES):
        _move_run(directory, "prophet", *arguments, BYTEPROPHET_MONITOR="1")
        if _keep_plan(directory / "prophet"):
            break
        shutil.rmtree(directory / "prophet")  # it ended before its controller had planned
    else:
        raise JobFailed(f"none of {_TRIES} jobs lasted until its controller had planned")
    steps = json.dumps({"schema": 1, "steps": _STEPS})  # jobs write them only in namespaces
    (directory / "prophet/steps.json").write_text(steps)
    # Links without a limit are too fast for such a short job to measure, so workers agree on none.
    ready_ns = {f"layer{n}.weight": (3 - n) * 2 * MS for n in range(4)}
    write_order(directory / "prophet", Order(bandwidth_bps=10**9, ready=ready_ns, since=1))


def _keep_plan(run: Path) -> bool:
    """Write plan.json of a run that is too short to adopt its plan; whether there is a plan.

    It says that the plan was in force from the first iteration on.
    """
    plans = [event for event in read_events(run / NAME) if event["event"] == "plan"]
    if plans:
        names = [field.alias or name for name, field in Plan.model_fields.items()]
        plan = {**{name: plans[-1][name] for name in names}, "at_iteration": 1}
        (run / PLAN_NAME).write_text(json.dumps(plan))
    return bool(plans)


def _grid(directory: Path) -> None:
    arguments = ("--schedulers", "fifo,prophet", "--rounds", "1", "--out", "grid")
    _command(directory, "bench", "--grid", "grid.toml", *arguments)


def _move_run(directory: Path, name: str, *arguments: str, **environment: str) -> None:
    """Run a bench with one job, and keep its run directory as ``name``."""
    _command(directory, *arguments, "--runs", f"runs-{name}", **environment)
    (run,) = (directory / f"runs-{name}").iterdir()
    run.replace(directory / name)
    (directory / f"runs-{name}").rmdir()
    shutil.rmtree(directory / name / "logs")


def _make_traces(directory: Path) -> None:
    (directory / "traced.py").write_text(_TRACED)
    (directory / "profiled.py").write_text(_PROFILED)
    traced = {"BYTEPS_TRACE_ON": "1", "BYTEPS_TRACE_START_STEP": "2", "BYTEPS_TRACE_END_STEP": "4"}
    _command(
        directory, "run", "--scheduler", "stock", "--timeout", "100", "--runs", "runs", "--",
        sys.executable, "traced.py", TRACES=str(directory / "traces"), **traced,
    )  # fmt: skip
    (directory / "traces/0/0/comm.json").replace(directory / "comm.json")
    _run(directory, [sys.executable, "profiled.py", "kineto.json"], {})
    make_samples(directory, ["ring"])
    _command(directory, "timeline", "ring", "--format", "chakra", "--out", "chakra")
    for left in ("runs", "traces"):
        shutil.rmtree(directory / left)


_SMALL = ("bench", "--workload", "small.toml", "--rounds", "1", "--bandwidth", "unlimited")
_RECORDED = (*_SMALL, "--iterations", "8", "--record")
_TUNED = (*_SMALL, "--iterations", "4", "--record", "--schedulers", "p3", "--tune", "100")
_MESH = (*_RECORDED, "--runtime", "dear", "--set", "bucket_bytes=300000")
_MAKERS: Mapping[str, Callable[[Path], None]] = {
    "workloads": _workloads,
    "prophet": _prophet,
    "tuned": lambda directory: _move_run(directory, "tuned", *_TUNED),
    "stock": lambda directory: _move_run(directory, "stock", *_RECORDED, "--schedulers", "stock"),
    "ring": lambda directory: _move_run(directory, "ring", *_RECORDED, "--runtime", "ddp"),
    "mesh": lambda directory: _move_run(directory, "mesh", *_MESH),
    "grid": _grid,
    "traces": _make_traces,
    "learned": lambda directory: write_learned(directory / "learned"),
    "keys": lambda directory: make_keys(directory / "keys"),
    "messages": lambda directory: write_messages(directory / "messages"),
    "values": lambda directory: write_values(directory / "values"),
}


def _command(directory: Path, *arguments: str, **environment: str) -> None:
    _run(directory, [sys.executable, "-m", "byteprophet", *arguments], environment)


def _run(directory: Path, command: list[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise JobFailed(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
