"""Prints which BytePS library the plug-in is built for: identity.py LIBRARY VERSION."""

import hashlib
import json
import sys
from pathlib import Path

library, version = sys.argv[1:]
json.dump(
    {"version": version, "c_lib_sha256": hashlib.sha256(Path(library).read_bytes()).hexdigest()},
    sys.stdout,
)
