"""Kills and attacks the controller of running jobs, and compares results and speed.

    python experiments/controller_faults.py --rounds 3

Each round runs, in turn, a job without a controller, one with, and one whose controller is killed,
whose port is taken over by an impostor, and which is fed garbage and forged plans, over and over
from its first plan on. Workers and servers are on hosts of their own, on limited links.

Prints one line per kind of job and what the controllers' logs say of it. Exit status 1 if a job
failed, parameters differ between any two jobs, or a forged plan was adopted. Speed is printed, not
judged: p10 to p90 show what the machine's own noise is.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from script import run_script

from byteprophet.bench.result import read_results
from byteprophet.control.log import NAME, read_events
from byteprophet.errors import JobFailed, UserError
from byteprophet.launcher import JobSpec, make_run_directory, run_job
from byteprophet.launcher.leftovers import marked_processes
from byteprophet.network import parse_rate, why_not_permitted
from byteprophet.network.permission import enter_command
from byteprophet.paced.worker_config import WorkerConfig
from byteprophet.whole_files import write_whole

KINDS = ("no controller", "controller", "faults")
_ATTACK = Path(__file__).with_name("controller_attack.py")
_PAUSE_S = 0.5
_ATTACK_TIMEOUT_S = 60.0
_MOST_KILLS = 3  # the launcher starts a controller four times
_WARMUP = 5


@dataclass
class Tally:
    """What the jobs of one kind came to."""

    slowest_ns: list[int] = field(default_factory=list)
    hashes: set[str] = field(default_factory=set)
    plans: int = 0
    adopted: int = 0
    lives: int = 0
    attacks: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def row(self) -> dict[str, Any]:
        """For people and machines."""
        return {
            "iteration_ns": {
                "median": int(np.median(self.slowest_ns)),
                "p10": int(np.percentile(self.slowest_ns, 10)),
                "p90": int(np.percentile(self.slowest_ns, 90)),
            },
            "iterations": len(self.slowest_ns),
            "parameters_sha256": sorted(self.hashes),
            "controller_lives": self.lives,
            "plans": self.plans,
            "adopted": self.adopted,
            "attacks": dict(self.attacks),
            "refused": dict(self.refused),
        }


class Faults:
    """Strikes in a thread of its own, from the first plan to ``end``."""

    def __init__(self, run_directory: Path, tally: Tally) -> None:
        self._run = run_directory
        self._tally = tally
        self._ending = threading.Event()
        self._kills = 0
        self._thread = threading.Thread(target=self._strike)
        self._thread.start()

    def end(self) -> None:
        """No more."""
        self._ending.set()
        self._thread.join(2 * _ATTACK_TIMEOUT_S)

    def _strike(self) -> None:
        for how in itertools.cycle(("garbage", "kill", "forged", "impostor")):
            pid = self._planner()
            while pid is None and not self._ending.wait(_PAUSE_S):
                pid = self._planner()
            if pid is None or self._ending.wait(_PAUSE_S):
                return
            with contextlib.suppress(OSError):  # it, or the whole job, has just ended
                self._attack(how, pid)

    def _planner(self) -> int | None:
        """The controller's process, once it has issued a plan; None while there is none."""
        found = marked_processes(str(self._run), "controller")
        try:
            events = read_events(self._run / NAME)
        except UserError:  # not there yet
            return None
        last = [event for event in events if event["controller"] == events[-1]["controller"]]
        issued = any(event["event"] == "plan" for event in last)
        return last[0]["pid"] if issued and last[0].get("pid") in found else None

    def _attack(self, how: str, pid: int) -> None:
        if how in ("kill", "impostor") and self._kills >= _MOST_KILLS:
            return
        environment = dict(
            entry.split("=", 1)
            for entry in Path(f"/proc/{pid}/environ").read_text().split("\0")
            if "=" in entry
        )
        attack = None
        if how != "kill":
            address = environment["BYTEPROPHET_CONTROLLER"]
            keys = environment["BYTEPROPHET_CONTROLLER_KEYS"]
            there = [*enter_command(pid), "--net", "--"]
            command = [*there, sys.executable, str(_ATTACK), how, address, keys]
            # Its errors are not shown: the job may end meanwhile.
            attack = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            assert attack.stdout is not None
            attack.stdout.readline()  # it is there
        if how in ("kill", "impostor"):
            self._kills += 1
            os.kill(pid, signal.SIGKILL)
        if attack is not None:
            attack.communicate(timeout=_ATTACK_TIMEOUT_S)
        self._tally.attacks[how] += 1


def run_one(kind: str, options: argparse.Namespace, tally: Tally) -> None:
    """One job of this kind, added to ``tally``; JobFailed if it fails."""
    directory = make_run_directory(options.runs, f"controller-{kind.replace(' ', '-')}")
    config = directory / "worker.toml"
    worker = WorkerConfig(options.workload, "prophet", _WARMUP, options.iterations)
    write_whole(config, worker.to_toml())
    spec = JobSpec(
        command=(sys.executable, "-m", "byteprophet.paced.worker", str(config.absolute())),
        run_directory=directory,
        scheduler="prophet",
        bandwidth_bps=parse_rate(options.bandwidth, "--bandwidth"),
        namespaces=True,
        controller=kind != "no controller",
        timeout_s=options.timeout,
    )
    faults = Faults(directory, tally) if kind == "faults" else None
    try:
        result = run_job(spec)
    finally:
        if faults is not None:
            faults.end()
    result.check()
    results = read_results(directory, spec.workers)
    tally.slowest_ns += np.max([one.iteration_ns for one in results], axis=0).tolist()
    tally.hashes |= {one.parameters_sha256 for one in results}
    if kind != "no controller":
        _count(read_events(directory / NAME), tally)


def _count(events: Sequence[dict[str, Any]], tally: Tally) -> None:
    tally.lives += len({event["controller"] for event in events})
    issued = {event["number"] for event in events if event["event"] == "plan"}
    adopted = {event["plan"] for event in events if event["event"] == "adopted"}
    tally.plans += len(issued)
    tally.adopted += len(adopted)
    if not adopted <= issued:
        raise JobFailed(f"plans {sorted(adopted - issued)} were adopted, and nobody issued them")
    latest: dict[tuple[str, str, str], int] = {}
    for event in events:
        if event["event"] == "refused":
            latest[event["controller"], event["by"], event["reason"]] = event["count"]
    for (_, by, reason), count in latest.items():
        who = "the controller" if by == "controller" else "workers"
        tally.refused[f"{reason} (by {who})"] += count


def main(arguments: Sequence[str]) -> None:
    """Run the rounds; JobFailed if results differ."""
    options = _parse(arguments)
    if options.rounds < 1:
        raise UserError("--rounds must be at least 1")
    reason = why_not_permitted()
    if reason is not None:
        raise UserError(f"hosts need network namespaces: {reason}")
    tallies = {kind: Tally() for kind in KINDS}
    for number in range(1, options.rounds + 1):
        for kind in KINDS:
            print(f"round {number} of {options.rounds}: {kind}", file=sys.stderr, flush=True)
            run_one(kind, options, tallies[kind])
    rows = {kind: tally.row() for kind, tally in tallies.items()}
    for kind, row in rows.items():
        times = {name: value / 1e6 for name, value in row["iteration_ns"].items()}
        print(
            f"{kind}: iteration {times['median']:.1f} ms ({times['p10']:.1f} to "
            f"{times['p90']:.1f}, {row['iterations']} of them), parameters "
            f"{', '.join(one[:12] for one in row['parameters_sha256'])}; "
            f"{row['controller_lives']} controllers, {row['plans']} plans, {row['adopted']} adopted"
        )
        for name, counts in (("attacks", row["attacks"]), ("refused", row["refused"])):
            if counts:
                text = ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))
                print(f"  {name}: {text}")
    ratio = rows["faults"]["iteration_ns"]["median"] / rows["controller"]["iteration_ns"]["median"]
    print(f"iteration with faults / without: {ratio:.3f}")
    if options.json is not None:
        report = {"schema": 1, "workload": options.workload, "bandwidth": options.bandwidth}
        write_whole(options.json, json.dumps({**report, "kinds": rows}, indent=2) + "\n")
    hashes = set().union(*(tally.hashes for tally in tallies.values()))
    if len(hashes) != 1:
        raise JobFailed("the jobs ended with different parameters")
    print("all jobs ended with the same parameters")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Kill and attack the controllers of running jobs; compare results and speed.",
        epilog="example: python experiments/controller_faults.py --workload resnet18 --rounds 2",
    )
    parser.add_argument("--workload", default="resnet18", help="a built-in one, or a file")
    parser.add_argument("--bandwidth", default="1gbit", help="of the workers' links")
    parser.add_argument("--iterations", type=int, default=60, help="measured ones of each job")
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each kind")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one job")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the figures here")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="for run directories")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_script(main)
