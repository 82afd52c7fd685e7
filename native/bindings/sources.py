"""Writes a header with the digest of all that is compiled: the files below native and prophet.

python sources.py CHECKOUT HEADER
"""

import hashlib
import sys
from pathlib import Path

FOLDERS = ("native", "prophet")


def digest(checkout: Path) -> str:
    """A digest of the files' places and contents."""
    files = (path for folder in FOLDERS for path in (checkout / folder).rglob("*.*"))
    found = hashlib.sha256()
    for path in sorted(path for path in files if path.is_file()):
        if "__pycache__" not in path.parts:
            content = path.read_bytes()
            found.update(f"{path.relative_to(checkout).as_posix()} {len(content)}\n".encode())
            found.update(content)
    return found.hexdigest()


if __name__ == "__main__":
    checkout, header = map(Path, sys.argv[1:])
    header.write_text(f'#define BYTEPROPHET_SOURCES "{digest(checkout)}"\n')
