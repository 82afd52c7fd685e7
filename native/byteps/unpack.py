"""Obtains the BytePS source distribution, checks it, unpacks it and applies our patch queue.

Usage: unpack.py DIRECTORY. Leaves DIRECTORY alone if it was made from the same source and patches.

The archive is fetched by pip under hash checking (requirements.txt) and kept in the user's cache
directory; it is checked again whenever it is used, so a damaged or foreign file there is replaced,
not trusted.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
STAMP = ".byteprophet-source"


def main(directory: Path) -> None:
    """Make ``directory`` the patched source."""
    requirements = HERE / "requirements.txt"
    patches = sorted((HERE / "patches").glob("*.patch"))
    identity = _sha256(*[requirements, Path(__file__), *patches])
    stamp = directory / STAMP
    if stamp.is_file() and stamp.read_text() == identity:
        return
    archive = _archive(requirements)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        shutil.unpack_archive(archive, scratch)
        (source,) = Path(scratch).iterdir()
        for patch in patches:
            _apply(patch, source)
        # Newer than what was built before: a file that is no longer patched is built again, too.
        for path in source.rglob("*"):
            path.touch()
        (source / STAMP).write_text(identity)
        shutil.rmtree(directory, ignore_errors=True)
        source.rename(directory)


def _archive(requirements: Path) -> Path:
    match = re.fullmatch(
        r"byteps==(\S+) --hash=sha256:([0-9a-f]{64})", requirements.read_text().strip()
    )
    if match is None:
        sys.exit(
            f"byteprophet: error: {requirements}: expected one pinned requirement with its sha256"
        )
    version, sha256 = match.groups()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "byteprophet"
    archive = cache / f"byteps-{version}.tar.gz"
    if archive.is_file() and _sha256(archive) == sha256:
        return archive
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        command = [
            sys.executable,
            "-I",
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-binary",
            "byteps",
        ]
        command += ["--require-hashes", "--dest", scratch, "--requirement", str(requirements)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(
                f"byteprophet: error: pip could not download byteps=={version}:\n{done.stderr}"
            )
        (downloaded,) = Path(scratch).glob("*.tar.gz")
        if _sha256(downloaded) != sha256:
            sys.exit(f"byteprophet: error: {downloaded.name} has not the pinned sha256 {sha256}")
        downloaded.replace(archive)
    return archive


def _apply(patch: Path, source: Path) -> None:
    command = ["patch", "--strip=1", "--fuzz=0", "--batch", "--input", str(patch)]
    try:
        done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    except FileNotFoundError:
        sys.exit("byteprophet: error: the command 'patch' is missing: apt-get install patch")
    if done.returncode != 0:
        sys.exit(f"byteprophet: error: {patch.name} does not apply:\n{done.stdout}{done.stderr}")


def _sha256(*files: Path) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
