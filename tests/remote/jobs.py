"""Jobs that the tests of this folder start: real training, small, with a fingerprint."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from byteprophet.input_files import read_json
from byteprophet.launcher.forked_process import VARIABLE

from ..thorough import by_default

# Each rank trains on other data; with "stay", for ever, and slowly: others need the processors.
# Then it prints the digest of its parameters when it says that it trains. What torch imports, also
# for the optimizer, is hardly any garbage, and looking for it takes half a second.
TRAIN = """
import gc, hashlib, json, os, pathlib, sys, time
gc.disable()
import torch
import byteprophet.torch as bps
bps.init()
rank = bps.rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
gc.enable()
bps.broadcast_parameters(model.state_dict(), root_rank=0)
torch.manual_seed(1 + rank)
stays = "stay" in sys.argv


def digest():
    optimizer.finish()
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))


step = 0
while step < 6 or stays:
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    step += 1
    if step == 5:
        print("training", digest().hexdigest() if stays else "", flush=True)
    if stays:
        time.sleep(0.01)
path = pathlib.Path(os.environ["BYTEPROPHET_RUN"], "results", f"worker-{rank}.json")
path.write_text(json.dumps({"rank": rank, "sha256": digest().hexdigest()}))
print("done", rank, flush=True)
bps.shutdown()
"""
# The same training without an optimizer, which takes as long to import as torch: for what starts
# roles as other tests do, and only elsewhere.
TRAIN_BY_HAND = """
import gc, hashlib, json, os, pathlib
gc.disable()
import torch
import byteps.torch as bps
gc.enable()
bps.init()
rank = bps.rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
torch.manual_seed(1 + rank)
for step in range(6):
    model.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    for name, parameter in model.named_parameters():
        bps.synchronize(bps.byteps_push_pull(parameter.grad, average=True, name=name))
        parameter.data.add_(parameter.grad, alpha=-0.1)
values = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
path = pathlib.Path(os.environ["BYTEPROPHET_RUN"], "results", f"worker-{rank}.json")
path.write_text(json.dumps({"rank": rank, "sha256": hashlib.sha256(values).hexdigest()}))
print("done", rank, flush=True)
bps.shutdown()
"""
STOCK = ("--scheduler", "stock")
"""For ``TRAIN_BY_HAND``: under a policy, what BytePS offers has our optimizer."""
RUN = (sys.executable, "-m", "byteprophet", "run", "--timeout", "100")
NO_FORKS = {VARIABLE: "0"}
"""For roles on hosts of their own: what a fork server imports pays only for several workers."""
STAY = ("--servers", "0", "--", "sh", "-c", "echo training $RANK; exec sleep 1000")
"""Ranks that stay, and import nothing: for tests that have to do with the launcher only."""
SAVE = (
    "--servers", "0", "--", "sh", "-c",
    "trap 'echo saved $RANK; exit 0' USR1; echo training $RANK; while :; do sleep 0.1; done",
)  # fmt: skip
"""Ranks that stay until they may save a checkpoint."""
SAVE_AT_THE_END = (
    "--servers", "0", "--", "sh", "-c",
    "trap \"trap '' TERM; sleep 4.5; echo > saved-$RANK; exit 0\" TERM; "
    "echo training $RANK; while :; do sleep 0.1; done",
)  # fmt: skip
"""Ranks that stay until SIGTERM, and then save a checkpoint for longer than the usual grace."""
FAIL = (
    "--servers",
    "0",
    "--",
    "sh",
    "-c",
    "test $RANK = 0 && sleep 1000; echo error: the cause; exit 1",
)
NAMED_S = 30.0
"""Within this time, a role that was lost is named and the job has ended everywhere."""
SOON = {"BYTEPROPHET_DEAD_AFTER_S": "5"}
"""For jobs one of whose roles falls silent."""


def write_script(directory: Path, text: str = TRAIN) -> list[str]:
    """The command that trains."""
    path = directory / "train.py"
    path.write_text(text)
    return [sys.executable, str(path)]


def run(
    directory: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``byteprophet run ARGUMENTS`` to its end."""
    return subprocess.run(
        [*RUN, *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=directory,
        env=None if env is None else dict(env),
        check=False,
    )


def run_directory(said: str) -> Path:
    """The run directory that a job has told."""
    found = re.search(r"^byteprophet: run (.*)$", said, re.MULTILINE)
    assert found is not None, said
    return Path(found[1])


def fingerprints(run_directory: Path) -> list[dict[str, Any]]:
    """What the workers wrote."""
    return [read_json(path) for path in sorted((run_directory / "results").iterdir())]


def trained_alone() -> list[dict[str, Any]]:
    """What the two workers of a job of ``TRAIN`` must write: the same training in this process.

    The sum of two gradients has the same bits in either order, and half of it is exact.
    """
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [torch.Generator().manual_seed(1 + rank) for rank in range(2)]
    for _ in range(6):
        optimizer.zero_grad()
        for generator in data:
            loss: Any = model(torch.randn(16, 64, generator=generator)).square().mean()
            loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= 2
        optimizer.step()
    values = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    digest = hashlib.sha256(values).hexdigest()
    return [{"rank": rank, "sha256": digest} for rank in range(2)]


def runs_as_alone(directory: Path, *on: str, env: Mapping[str, str]) -> Path:
    """A recorded job elsewhere, as ``on`` says, which must train as one process does.

    Returns its run directory.
    """
    there = run(directory, *on, "--record", "--", *write_script(directory), env=env)
    assert there.returncode == 0, there.stderr + there.stdout
    made = run_directory(there.stderr)
    assert fingerprints(made) == trained_alone()
    assert "[worker-1] done 1" in there.stdout
    assert (made / "events" / "transfers-worker-1.arrows").is_file()
    assert not (made / "roles").exists()
    return made


class Started:
    """A job that trains for ever, from when all of its workers train."""

    def __init__(
        self, command: Sequence[str], directory: Path, workers: int, env: Mapping[str, str]
    ) -> None:
        self.errors = directory / "errors"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=directory,
                env=dict(env),
                start_new_session=True,
            )
        self.lines: list[str] = []
        self.wait_for_training(workers)

    def wait_for_training(self, workers: int) -> None:
        """Returns when so many workers say that they train, from now on."""
        training: set[str] = set()
        while len(training) < workers:
            line = self._next_line()
            if "training" in line:
                training.add(line)

    def wait_for_line(self, text: str) -> None:
        """Returns when a role's line contains ``text``."""
        while text not in self._next_line():
            pass

    def wait_for_error(self, text: str, timeout_s: float) -> None:
        """Returns when standard error has ``text``; fails if that takes too long."""
        deadline_s = time.monotonic() + timeout_s
        while text not in (said := self.errors.read_text()):
            assert time.monotonic() < deadline_s, said
            time.sleep(0.1)

    def _next_line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text() + "".join(self.lines)
        self.lines.append(line)
        return line

    def end(self, timeout_s: float) -> tuple[int, str]:
        """Its exit status, and the last line on standard error that is ours."""
        said, _ = self.process.communicate(timeout=timeout_s)
        self.lines += said.splitlines(keepends=True)
        errors = self.errors.read_text()
        ours = [line for line in errors.splitlines() if line.startswith("byteprophet: ")]
        assert len([line for line in ours if line.startswith("byteprophet: error: ")]) <= 1, errors
        assert "Traceback" not in errors, errors
        return self.process.returncode, ours[-1]


def saves_at_signal(job: Started) -> None:
    """A job of ``SAVE`` whose launcher gets SIGUSR1: the ranks save, and it is done."""
    job.process.send_signal(signal.SIGUSR1)
    status, said = job.end(NAMED_S)
    assert status == 0, job.errors.read_text()
    assert said.startswith("byteprophet: done after ")
    for rank in range(2):
        assert any(line.endswith(f"saved {rank}\n") for line in job.lines), job.lines


def saves_at_the_end(job: Started, directory: Path) -> None:
    """A job of ``SAVE_AT_THE_END`` with a longer grace, whose launcher is asked to end."""
    job.process.terminate()
    assert job.end(NAMED_S)[0] == 128 + signal.SIGTERM
    for rank in range(2):
        assert (directory / f"saved-{rank}").exists(), (directory, job.lines)


def wait_until_gone(is_left: Callable[[], Sequence[object]], timeout_s: float) -> None:
    """Returns when ``is_left`` returns nothing; fails if that takes too long."""
    deadline_s = time.monotonic() + timeout_s
    while left := is_left():
        assert time.monotonic() < deadline_s, left
        time.sleep(0.1)


def variable(pid: int, name: str) -> str:
    """A variable in the environment with which process ``pid`` started; "" if it is not set."""
    try:
        items = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    start = f"{name}=".encode()
    return next((item[len(start) :].decode() for item in items if item.startswith(start)), "")


def processes_below(text: str) -> list[int]:
    """Processes of roles whose run directory contains ``text``."""
    every = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return [pid for pid in every if text in variable(pid, "BYTEPROPHET_RUN") and pid != os.getpid()]


KILLED = ("scheduler", "server-0", "worker-1")


def killed_by_default(*roles: str) -> list[Any]:
    """Those that a test kills, as parameters; all with ``--thorough``, as by ``test_local.py``."""
    return by_default([roles, KILLED], [roles])


def process_of(role: str, mark: str) -> int:
    """The one process of ``role`` among ``processes_below(mark)``. Waits until there is one."""
    deadline_s = time.monotonic() + NAMED_S
    while True:
        every = processes_below(mark)
        found = [pid for pid in every if variable(pid, "BYTEPROPHET_ROLE") == role]
        if len(found) == 1:
            return found[0]
        assert time.monotonic() < deadline_s, (role, found, every)
        time.sleep(0.1)


def each_killed_role_is_named(
    directory: Path,
    on: Sequence[str],
    env: Mapping[str, str],
    left: Callable[[], Sequence[object]],
    mark: str = "",
    has_controller: bool = False,
    killed: Sequence[str] = KILLED,
) -> None:
    """A job with a server that starts again: in each start, another one of ``killed`` is killed.

    Each is named in time, and nothing of a start is left. ``left``: what is left of the job.
    ``mark``: is in all roles' run directories; "": that is the name of the run.
    """
    starts = len(killed)
    # That limit is of all starts together.
    options = ["--timeout", "280", "--restarts", str(starts - 1)]
    stay = ["sh", "-c", "echo training; exec sleep 1000"]
    job = Started([*RUN, *on, *options, "--", *stay], directory, 2, env)
    made = directory / run_directory(job.errors.read_text())
    mark = mark or made.name
    if has_controller:
        _a_killed_controller_is_started_again(job, mark)
    for number, role in enumerate(killed, start=1):
        before = set(processes_below(mark))
        os.kill(process_of(role, mark), signal.SIGKILL)
        if number < starts:
            job.wait_for_error(f"the job starts again (restart {number} of {starts - 1})", NAMED_S)
            wait_until_gone(functools.partial(_still_there, before, mark), NAMED_S)
            job.wait_for_training(2)
    status, said = job.end(NAMED_S)
    errors = job.errors.read_text()
    causes = [line for line in errors.splitlines() if "was killed by signal 9 (SIGKILL) af" in line]
    assert (status, said) == (1, causes[-1]), errors
    assert len(causes) == starts, errors
    for role, cause in zip(killed, causes, strict=True):
        assert f": {role} was killed by signal 9" in cause
    assert read_json(made / "summary.json")["restarts"] == starts - 1
    for number in range(starts - 1):
        assert read_json(made / "attempts" / str(number) / "summary.json")["status"] == "failed"
    wait_until_gone(left, NAMED_S)


def _a_killed_controller_is_started_again(job: Started, mark: str) -> None:
    """The job can do without it, and a warning names it."""
    listens = "] byteprophet: controller of job "
    if not any(listens in line for line in job.lines):
        job.wait_for_line(listens)
    os.kill(process_of("controller", mark), signal.SIGKILL)
    job.wait_for_line("; the job goes on, it is started again")
    assert "controller was killed by signal 9 (SIGKILL) after " in job.lines[-1]
    job.wait_for_line(f"[controller.2{listens}")


def _still_there(before: Collection[int], mark: str) -> list[int]:
    return [pid for pid in processes_below(mark) if pid in before]
