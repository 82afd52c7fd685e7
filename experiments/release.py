"""Installs the packages of a release into fresh environments, and runs the first job there.

    make release
    python experiments/release.py

For the wheel and the sdist in ``dist/``: a virtual environment of its own with torch, ``pip install
PACKAGE`` with the package's SHA-256 from SHA256SUMS, and then, in an empty directory, what
docs/first-job.md says. Its script and its commands are taken from the page. Nothing of this
checkout can be imported there. A package holds if every command ends well, and both packages end
with the same losses.

Prints one row per package; exit status 1 if one does not hold. The environments are removed. It
takes a minute for the wheel, five for the sdist, which is compiled, and 2 GB of disk.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from script import progress_of, run_script

from byteprophet.errors import JobFailed, UserError
from byteprophet.network import why_not_permitted

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from documents import CHECKOUT, DOCS, blocks

_LIMIT_S = 3600
_LOSS = re.compile(r"rank (\d+): loss (\S+)")
_PAGE = DOCS / "first-job.md"

_progress = progress_of("release")


class Environment:
    """A virtual environment, and an empty directory beside it in which commands run."""

    def __init__(self, directory: Path) -> None:
        self._bin = directory / "venv" / "bin"
        self.work = directory / "work"
        self.work.mkdir()
        foreign = ("BYTEPROPHET_", "BYTEPS_", "DMLC_", "PYTHON", "VIRTUAL_ENV")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
        self._variables = kept | {"PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}"}
        subprocess.run([sys.executable, "-m", "venv", directory / "venv"], check=True)

    def must(self, command: str) -> str:
        """What ``command``, for bash, prints; ``JobFailed`` with its last lines if it fails."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.work,
            env=self._variables,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            last = [line.strip() for line in (done.stdout + done.stderr).splitlines()][-8:]
            raise JobFailed(f"{command}: status {done.returncode}: {' | '.join(last)}")
        return done.stdout


def main(arguments: Sequence[str]) -> None:
    """Install, use and print, one after another."""
    options = _parse(arguments)
    packages = sorted([*options.dist.glob("*.whl"), *options.dist.glob("*.tar.gz")])
    if not packages:
        raise UserError(f"{options.dist}: there are no packages; make release builds them")
    ended: dict[str, dict[str, str]] = {}
    failed = []
    for package in packages:
        began = time.monotonic()
        try:
            ended[package.name] = losses = _try(package, options.torch)
            row = f"installed, its first job ends with losses {', '.join(losses.values())}"
        except (JobFailed, subprocess.TimeoutExpired) as error:
            failed.append(package.name)
            row = f"DOES NOT HOLD: {error}"
        print(f"{package.name}: {row} ({(time.monotonic() - began) / 60:.0f} min)", flush=True)
    if failed:
        raise JobFailed(f"did not hold for: {', '.join(failed)}")
    if len({tuple(sorted(losses.items())) for losses in ended.values()}) > 1:
        raise JobFailed("losses differ between packages")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Install the packages of a release and run the first job with each.",
        epilog="example: python experiments/release.py --torch torch==2.13.0",
    )
    parser.add_argument("--dist", type=Path, default=CHECKOUT / "dist", help="where packages are")
    parser.add_argument("--torch", default="torch==2.13.0", help="what pip install is given")
    return parser.parse_args(arguments)


def _try(package: Path, torch: str) -> dict[str, str]:
    """The last losses of the first job, by rank."""
    with tempfile.TemporaryDirectory(prefix="byteprophet-release-") as scratch:
        environment = Environment(Path(scratch))
        _progress(f"pip install {torch}")
        environment.must(f"pip install {torch}")
        _progress(f"pip install {package.name}")
        folder = package.resolve().parent
        environment.must(f"(cd {folder} && sha256sum --check --ignore-missing --strict SHA256SUMS)")
        environment.must(f"pip install {package.resolve()}")
        where = environment.must("python -c 'import byteprophet; print(byteprophet.__file__)'")
        if not Path(where).is_relative_to(scratch):
            raise JobFailed(f"byteprophet is imported from {where.strip()}")
        losses: dict[str, str] = {}
        for block in blocks(_PAGE):
            if block.mark == "file":
                (environment.work / block.what).write_text(block.text, encoding="utf-8")
            elif block.is_commands and block.mark != "parse":
                if "namespaces" in block.needs and why_not_permitted():
                    _progress(f"left out, because {why_not_permitted()}: {block.text.strip()}")
                    continue
                _progress(block.text.strip())
                losses |= dict(_LOSS.findall(environment.must(block.text)))
        if len(losses) != 2:
            raise JobFailed(f"{len(losses)} of 2 workers said their loss")
        return losses


if __name__ == "__main__":
    run_script(main)
