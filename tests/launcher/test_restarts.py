"""Jobs that start again after a role's death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.input_files import read_json
from byteprophet.launcher import JobSpec, check_job, run_job
from byteprophet.launcher.restarts import Start, run_with_restarts
from byteprophet.launcher.spec import Echo, JobResult
from byteprophet.remote.kubernetes.client import PODS
from byteprophet.remote.kubernetes.site import MANIFESTS

from .conftest import MakeSpec

# In the first start, each worker keeps a file, and worker 1 ends as its argument says.
KEEP = (
    'echo "restart $BYTEPROPHET_RESTART"; touch "kept-$DMLC_WORKER_ID-$BYTEPROPHET_RESTART"; '
    'test "$DMLC_WORKER_ID" = 1 && test "$BYTEPROPHET_RESTART" -lt {starts} && {end}; exit 0'
)


def prepare(spec: JobSpec) -> Start:
    check_job(spec)
    return run_job


def failing(end: str, starts: int) -> tuple[str, ...]:
    """A worker that ends as ``end`` says in the first ``starts`` starts."""
    return ("sh", "-c", KEEP.format(end=end, starts=starts))


def test_a_job_starts_again_until_it_succeeds(
    make_spec: MakeSpec, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = make_spec(failing("kill -9 $$", 2), max_restarts=3)
    (spec.run_directory / "mine").mkdir(parents=True)
    lines: list[tuple[str, str]] = []
    result = run_with_restarts(
        run_job, prepare, spec, lambda role, line: lines.append((role, line))
    )
    assert (result.exit_status, result.restarts) == (0, 2)
    assert [line for role, line in lines if role == "worker-1"] == [
        "restart 0", "restart 1", "restart 2",
    ]  # fmt: skip
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2
    assert said[0].startswith("byteprophet: warning: worker-1 was killed by signal 9 (SIGKILL)")
    assert said[1].endswith("; the job starts again (restart 2 of 3)")
    # The run directory is that of the last start; those before have folders of their own.
    assert read_json(spec.run_directory / "summary.json")["restarts"] == 2
    assert read_json(spec.run_directory / "summary.json")["status"] == "done"
    attempts = spec.run_directory / "attempts"
    assert [path.name for path in sorted(attempts.iterdir())] == ["0", "1"]
    assert read_json(attempts / "1" / "summary.json")["status"] == "failed"
    for number, directory in enumerate([attempts / "0", attempts / "1", spec.run_directory]):
        log = (directory / "logs" / "worker-1.log").read_text()
        assert log == f"restart {number}\n"
    assert (spec.run_directory / "mine").is_dir()  # a script's own files stay where they are


def test_a_start_does_not_find_which_pods_ended_before(make_spec: MakeSpec) -> None:
    spec = make_spec(("true",), max_restarts=1)
    found: list[list[str]] = []

    def start(spec: JobSpec, _: Echo | None) -> JobResult:
        spec.run_directory.mkdir(parents=True, exist_ok=True)
        found.append(sorted(path.name for path in spec.run_directory.iterdir()))
        for name in (PODS, MANIFESTS):
            (spec.run_directory / name).touch()
        return JobResult(1, (), "worker-1: pod lost", 1.0, spec.restart)

    assert run_with_restarts(start, lambda _: start, spec).restarts == 1
    assert found == [[], ["attempts"]]


def test_until_the_next_start_the_summary_says_so(make_spec: MakeSpec) -> None:
    """Hosts are looked at meanwhile, and whoever watches must not take it for the job's end."""
    spec = make_spec(failing("exit 7", 1), max_restarts=1)
    summary = spec.run_directory / "summary.json"
    told: list[str] = []

    def look(following: JobSpec) -> Start:
        told.append(read_json(summary)["status"])
        return prepare(following)

    assert run_with_restarts(run_job, look, spec).exit_status == 0
    assert told == ["restarting"]
    assert read_json(spec.run_directory / "attempts" / "0" / "summary.json")["status"] == "failed"

    def interrupted(_spec: JobSpec) -> Start:
        raise KeyboardInterrupt

    spec = make_spec(failing("exit 7", 1), max_restarts=1)
    with pytest.raises(KeyboardInterrupt):
        run_with_restarts(run_job, interrupted, spec)
    assert read_json(spec.run_directory / "summary.json")["status"] == "failed"


def test_a_job_fails_after_its_last_restart(make_spec: MakeSpec) -> None:
    result = run_with_restarts(run_job, prepare, make_spec(failing("exit 7", 9), max_restarts=1))
    assert (result.exit_status, result.restarts) == (1, 1)
    assert result.failed is not None
    assert result.failed.startswith("worker-1 ended with status 7 after ")


def test_wrong_usage_is_not_tried_again(make_spec: MakeSpec) -> None:
    result = run_with_restarts(run_job, prepare, make_spec(failing("exit 2", 9), max_restarts=3))
    assert (result.exit_status, result.restarts) == (1, 0)


def test_the_time_limit_is_that_of_all_starts(make_spec: MakeSpec) -> None:
    spec = make_spec(("sleep", "100"), max_restarts=3, timeout_s=0.5)
    result = run_with_restarts(run_job, prepare, spec)
    assert (result.restarts, result.failed is None) == (0, False)
    # A later start has what is left.
    spec = make_spec(
        ("sh", "-c", 'test "$BYTEPROPHET_RESTART" = 0 && exit 1; sleep 100'),
        max_restarts=3,
        timeout_s=3.0,
    )
    result = run_with_restarts(run_job, prepare, spec)
    assert result.restarts == 1
    assert result.failed is not None
    assert result.failed.startswith("the job did not end within ")


def test_hosts_that_are_gone_are_told(make_spec: MakeSpec) -> None:
    def gone(spec: JobSpec) -> Start:
        raise UserError("host gpu-1: ssh cannot reach it")

    spec = make_spec(failing("exit 7", 9), max_restarts=1)
    result = run_with_restarts(run_job, gone, spec)
    assert result.failed is not None
    assert result.failed.endswith("; it cannot be started again: host gpu-1: ssh cannot reach it")
    summary = read_json(spec.run_directory / "summary.json")
    assert (summary["status"], summary["failed"]) == ("failed", result.failed)
    assert not (spec.run_directory / "attempts").exists()


@pytest.mark.usefixtures("default_signals")
def test_ctrl_c_ends_a_job_that_might_start_again(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "byteprophet", "run", "--servers", "0", "--restarts", "5"]
    job = subprocess.Popen(
        [*command, "--", "sh", "-c", "echo here; exec sleep 100"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert job.stdout is not None
    assert "here" in job.stdout.readline()
    os.kill(job.pid, signal.SIGINT)
    _, errors = job.communicate(timeout=30)
    assert job.returncode == 130
    assert "starts again" not in errors


TRAIN = """
import hashlib, os, pathlib, sys
import torch
import byteprophet.torch as bps
bps.init()
rank, restart = bps.rank(), int(os.environ["BYTEPROPHET_RESTART"])
torch.manual_seed(0)
model = torch.nn.Linear(16, 4)
plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
sync = "byteps" if "DMLC_NUM_WORKER" in os.environ else "dear-planned"
optimizer = bps.DistributedOptimizer(plain, model=model, sync=sync)
kept, first = pathlib.Path("checkpoint.pt"), 0
if kept.exists():
    saved = torch.load(kept)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
bps.broadcast_parameters(model.state_dict(), root_rank=0)
print(f"begins at {first}", flush=True)
for step in range(first, 8):
    torch.manual_seed(100 * step + rank)
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    if step == 3:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 4}
        if rank == 0:
            torch.save(state, kept)
    if step == 5 and restart == 0 and rank == 1 and "die" in sys.argv:
        os.kill(os.getpid(), 9)
optimizer.finish()
parts = [p.detach().numpy().tobytes() for p in model.parameters()]
print("digest", hashlib.sha256(b"".join(parts)).hexdigest(), flush=True)
bps.shutdown()
"""


@pytest.mark.job
@pytest.mark.parametrize("servers", ["1", "0"])
def test_training_goes_on_from_the_checkpoint(
    tmp_path: Path,
    servers: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    script = ["--servers", servers, "--restarts", "2", "--", sys.executable, "train.py"]

    def digests(name: str, *arguments: str) -> tuple[list[str], str]:
        """The digests of both ranks' parameters, and all that was said."""
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(TRAIN)
        monkeypatch.chdir(tmp_path / name)
        status = run_cli(["run", "--timeout", "100", *script, *arguments])
        said = "".join(capfd.readouterr())
        assert status == 0, said
        words = [line.split() for line in said.splitlines()]
        return [row[2] for row in words if row[1:2] == ["digest"]], said

    plain, _ = digests("plain")
    again, said = digests("again", "die")
    assert "(restart 1 of 2)" in said
    assert said.count("begins at 4") == 2
    assert len(set(plain)) == 1
    assert again == plain
