"""Installs byteprophet beside several builds of torch, each in a fresh environment, and uses it.

    python experiments/installs.py torch torch==2.10.0 "torch==2.13.0 --index-url https://..."

Each argument is what a user would give to ``pip install``. Then, from a copy of this checkout, what
the README says: ``pip install .``, ``byteprophet doctor``, and ``byteprophet run`` with two workers
under ``stock`` and ``prophet``, on a limited link where namespaces are permitted. A row holds if
doctor finds nothing missing, and both ranks end with the same parameters under both schedulers.

Prints one row per argument; exit status 1 if one did not hold. Environments are removed. One takes
five minutes on two cores and, with a CUDA build, 7 GB of disk while it is used.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from script import progress_of, run_script

from byteprophet.errors import JobFailed
from byteprophet.network import why_not_permitted

_CHECKOUT = Path(__file__).parents[1]
_TRAIN = Path(__file__).parent / "installs" / "train.py"
_SCHEDULERS = ("stock", "prophet")
_LIMIT_S = 3600
_PARAMETERS = re.compile(r"rank \d+ has parameters (\w+)")
_TEST_TOOLS = ("pytest>=8", "pytest-timeout>=2", "hypothesis>=6", "scikit-learn>=1.3")

_progress = progress_of("installs")


class Environment:
    """A virtual environment in ``directory``, with a copy of the checkout beside it."""

    def __init__(self, directory: Path) -> None:
        self._bin = directory / "venv" / "bin"
        self._directory = directory
        self.checkout = directory / "checkout"
        inherited = {"BYTEPROPHET_DEVICE", "PYTHONPATH", "VIRTUAL_ENV"}
        kept = {name: value for name, value in os.environ.items() if name not in inherited}
        self._variables = kept | {"PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}"}
        subprocess.run([sys.executable, "-m", "venv", directory / "venv"], check=True)
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        files = subprocess.run(listed, cwd=_CHECKOUT, check=True, capture_output=True, text=True)
        for name in files.stdout.rstrip("\0").split("\0"):
            if (_CHECKOUT / name).is_file():
                (self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(_CHECKOUT / name, self.checkout / name)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in the copy of the checkout."""
        return subprocess.run(
            [self._bin / command[0], *command[1:]],
            cwd=self.checkout,
            env=self._variables,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )

    def must(self, *command: str) -> str:
        """Run as above and return what it prints; ``JobFailed`` with its last lines."""
        done = self.run(*command)
        if done.returncode != 0:
            last = [line.strip() for line in (done.stdout + done.stderr).splitlines()][-8:]
            raise JobFailed(f"{' '.join(command)}: status {done.returncode}: {' | '.join(last)}")
        return done.stdout


def main(arguments: Sequence[str]) -> None:
    """Install, use and print, one after another."""
    options = _parse(arguments)
    failed = []
    for asked in options.torch:
        began = time.monotonic()
        try:
            row = _try(asked, options)
        except (JobFailed, subprocess.TimeoutExpired) as error:
            failed.append(asked)
            row = f"DOES NOT HOLD: {error}"
        print(f"{asked}: {row} ({(time.monotonic() - began) / 60:.0f} min)", flush=True)
    if failed:
        raise JobFailed(f"did not hold for: {', '.join(failed)}")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Install and use byteprophet beside several builds of torch.",
        epilog="example: python experiments/installs.py torch torch==2.10.0",
    )
    parser.add_argument("torch", nargs="+", help="what pip install is given, quoted")
    parser.add_argument(
        "--no-build-isolation", action="store_true", help="build with the environment's own tools"
    )
    parser.add_argument("--tests", action="store_true", help="run tests/torch there, without jobs")
    return parser.parse_args(arguments)


def _try(asked: str, options: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory(prefix="byteprophet-installs-") as scratch:
        environment = Environment(Path(scratch))
        _progress(f"pip install {asked}")
        environment.must("pip", "install", *asked.split())
        install = ["pip", "install", "."]
        if options.no_build_isolation:
            environment.must("pip", "install", "scikit-build-core>=0.11", "nanobind>=2.2")
            install.append("--no-build-isolation")
        _progress(" ".join(install))
        environment.must(*install)
        parts = [_versions(environment), _doctor(environment), _jobs(environment)]
        if options.tests:
            parts.append(_tests(environment))
        return "; ".join(parts)


def _versions(environment: Environment) -> str:
    code = "import torch; print(torch.__version__, 'CUDA', torch.version.cuda)"
    return environment.must("python", "-c", code).strip()


def _doctor(environment: Environment) -> str:
    done = environment.run("byteprophet", "doctor", "--json")
    report = json.loads(done.stdout)
    if not report["able"]:
        raise JobFailed(f"doctor: {[each for each in report['findings'] if not each['ok']]}")
    found = {each["name"]: each["found"] for each in report["findings"]}
    return f"device {found['device of byteps.torch'].partition(' (')[0]}"


def _jobs(environment: Environment) -> str:
    """Two workers under each scheduler; what they all ended with."""
    limit = [] if why_not_permitted() else ["--bandwidth", "500mbit"]
    ended: set[str] = set()
    for scheduler in _SCHEDULERS:
        _progress(f"byteprophet run --scheduler {scheduler}")
        command = ["byteprophet", "run", "--workers", "2", "--scheduler", scheduler, *limit]
        seen = _PARAMETERS.findall(environment.must(*command, "--", "python", str(_TRAIN)))
        if len(seen) != 2:
            raise JobFailed(f"{len(seen)} of 2 workers came to their end under {scheduler}")
        ended.update(seen)
    if len(ended) != 1:
        raise JobFailed(f"parameters differ between ranks or schedulers: {sorted(ended)}")
    return f"{' and '.join(_SCHEDULERS)} end with parameters {ended.pop()}"


def _tests(environment: Environment) -> str:
    _progress("tests/torch")
    environment.must("pip", "install", *_TEST_TOOLS)
    shown = environment.must(
        "python", "-m", "pytest", "-q", "-m", "not job", "--rootdir", ".", "tests/torch"
    )
    return f"tests/torch: {shown.strip().splitlines()[-1].strip('= ')}"


if __name__ == "__main__":
    run_script(main)
