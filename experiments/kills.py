"""Kills roles of running jobs, one per job, and looks whether each job ends as it should.

    python experiments/kills.py --times 50

Two workers and one or two servers, each on a host of its own, run the digits training. At a random
moment in mid-run one random role is killed (SIGKILL), stopped (SIGSTOP) or cut off (its cable). A
case holds if everything of the job has ended within 30 s, the job's status is 1, its one line names
that role first, and nothing is left behind: no process, no namespace, no temporary directory.

Prints one line per case and one at the end; exit status 1 if a case did not hold. The same seed
gives the same cases. Half a minute per case.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from script import run_script, scheduler_names

from byteprophet import schedulers
from byteprophet.errors import JobFailed, UserError
from byteprophet.launcher import JobSpec, make_run_directory, run_job
from byteprophet.launcher.leftovers import marked_processes
from byteprophet.network import cut_cable, parse_rate, why_not_permitted

LIMIT_S = 30.0
_TRAIN = Path(__file__).parent / "digits" / "train.py"
_WAYS: dict[str, Callable[[int], None]] = {
    "SIGKILL": lambda pid: os.kill(pid, signal.SIGKILL),
    "SIGSTOP": lambda pid: os.kill(pid, signal.SIGSTOP),
    "cable": cut_cable,
}
_LATEST_S = 6.0  # after both workers have begun to train
_TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Case:
    """What is done to whom: ``moment_s`` counts from where all workers train."""

    scheduler: str
    servers: int
    victim: str
    way: str
    moment_s: float


@dataclass(frozen=True)
class Outcome:
    """What became of it; ``wrong`` is empty for a case that holds."""

    ended_s: float
    exit_status: int
    line: str
    wrong: tuple[str, ...]


def draw_case(lot: random.Random, names: Sequence[str]) -> Case:
    """A case under one of the schedulers ``names``."""
    servers = lot.choice((1, 2))
    roles = ["scheduler", "worker-0", "worker-1", *(f"server-{i}" for i in range(servers))]
    return Case(
        scheduler=lot.choice(names),
        servers=servers,
        victim=lot.choice(roles),
        way=lot.choice(list(_WAYS)),
        moment_s=round(lot.uniform(0, _LATEST_S), 2),
    )


class _Blow:
    """Waits until all workers train, then does what ``case`` says, in a thread of its own."""

    def __init__(self, case: Case, run_directory: Path) -> None:
        self._case = case
        self._run_directory = str(run_directory)
        self._training: set[str] = set()
        self.struck_s: float | None = None
        self.networks: set[int] = set()

    def echo(self, role: str, line: str) -> None:
        """For ``run_job``: a worker that prints its iterations trains."""
        if line.startswith("iteration") and role not in self._training:
            self._training.add(role)
            if len(self._training) == 2:
                threading.Timer(self._case.moment_s, self._strike).start()

    def _strike(self) -> None:
        everybody = marked_processes(self._run_directory)
        self.networks = {_network(pid) for pid in everybody} - {0, _network(os.getpid())}
        (pid,) = marked_processes(self._run_directory, self._case.victim)
        self.struck_s = time.monotonic()
        _WAYS[self._case.way](pid)


def run_case(
    case: Case, runs: Path, bandwidth_bps: int | None, dead_after_s: float | None = None
) -> Outcome:
    """Run one job and strike; ``dead_after_s`` None: the heartbeats' own limit."""
    limit = {} if dead_after_s is None else {"BYTEPROPHET_DEAD_AFTER_S": f"{dead_after_s:g}"}
    directory = make_run_directory(runs, f"kill-{case.victim}-{case.way}-{case.scheduler}")
    spec = JobSpec(
        command=(sys.executable, str(_TRAIN), "--iterations", "100000"),
        run_directory=directory,
        servers=case.servers,
        scheduler=case.scheduler,
        bandwidth_bps=bandwidth_bps,
        environment=limit,
        namespaces=True,
        timeout_s=_TIMEOUT_S,
    )
    blow = _Blow(case, directory)
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="kills-") as temporary:
        tempfile.tempdir = temporary
        try:
            result = run_job(spec, blow.echo)
        finally:
            tempfile.tempdir = before
        ended_s = time.monotonic() - (blow.struck_s or time.monotonic())
        wrong = _left_behind(directory, blow.networks, Path(temporary))
    if blow.struck_s is None:
        wrong.append("the job ended before it was struck")
    if result.exit_status != 1:
        wrong.append(f"exit status {result.exit_status}")
    line = result.failed or "no line"
    if not line.startswith(f"{case.victim} "):
        wrong.append(f"the line does not name {case.victim}")
    if ended_s > LIMIT_S:
        wrong.append(f"it took more than {LIMIT_S:g} s")
    return Outcome(ended_s, result.exit_status, line.partition("; its log")[0], tuple(wrong))


def _left_behind(run_directory: Path, networks: set[int], temporary: Path) -> list[str]:
    found = [f"process {pid} is left" for pid in marked_processes(str(run_directory))]
    others = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    found += [f"process {pid} is left on a host" for pid in others if _network(pid) in networks]
    found += [f"{path} is left" for path in temporary.iterdir()]
    return found


def _network(pid: int) -> int:
    """Identity of the network namespace of ``pid``; 0 if it has ended."""
    try:
        return (Path("/proc") / str(pid) / "ns" / "net").stat().st_ino
    except OSError:
        return 0


def main(arguments: Sequence[str]) -> None:
    """Run the cases; JobFailed if one did not hold."""
    options = _parse(arguments)
    if options.times < 1:
        raise UserError("--times must be at least 1")
    names = scheduler_names(options.schedulers)
    reason = why_not_permitted()
    if reason is not None:
        raise UserError(f"hosts need network namespaces: {reason}")
    bandwidth_bps = parse_rate(options.bandwidth, "--bandwidth")
    lot = random.Random(options.seed)
    outcomes = []
    for number in range(1, options.times + 1):
        case = draw_case(lot, names)
        outcome = run_case(case, options.runs, bandwidth_bps)
        outcomes.append(outcome)
        verdict = "held" if not outcome.wrong else f"DID NOT HOLD ({'; '.join(outcome.wrong)})"
        print(
            f"{number}: {case.way} of {case.victim} after {case.moment_s:.2f} s under "
            f"{case.scheduler} with {case.servers} servers: {verdict}, all ended after "
            f"{outcome.ended_s:.1f} s with status {outcome.exit_status}: {outcome.line}",
            flush=True,
        )
    held = sum(not outcome.wrong for outcome in outcomes)
    slowest_s = max(outcome.ended_s for outcome in outcomes)
    print(
        f"{held} of {len(outcomes)} held (seed {options.seed}); the slowest took {slowest_s:.1f} s"
    )
    if held < len(outcomes):
        raise JobFailed(f"{len(outcomes) - held} of {len(outcomes)} cases did not hold")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Kill, stop or cut off one role per job and see whether the job ends well.",
        epilog="example: python experiments/kills.py --times 3 --seed 7 --schedulers stock",
    )
    parser.add_argument("--times", type=int, default=50, help="cases")
    parser.add_argument("--seed", type=int, default=1, help="of the lot that draws the cases")
    parser.add_argument("--schedulers", default=",".join(schedulers.names), help="to draw from")
    parser.add_argument("--bandwidth", default="1gbit", help="of the workers' links")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="for run directories")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_script(main)
